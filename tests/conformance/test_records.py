"""Records one by one: reads, writes under compare-and-set, deletes, keys and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    InvalidKeyError,
    KeyExistsError,
    KeyHasChildrenError,
    MetadataClosedError,
    NoSuchKeyError,
    UnsupportedError,
)
from bookie.metadata.model import KEY_SIZE_BYTES_MAX, NOT_EXISTS, VALUE_SIZE_BYTES_MAX, Acl, Check
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend, Difference
from tests.conformance.streams import assert_holds, scan, timeless


async def test_an_unknown_key_is_absent_and_childless(store: MetadataStore) -> None:
    """Case 1."""
    assert await store.get("/a") is None
    assert await store.get("/a/b") is None
    assert not await store.exists("/a")
    assert not await store.exists("/a/b")
    assert await store.get_children("/a") == []
    assert await scan(store, "/a") == []


async def test_deleting_an_unknown_key_fails(store: MetadataStore) -> None:
    """Case 2."""
    with pytest.raises(NoSuchKeyError):
        await store.delete("/a")
    with pytest.raises(NoSuchKeyError):
        await store.delete("/a", version=1)


async def test_fifty_unconditional_puts_of_one_key_all_succeed(store: MetadataStore) -> None:
    """Case 3."""
    async with asyncio.TaskGroup() as tasks:
        puts = [tasks.create_task(store.put("/a", b"%d" % i)) for i in range(50)]
    stats = [put.result() for put in puts]
    assert len({stat.version for stat in stats}) == 50
    record = await store.get("/a")
    assert record is not None
    assert record.version == max(stat.version for stat in stats)
    assert sum(stat.first_version for stat in stats) == 1


@pytest.mark.parametrize("version", [0, 1, 12345])
async def test_a_put_with_a_version_never_creates(store: MetadataStore, version: int) -> None:
    """Case 4."""
    with pytest.raises(BadVersionError):
        await store.put("/a", b"x", version=version)
    assert await store.get("/a") is None


async def test_a_create_returns_the_state_that_get_shows(store: MetadataStore) -> None:
    """Case 5."""
    stat = await store.put("/a", b"x", version=NOT_EXISTS)
    assert stat.key == "/a"
    assert stat.version >= 0
    assert stat.first_version
    assert not stat.ephemeral
    assert not stat.created_by_self
    await assert_holds(store, "/a", b"x", stat)
    assert await store.exists("/a")


async def test_a_create_of_an_existing_key_changes_nothing(store: MetadataStore) -> None:
    """Case 6."""
    stat = await store.put("/a", b"x", version=NOT_EXISTS)
    with pytest.raises(KeyExistsError):
        await store.put("/a", b"y", version=NOT_EXISTS)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"y", version=stat.version + 1)
    await assert_holds(store, "/a", b"x", stat)


async def test_a_put_with_the_current_version_grows_it(store: MetadataStore) -> None:
    """Case 7."""
    first = await store.put("/a", b"x")
    second = await store.put("/a", b"y", version=first.version)
    assert second.version > first.version
    assert not second.first_version
    await assert_holds(store, "/a", b"y", second)


async def test_revisions_grow_over_all_keys(store: MetadataStore) -> None:
    first = await store.put("/a", b"")
    second = await store.put("/b", b"")
    await store.delete("/a")
    third = await store.put("/a", b"")
    revisions = [stat.revision for stat in (first, second, third)]
    assert all(isinstance(revision, int) for revision in revisions)
    assert revisions == sorted({revision or 0 for revision in revisions})


async def test_a_version_of_a_former_life_is_refused(backend: Backend) -> None:
    store = await backend.open()
    first = await store.put("/a", b"x", version=NOT_EXISTS)
    await store.delete("/a")
    second = await store.put("/a", b"x", version=NOT_EXISTS)
    assert second.first_version
    assert first.revision != second.revision
    if not backend.differs(Difference.VERSIONS_RESTART):
        assert second.version > first.version
        with pytest.raises(BadVersionError):
            await store.put("/a", b"y", version=first.version)


async def test_times_are_those_of_creation_and_last_write(backend: Backend) -> None:
    store = await backend.open()
    await store.put("/a", b"1")
    await store.put("/a", b"2")
    record = await store.get("/a")
    assert record is not None
    times = (record.stat.created_ms, record.stat.modified_ms)
    if backend.differs(Difference.NO_TIMES):
        assert times == (None, None)
        return
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] <= times[1]


async def test_values_and_keys_round_trip_as_they_are(store: MetadataStore) -> None:
    """Case 27."""
    value = bytes(range(256)) * 16
    for key in ("/é/ß", "/日本語", "/a b", "/..a/b..", "/" + "k" * (KEY_SIZE_BYTES_MAX - 1)):
        await store.put(key, value)
        record = await store.get(key)
        assert record is not None
        assert (record.key, record.value) == (key, value)
    await store.put("/empty", b"")
    record = await store.get("/empty")
    assert record is not None
    assert record.value == b""


async def test_the_largest_value_is_stored_and_a_larger_one_refused(store: MetadataStore) -> None:
    value = b"v" * VALUE_SIZE_BYTES_MAX
    await store.put("/a", value)
    record = await store.get("/a")
    assert record is not None
    assert record.value == value
    with pytest.raises(InvalidKeyError):
        await store.put("/a", value + b"v")


@pytest.mark.parametrize(
    "key",
    ["", " ", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0", "/\ud800", "/" + "é" * 240],
)
async def test_an_invalid_key_is_refused_everywhere(store: MetadataStore, key: str) -> None:
    """Cases 12, 27."""
    for call in (
        store.get(key),
        store.exists(key),
        store.get_children(key),
        store.put(key, b""),
        store.delete(key),
        store.delete_recursive(key),
        store.get_acl(key),
        scan(store, key),
        store.watch(key).__aenter__(),
    ):
        with pytest.raises(InvalidKeyError):
            await call


async def test_the_root_lists_but_has_no_record(store: MetadataStore) -> None:
    """Case 20."""
    assert not await store.exists("/")
    await store.put("/a/b", b"")
    await store.put("/c", b"")
    assert await store.exists("/")
    assert await store.get_children("/") == ["a", "c"]
    assert await scan(store, "/") == ["c"]
    with pytest.raises(InvalidKeyError):
        await store.get("/")
    with pytest.raises(InvalidKeyError):
        await store.put("/", b"")


async def test_a_key_with_children_cannot_be_deleted(store: MetadataStore) -> None:
    """Case 10."""
    await store.put("/p", b"")
    await store.put("/p/q", b"")
    with pytest.raises(KeyHasChildrenError):
        await store.delete("/p")
    await store.delete("/p/q")
    await store.delete("/p")


async def test_a_delete_with_another_version_changes_nothing(store: MetadataStore) -> None:
    """Case 11."""
    stat = await store.put("/a", b"")
    with pytest.raises(BadVersionError):
        await store.delete("/a", version=stat.version + 1)
    assert await store.exists("/a")
    await store.delete("/a", version=stat.version)
    assert not await store.exists("/a")


async def test_three_workers_count_to_a_hundred_by_compare_and_set(backend: Backend) -> None:
    """Case 18."""
    first = await backend.open()
    await first.put("/counter", b"0")
    successes = 0

    async def work(store: MetadataStore) -> None:
        nonlocal successes
        while True:
            record = await store.get("/counter")
            assert record is not None
            if record.value == b"100":
                return
            try:
                await store.put("/counter", b"%d" % (int(record.value) + 1), version=record.version)
                successes += 1
            except BadVersionError:
                await store.sync()

    second = await backend.open()
    await second.sync()
    async with asyncio.TaskGroup() as tasks:
        for worker in (first, first, second):
            tasks.create_task(work(worker))
    assert successes == 100


async def test_exactly_one_of_two_creates_and_of_two_deletes_wins(backend: Backend) -> None:
    """Case 19."""
    stores = [await backend.open(), await backend.open()]

    async def outcome(call: Awaitable[object]) -> str:
        try:
            await call
        except (KeyExistsError, NoSuchKeyError):
            return "lost"
        return "won"

    async with asyncio.TaskGroup() as tasks:
        creates = [
            tasks.create_task(outcome(store.put("/a", b"", version=NOT_EXISTS))) for store in stores
        ]
    assert sorted(task.result() for task in creates) == ["lost", "won"]
    async with asyncio.TaskGroup() as tasks:
        deletes = [tasks.create_task(outcome(store.delete("/a"))) for store in stores]
    assert sorted(task.result() for task in deletes) == ["lost", "won"]


async def test_another_session_sees_a_write_after_sync(backend: Backend) -> None:
    first, second = await backend.open(), await backend.open()
    await first.put("/a/b", b"1")
    await second.sync()
    assert await second.get_children("/a") == ["b"]
    await second.put("/a/b", b"2")
    await first.sync()
    record = await first.get("/a/b")
    assert record is not None
    assert record.value == b"2"


async def test_what_was_seen_as_absent_is_seen_when_another_session_makes_it(
    backend: Backend,
) -> None:
    """Cases 22, 23."""
    first, second = await backend.open(), await backend.open()
    assert await first.get_children("/p") == []
    assert not await first.exists("/p/b")
    await first.put("/p", b"")
    await first.delete("/p")
    await second.put("/p/b", b"")
    await first.sync()
    assert await first.exists("/p/b")
    assert not await first.exists("/p/unrelated")
    assert await first.get_children("/p") == ["b"]
    await second.put("/p/c", b"")
    await first.sync()
    assert await first.get_children("/p") == ["b", "c"]


async def test_records_outlive_the_store_object(backend: Backend) -> None:
    """Case 17."""
    async with backend.session() as store:
        stat = await store.put("/a/b/c", b"x")
    async with backend.session() as store:
        await assert_holds(store, "/a/b/c", b"x", stat)
        assert (await store.put("/a/b/c", b"y")).version > stat.version


async def test_every_call_on_a_closed_store_fails(backend: Backend) -> None:
    """Cases 21, 37."""
    async with backend.session() as store:
        await store.put("/a", b"")
    for call in (
        store.get("/a"),
        store.exists("/a"),
        store.get_children("/"),
        store.put("/a", b""),
        store.put("/a", b"", sequential=True),
        store.delete("/a"),
        store.delete_recursive("/a"),
        store.transaction([Check("/a", 1)]),
        store.sync(),
        scan(store, "/"),
        store.watch("/").__aenter__(),
        store.session_events().__aenter__(),
    ):
        with pytest.raises(MetadataClosedError):
            await call


async def test_closing_one_session_leaves_the_other(backend: Backend) -> None:
    """Case 29."""
    store = await backend.open()
    async with backend.session() as other:
        await other.put("/a", b"")
    await store.sync()
    assert await store.exists("/a")
    await store.put("/b", b"")


@pytest.mark.parametrize("version", [-2, -100])
async def test_numbers_that_are_no_versions_are_refused(store: MetadataStore, version: int) -> None:
    with pytest.raises(BadRequestError):
        await store.put("/a", b"", version=version)
    with pytest.raises(BadRequestError):
        await store.delete("/a", version=version)
    with pytest.raises(BadRequestError):
        await store.delete("/a", version=NOT_EXISTS)
    with pytest.raises(BadRequestError):
        await store.transaction([Check("/a", version)])


# ---- sequential records


async def test_sequential_records_are_numbered_upwards(store: MetadataStore) -> None:
    """Case 24."""
    first = await store.put("/q/n-", b"1", version=NOT_EXISTS, sequential=True)
    second = await store.put("/q/n-", b"2", sequential=True)
    numbers = [stat.key.removeprefix("/q/n-") for stat in (first, second)]
    assert all(len(number) >= 10 and number.isdigit() for number in numbers)
    assert int(numbers[0]) < int(numbers[1])
    for stat, value in ((first, b"1"), (second, b"2")):
        assert stat.first_version
        await assert_holds(store, stat.key, value, stat)
    assert not await store.exists("/q/n-")


async def test_ten_sequential_puts_at_once_make_ten_records(store: MetadataStore) -> None:
    """Case 34."""
    async with asyncio.TaskGroup() as tasks:
        puts = [
            tasks.create_task(store.put("/q/n-", b"%d" % i, sequential=True)) for i in range(10)
        ]
    assert len({put.result().key for put in puts}) == 10
    assert len(await store.get_children("/q")) == 10


async def test_a_number_is_never_given_twice(backend: Backend) -> None:
    """Cases 24, 41."""
    async with backend.session() as store:
        last = await store.put("/q/n-", b"", sequential=True)
        await store.delete(last.key)
        again = await store.put("/q/n-", b"", sequential=True)
        assert again.key > last.key
        await store.delete(again.key)
        # An empty parent may be cleared away; that must not begin the numbers anew.
        await store.put("/q/other", b"")
    async with backend.session() as store:
        assert (await store.put("/q/n-", b"", sequential=True)).key > again.key


async def test_sequential_records_may_be_ephemeral(backend: Backend) -> None:
    observer = await backend.open()
    async with backend.session() as owner:
        stat = await owner.put("/q/n-", b"", ephemeral=True, sequential=True)
        assert stat.ephemeral
        assert stat.created_by_self
        await observer.sync()
        assert await observer.get_children("/q") == [stat.key.removeprefix("/q/")]
    await observer.sync()
    assert await observer.get_children("/q") == []


async def test_a_sequential_record_has_no_version_before(store: MetadataStore) -> None:
    with pytest.raises(BadRequestError):
        await store.put("/q/n-", b"", version=3, sequential=True)
    with pytest.raises(InvalidKeyError):
        await store.put("/" + "k" * (KEY_SIZE_BYTES_MAX - 5), b"", sequential=True)
    assert await store.get_children("/") == []


# ---- access control


async def test_access_control_is_refused_where_there_is_none(backend: Backend) -> None:
    store = await backend.open()
    if backend.differs(Difference.ACCESS_CONTROL):
        return
    everybody = Acl("world", "anyone", frozenset({"read"}))
    stat = await store.put("/a", b"")
    for call in (
        store.put("/b", b"", acl=[everybody]),
        store.get_acl("/a"),
        store.set_acl("/a", [everybody]),
    ):
        with pytest.raises(UnsupportedError, match="only ZooKeeper"):
            await call
    assert await store.get_children("/") == ["a"]
    await assert_holds(store, "/a", b"", stat)


def test_timeless_keeps_everything_else() -> None:
    """The suite compares everything in a state but its times."""
    from bookie.metadata.model import Stat

    stat = Stat("/a", 1, 2, 3, 4, ephemeral=True, created_by_self=False, first_version=True)
    assert timeless(stat) == replace(stat, created_ms=None, modified_ms=None)
