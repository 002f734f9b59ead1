"""The typed cache: what is remembered, what is dropped, and who wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from bookie.coordination.cache import Cached, JsonCodec, MetadataCache
from bookie.errors import (
    BadRequestError,
    FormatError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from bookie.metadata.model import Resync, Stat, WatchEvent
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import until, until_found

Json = MetadataCache[Any]
NewCache = Callable[..., Awaitable[Json]]
KEY = "/objects/a"


@pytest.fixture
async def new_cache(client: Client) -> AsyncIterator[NewCache]:
    """Makes caches, which end with the test."""
    async with AsyncExitStack() as stack:

        async def make(of: Client = client, **options: Any) -> Json:
            cache: Json = MetadataCache(of.participant, "/objects", JsonCodec(), **options)
            return await stack.enter_async_context(cache)

        yield make


@pytest.fixture
async def cache(new_cache: NewCache) -> Json:
    """One cache."""
    return await new_cache()


async def test_what_does_not_exist(cache: Json) -> None:
    """Cases 70, 79."""
    assert cache.get_if_cached(KEY) is None
    assert await cache.get(KEY) is None
    assert await cache.get_with_stat(KEY) is None
    assert not await cache.exists(KEY)
    assert await cache.get_children("/objects") == []
    with pytest.raises(NoSuchKeyError):
        await cache.delete(KEY)
    with pytest.raises(NoSuchKeyError):
        await cache.read_modify_update(KEY, lambda value: value)
    with pytest.raises(BadRequestError):
        await cache.get("/other")


async def test_every_cache_sees_what_any_of_them_writes(
    new_client: NewClient, new_cache: NewCache
) -> None:
    """Case 71: added through one, deleted through another, in all combinations."""
    caches = [await new_cache(await new_client()) for _ in range(3)]
    for writer in caches:
        for deleter in caches:
            await writer.create(KEY, {"n": 1})
            assert writer.get_if_cached(KEY) == {"n": 1}
            for reader in caches:
                await until_found(partial(_shows, reader, {"n": 1}))
            await deleter.delete(KEY)
            assert deleter.get_if_cached(KEY) is None
            for reader in caches:
                await until(partial(_has_nothing, reader))
                await until_found(partial(_shows, reader, None))


def _has_nothing(cache: Json) -> bool:
    return cache.get_if_cached(KEY) is None


async def _shows(cache: Json, value: object) -> bool:
    return bool(await cache.get(KEY) == value)


async def test_who_hears_of_a_change_reads_the_new_value(
    new_client: NewClient, new_cache: NewCache
) -> None:
    """Case 72."""
    heard: asyncio.Queue[WatchEvent | Resync] = asyncio.Queue()
    writer = await new_cache(await new_client())
    reader = await new_cache(on_change=heard.put_nowait)
    await writer.create(KEY, 0)
    await heard.get()
    for number in range(1, 20):
        await writer.read_modify_update(KEY, lambda value: value + 1)
        async with asyncio.timeout(60):
            await heard.get()
        assert await reader.get(KEY) == number


async def test_values_are_created_updated_and_deleted(cache: Json) -> None:
    """Cases 73, 74, 81."""
    value = {"text": "\N{GREEK SMALL LETTER ALPHA}", "list": [1, 2.5, None], "map": {"a": []}}
    stat = await cache.create(KEY, value)
    found = await cache.get_with_stat(KEY)
    assert found == Cached(value, stat)
    with pytest.raises(KeyExistsError):
        await cache.create(KEY, 0)
    assert await cache.read_modify_update_or_create(KEY, lambda old: [old]) == [value]
    assert await cache.read_modify_update_or_create("/objects/b", lambda old: old or "new") == "new"
    put = await cache.put(KEY, 3)
    found = await cache.get_with_stat(KEY)
    assert found == Cached(3, put)
    await cache.delete(KEY)
    assert cache.get_if_cached(KEY) is None
    assert await cache.get(KEY) is None


async def test_null_is_a_value(cache: Json) -> None:
    await cache.create(KEY, None)
    assert await cache.read_modify_update(KEY, lambda old: [old]) == [None]
    assert await cache.get(KEY) == [None]
    await cache.put(KEY, None)
    assert await cache.read_modify_update_or_create(KEY, lambda _: 1) == 1


async def test_a_remembered_absence_ends(client: Client, cache: Json) -> None:
    """Cases 75, 76: by an event, whoever wrote."""
    assert await cache.get(KEY) is None
    reads = client.store.counts["get"]
    assert await cache.get(KEY) is None
    assert client.store.counts["get"] == reads
    await client.session.put(KEY, b"1")
    await until_found(lambda: _shows(cache, 1))
    await client.session.put("/objects/new", b"2")
    assert await cache.get("/objects/new") == 2


async def test_what_cannot_be_decoded_is_not_kept(client: Client, cache: Json) -> None:
    """Case 77."""
    await client.session.put(KEY, b"{no json")
    with pytest.raises(FormatError, match=KEY):
        await cache.get(KEY)
    assert cache.get_if_cached(KEY) is None
    await client.session.put(KEY, b"1")
    assert await cache.get(KEY) == 1


async def test_values_are_shared_and_updates_work_on_copies(cache: Json) -> None:
    """Case 78."""
    await cache.create(KEY, {"n": 1})
    first = await cache.get(KEY)
    assert await cache.get(KEY) is first
    copies: list[object] = []

    def fail(value: Any) -> Any:
        copies.append(value)
        value["n"] = 100
        raise ZeroDivisionError

    for update in (cache.read_modify_update, cache.read_modify_update_or_create):
        with pytest.raises(ZeroDivisionError):
            await update(KEY, fail)
    assert copies[0] is not copies[1]
    assert await cache.get(KEY) == {"n": 1}


async def test_two_caches_count_exactly(new_client: NewClient, new_cache: NewCache) -> None:
    """Case 80."""
    caches = [await new_cache(await new_client()) for _ in range(2)]

    async def count(cache: Json) -> None:
        for _ in range(10):
            await cache.read_modify_update_or_create(KEY, lambda old: (old or 0) + 1)

    async with asyncio.TaskGroup() as group:
        for cache in caches:
            group.create_task(count(cache))
    for cache in caches:
        await until_found(partial(_shows, cache, 20))


async def test_a_codec_gets_the_key(client: Client) -> None:
    """Case 82."""

    class WithKey:
        def encode(self, key: str, value: str) -> bytes:
            return f"{key}={value}".encode()

        def decode(self, key: str, data: bytes, stat: Stat) -> str:
            assert stat.key == key
            return data.decode().removeprefix(f"{key}=")

    async with MetadataCache(client.participant, "/objects", WithKey()) as cache:
        await cache.create(KEY, "x")
        cache.invalidate_all()
        assert await cache.get(KEY) == "x"
    record = await client.session.get(KEY)
    assert record is not None
    assert record.value == b"/objects/a=x"


async def test_the_last_ephemeral_put_wins(new_client: NewClient, new_cache: NewCache) -> None:
    """Case 83: whoever had the record before."""
    first, second = [await new_cache(await new_client()) for _ in range(2)]
    await first.put(KEY, 1, ephemeral=True)
    await until_found(lambda: _shows(second, 1))
    stat = await second.put(KEY, 2, ephemeral=True)
    assert stat.created_by_self
    for cache in (first, second):
        await until_found(partial(_shows, cache, 2))
    await first.put("/objects/b", 1)
    with pytest.raises(KeyExistsError):
        await first.put("/objects/b", 2, ephemeral=True)


async def test_what_was_here_is_loaded_again(client: Client, new_cache: NewCache) -> None:
    """Case 84."""
    reloaded: list[tuple[str, object]] = []

    def hear(key: str, found: Cached[Any] | None) -> None:
        reloaded.append((key, None if found is None else found.value))

    cache = await new_cache(on_reload=hear)
    await client.session.put(KEY, b"1")
    await client.session.put("/objects/b", b"1")
    assert await cache.get(KEY) == 1
    await client.session.put(KEY, b"2")
    await client.session.put("/objects/b", b"2")
    await client.session.put(KEY, b"3")
    await until(lambda: reloaded and reloaded[-1] == (KEY, 3))
    assert cache.get_if_cached(KEY) == 3
    assert {key for key, _ in reloaded} == {KEY}
    await client.session.delete(KEY)
    await until(lambda: reloaded[-1] == (KEY, None))


async def test_loads_of_one_key_are_one_read(client: Client, new_cache: NewCache) -> None:
    heard: list[WatchEvent | Resync] = []
    cache = await new_cache(on_change=heard.append)
    await client.session.put(KEY, b"1")
    await until(lambda: heard)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(cache.get(KEY))
    assert client.store.counts["get"] == 1
    await cache.refresh(KEY)
    assert client.store.counts["get"] == 2
    cache.invalidate(KEY)
    await cache.refresh(KEY)
    assert client.store.counts["get"] == 2


async def test_the_oldest_values_go_first(client: Client, new_cache: NewCache) -> None:
    heard: list[WatchEvent | Resync] = []
    cache = await new_cache(entries_max=2, on_change=heard.append)
    for name in "abc":
        await client.session.put(f"/objects/{name}", b"1")
    await until(lambda: len(heard) == 3)
    for name in "abac":
        await cache.get(f"/objects/{name}")
    kept = [cache.get_if_cached(f"/objects/{name}") for name in "abc"]
    assert kept == [1, None, 1]


async def test_a_load_that_a_change_overtook_is_not_kept(
    client: Client, new_cache: NewCache
) -> None:
    """The answer to a read that began before a change may come after the event of the change."""
    heard: list[WatchEvent | Resync] = []
    cache = await new_cache(on_change=heard.append)
    await client.session.put(KEY, b"1")
    await until(lambda: len(heard) == 1)
    was_read, answer = asyncio.Event(), asyncio.Event()
    original = client.store.get

    async def slow(key: str) -> Any:
        record = await original(key)
        was_read.set()
        await answer.wait()
        return record

    client.store.get = slow  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(cache.get(KEY))
        await was_read.wait()
        await client.session.put(KEY, b"2")
        await until(lambda: len(heard) == 2)
        answer.set()
    assert loading.result() == 1
    assert cache.get_if_cached(KEY) is None
    assert await cache.get(KEY) == 2


async def test_a_value_that_changes_while_it_is_loaded_is_loaded_again(
    client: Client, new_cache: NewCache
) -> None:
    """Its caller asked to be told of changes, also of one that came before the answer."""
    reloaded: list[object] = []
    heard: list[WatchEvent | Resync] = []
    cache = await new_cache(
        on_change=heard.append,
        on_reload=lambda _, found: reloaded.append(found and found.value),
    )
    await client.session.put(KEY, b"1")
    await until(lambda: heard)
    original, read, answered = client.store.get, asyncio.Event(), asyncio.Event()

    async def slow(key: str) -> Any:
        record = await original(key)
        read.set()
        await answered.wait()
        return record

    client.store.get = slow  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(cache.get(KEY))
        await read.wait()
        await client.session.put(KEY, b"2")
        await until(lambda: len(heard) == 2)
        client.store.get = original  # type: ignore[method-assign]
        answered.set()
    assert load.result() == 1
    await until(lambda: reloaded == [2])
    await client.session.put(KEY, b"3")
    await until(lambda: reloaded == [2, 3])


@pytest.mark.parametrize("later", ["written", "deleted"])
async def test_a_late_answer_brings_nothing_older_back(
    client: Client, cache: Json, later: str
) -> None:
    """Two writes, answered in the other order, before any event of them."""
    client.store.hold_changes.clear()
    answer = client.store.hold_reply = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(cache.put(KEY, "first"))
        await until_found(lambda: client.session.get(KEY))
        if later == "written":
            await cache.put(KEY, "second")
        else:
            await cache.delete(KEY)
        expected = "second" if later == "written" else None
        assert await cache.get(KEY) == expected
        answer.set()
    assert await cache.get(KEY) == expected


async def test_a_late_answer_is_older_than_what_was_loaded_meanwhile(
    client: Client, cache: Json
) -> None:
    """Another process wrote after us, and we read that before our own write was answered."""
    client.store.hold_changes.clear()
    answer = client.store.hold_reply = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(cache.put(KEY, "first"))
        await until_found(lambda: client.session.get(KEY))
        await client.session.put(KEY, b'"second"')
        assert await cache.get(KEY) == "second"
        answer.set()
    assert await cache.get(KEY) == "second"


async def test_a_failed_load_is_tried_again(client: Client, cache: Json) -> None:
    client.store.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await cache.get(KEY)
    client.store.is_down = False
    assert await cache.get(KEY) is None


async def test_everything_is_dropped_with_the_session(
    backend: Backend, new_client: NewClient, new_cache: NewCache
) -> None:
    client = await new_client(session_timeout_seconds=3.0)
    cache = await new_cache(client)
    await cache.create(KEY, 1)
    assert cache.get_if_cached(KEY) == 1
    await backend.expire(client.session)
    await until(lambda: cache.get_if_cached(KEY) is None)
    assert await cache.get(KEY) == 1


async def test_what_is_here_is_served_through_an_outage(
    backend: Backend, new_client: NewClient, new_cache: NewCache
) -> None:
    if not backend.can_disconnect:
        return
    client, other = await new_client(), await new_client()
    cache = await new_cache(client)
    await cache.create(KEY, 1)
    await backend.disconnect(client.session)
    await until(lambda: not client.participant.is_certain)
    await other.session.put(KEY, b"2")
    assert await cache.get(KEY) == 1
    await backend.reconnect(client.session)
    await until_found(lambda: _shows(cache, 2))
