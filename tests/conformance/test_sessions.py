"""Ephemeral records and the sessions they belong to: owners, take-over, expiry, outages."""

from __future__ import annotations

import asyncio

import pytest

from bookie.errors import (
    BadVersionError,
    InvalidKeyError,
    KeyExistsError,
    KeyHasChildrenError,
    MetadataClosedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.metadata.model import Resync
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.streams import (
    CREATED,
    DELETED,
    MODIFIED,
    assert_holds,
    next_changes,
    next_item,
    timeless,
)


async def test_an_ephemeral_record_ends_with_its_session(backend: Backend) -> None:
    watcher = await backend.open()
    async with backend.session() as owner:
        stat = await owner.put("/e/1", b"x", ephemeral=True)
        await owner.put("/p", b"x")
        assert stat.ephemeral
        assert stat.created_by_self
        await assert_holds(owner, "/e/1", b"x", stat)
        await watcher.sync()
        seen = await watcher.get("/e/1")
        assert seen is not None
        assert seen.ephemeral
        assert not seen.created_by_self
        assert (seen.version, seen.stat.revision) == (stat.version, stat.revision)
    await watcher.sync()
    assert not await watcher.exists("/e")
    assert await watcher.exists("/p")


async def test_who_writes_again_at_once_does_not_keep_a_session_from_beginning(
    backend: Backend,
) -> None:
    """A write that is refused lets others run: nothing here pauses between two of them."""
    store = await backend.open(session_timeout_seconds=3.0)
    await backend.expire(store)
    while True:
        try:
            await store.put("/a", b"")
        except (SessionLostError, MetadataUnavailableError):
            continue
        break
    assert await store.exists("/a")


async def test_a_plain_put_never_changes_whose_record_it_is(backend: Backend) -> None:
    observer = await backend.open()
    async with backend.session() as owner:
        first = await owner.put("/e", b"1", ephemeral=True)
        await observer.sync()
        second = await observer.put("/e", b"2", version=first.version)
        assert second.ephemeral
        assert not second.created_by_self
        await observer.put("/e", b"3")
        await owner.sync()
        record = await owner.get("/e")
        assert record is not None
        assert record.version > second.version
        assert (record.value, record.ephemeral, record.created_by_self) == (b"3", True, True)
        assert not record.stat.first_version
        await owner.put("/e", b"4", ephemeral=True)
    await observer.sync()
    assert not await observer.exists("/e")


async def test_a_persistent_record_never_turns_ephemeral(store: MetadataStore) -> None:
    stat = await store.put("/a", b"")
    for expected in (None, stat.version):
        with pytest.raises(KeyExistsError):
            await store.put("/a", b"", version=expected, ephemeral=True)
    await assert_holds(store, "/a", b"", stat)


async def test_a_foreign_ephemeral_record_is_taken_over_only_by_its_version(
    backend: Backend,
) -> None:
    """Case 83."""
    taker = await backend.open()
    async with backend.session() as owner:
        stat = await owner.put("/e", b"1", ephemeral=True)
        await taker.sync()
        with pytest.raises(BadVersionError):
            await taker.put("/e", b"2", ephemeral=True)
        with pytest.raises(BadVersionError):
            await taker.put("/e", b"2", version=stat.version + 1, ephemeral=True)
        taken = await taker.put("/e", b"2", version=stat.version, ephemeral=True)
        assert taken.ephemeral
        assert taken.created_by_self
        assert taken.revision is not None
        assert stat.revision is not None
        assert taken.revision > stat.revision
    await taker.sync()
    record = await taker.get("/e")
    assert record is not None
    assert (record.value, timeless(record.stat)) == (b"2", timeless(taken))
    await taker.delete("/e")


async def test_a_takeover_is_seen_as_one_modification(backend: Backend) -> None:
    owner, taker = await backend.open(), await backend.open()
    stat = await owner.put("/e", b"1", ephemeral=True)
    await taker.sync()
    async with taker.watch("/e") as changes:
        await taker.put("/e", b"2", version=stat.version, ephemeral=True)
        await taker.put("/e", b"3")
        assert await next_changes(changes, 2) == [(MODIFIED, "/e"), (MODIFIED, "/e")]


async def test_an_ephemeral_record_has_no_children(store: MetadataStore) -> None:
    await store.put("/e", b"", ephemeral=True)
    for key in ("/e/a", "/e/a/b"):
        with pytest.raises(InvalidKeyError):
            await store.put(key, b"")
    await store.put("/p/q", b"")
    with pytest.raises(KeyHasChildrenError):
        await store.put("/p", b"", ephemeral=True)


async def test_an_expired_session_loses_its_records_and_gets_a_new_session(
    backend: Backend,
) -> None:
    """Case 65."""
    store, observer = await backend.open(session_timeout_seconds=3), await backend.open()
    await store.put("/e", b"", ephemeral=True)
    await store.put("/p", b"")
    await observer.sync()
    async with store.session_events() as events, observer.watch("/") as changes:
        await backend.expire(store)
        assert [await next_item(events) for _ in EXPIRY_EVENTS] == list(EXPIRY_EVENTS)
        assert await next_changes(changes) == [(DELETED, "/e")]
        await store.put("/e", b"again", ephemeral=True)
        assert await next_changes(changes) == [(CREATED, "/e")]
    record = await store.get("/e")
    assert record is not None
    assert record.created_by_self
    assert await observer.exists("/p")


async def test_many_ephemeral_records_end_together(backend: Backend) -> None:
    observer = await backend.open()
    async with backend.session() as owner:
        for i in range(30):
            await owner.put(f"/e/{i:02}", b"", ephemeral=True)
        await observer.sync()
        assert len(await observer.get_children("/e")) == 30
    await observer.sync()
    assert await observer.get_children("/e") == []


# ---- outages


async def test_a_short_outage_is_over_when_it_is_over(cut_off_backend: Backend) -> None:
    """Cases 26, 63."""
    backend = cut_off_backend
    store = await backend.open(session_timeout_seconds=10)
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, store.watch("/") as changes:
        await backend.disconnect(store)
        assert await next_item(events) is SessionEvent.CONNECTION_LOST
        with pytest.raises(MetadataUnavailableError):
            await store.exists("/e")
        await backend.reconnect(store)
        assert await next_item(events) is SessionEvent.RECONNECTED
        record = await store.get("/e")
        assert record is not None
        assert record.created_by_self
        await store.put("/after", b"")
        seen = await next_item(changes)
        while isinstance(seen, Resync):
            seen = await next_item(changes)
        assert [(event.kind, event.key) for event in seen.events] == [(CREATED, "/after")]


async def test_a_long_outage_costs_the_session(cut_off_backend: Backend) -> None:
    """Case 64."""
    backend = cut_off_backend
    store, observer = await backend.open(session_timeout_seconds=1), await backend.open()
    await store.put("/e", b"", ephemeral=True)
    await observer.sync()
    async with store.session_events() as events, observer.watch("/e") as changes:
        await backend.disconnect(store)
        assert await next_item(events) is SessionEvent.CONNECTION_LOST
        assert await next_changes(changes) == [(DELETED, "/e")]
        assert await next_item(events) is SessionEvent.SESSION_LOST
        await backend.reconnect(store)
        assert await next_item(events) is SessionEvent.RECONNECTED
        assert await next_item(events) is SessionEvent.SESSION_REESTABLISHED
    assert not await store.exists("/e")
    await store.put("/e", b"", ephemeral=True)


async def test_a_session_is_not_certain_while_the_store_is_away(
    cut_off_backend: Backend,
) -> None:
    backend = cut_off_backend
    store = await backend.open(session_timeout_seconds=10)
    async with store.session_events() as events:
        certain = [store.is_session_certain]
        await backend.disconnect(store)
        assert await next_item(events) is SessionEvent.CONNECTION_LOST
        certain.append(store.is_session_certain)
        await backend.reconnect(store)
        assert await next_item(events) is SessionEvent.RECONNECTED
        certain.append(store.is_session_certain)
    assert certain == [True, False, True]


# ---- the life of a store object


async def test_closing_the_store_ends_its_watches(backend: Backend) -> None:
    """Case 21."""
    async with backend.session() as store:
        watch = store.watch("/")
        changes = await watch.__aenter__()
        events_watch = store.session_events()
        events = await events_watch.__aenter__()
        await store.put("/a", b"")
        assert await next_changes(changes) == [(CREATED, "/a")]
    with pytest.raises(MetadataClosedError):
        await next_item(changes)
    with pytest.raises(MetadataClosedError):
        await next_item(events)
    await watch.__aexit__(None, None, None)
    await events_watch.__aexit__(None, None, None)


async def test_an_error_in_the_body_passes_through_the_store(backend: Backend) -> None:
    with pytest.raises(NoSuchKeyError):
        async with backend.session() as store:
            await store.delete("/nothing")


async def test_a_cancelled_body_passes_its_cancellation_on(backend: Backend) -> None:
    store = await backend.open()
    entered = asyncio.Event()

    async def body() -> None:
        async with backend.session() as inner:
            await inner.put("/e", b"", ephemeral=True)
            entered.set()
            async with inner.watch("/") as changes:
                await anext(changes)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body())
        await entered.wait()
        task.cancel()
    assert task.cancelled()
    await store.sync()
    assert not await store.exists("/e")
