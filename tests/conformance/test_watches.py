"""Watches: every change once, in order, from entering the context on."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from bookie.errors import BadVersionError, NoSuchKeyError
from bookie.metadata.model import Check, Commit, Delete, Put, Resync
from bookie.metadata.store import MetadataStore
from bookie.metadata.watches import Subscription
from tests.conformance.backends import Backend, Difference
from tests.conformance.streams import (
    CREATED,
    DELETED,
    MODIFIED,
    next_changes,
    next_events,
    next_item,
)


async def test_a_watch_sees_each_change_once_and_in_order(store: MetadataStore) -> None:
    """Case 13."""
    async with store.watch("/k") as changes:
        stats = [await store.put("/k", b"1"), await store.put("/k", b"2")]
        await store.put("/other", b"")
        await store.put("/kk", b"")
        stats.append(await store.put("/k/xx", b""))
        await store.delete("/k/xx")
        events = await next_events(changes, 4)
    assert [(event.kind, event.key) for event in events] == [
        (CREATED, "/k"),
        (MODIFIED, "/k"),
        (CREATED, "/k/xx"),
        (DELETED, "/k/xx"),
    ]
    revisions = [event.revision for event in events]
    if revisions[0] is not None:
        assert revisions[:3] == [stat.revision for stat in stats]
        assert revisions == sorted({revision or 0 for revision in revisions})


async def test_what_triggers_a_watch(backend: Backend) -> None:
    """The table of ZooKeeper's lecture: an event for each write, at the record and above it only.

    A create, a write and a delete each trigger the watch on the record and those above it. Its
    siblings and the records below stay silent. A read or a refused write triggers none.
    """
    store = await backend.open()
    await store.put("/a/b", b"")
    async with (
        store.watch("/a") as above,
        store.watch("/a/b") as at,
        store.watch("/a/b/c") as below,
        store.watch("/a/bb") as beside,
    ):
        await store.put("/a/b", b"1")
        await store.put("/a/new", b"")
        await store.delete("/a/b")
        await store.put("/a/b", b"2")
        await store.get("/a/b")
        await store.get_children("/a")
        with pytest.raises(BadVersionError):
            await store.put("/a/b", b"", version=10**6)
        await store.put("/a/b/c", b"")
        await store.put("/a/bb", b"")
        at_record = [(MODIFIED, "/a/b"), (DELETED, "/a/b"), (CREATED, "/a/b"), (CREATED, "/a/b/c")]
        assert await next_changes(at, 4) == at_record
        assert await next_changes(above, 6) == [
            at_record[0],
            (CREATED, "/a/new"),
            *at_record[1:],
            (CREATED, "/a/bb"),
        ]
        assert await next_changes(below) == [(CREATED, "/a/b/c")]
        assert await next_changes(beside) == [(CREATED, "/a/bb")]


async def test_a_watch_sees_a_transaction_as_one_change(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    await store.put("/w/old", b"")
    await other.sync()
    async with other.watch("/w") as changes, other.watch("/x") as elsewhere:
        stats = await store.transaction(
            [Put("/w/1", b""), Put("/x/1", b""), Delete("/w/old"), Put("/w/0", b"")]
        )
        if backend.differs(Difference.COMMITS_SPLIT):
            events = await next_events(changes, 3)
        else:
            change = await next_item(changes)
            assert isinstance(change, Commit)
            events = list(change.events)
        assert [(event.kind, event.key) for event in events] == [
            (CREATED, "/w/1"),
            (DELETED, "/w/old"),
            (CREATED, "/w/0"),
        ]
        assert stats[0] is not None
        assert {event.revision for event in events} <= {None, stats[0].revision}
        assert await next_changes(elsewhere) == [(CREATED, "/x/1")]


async def test_a_refused_write_shows_in_no_watch(store: MetadataStore) -> None:
    async with store.watch("/") as changes:
        with pytest.raises(BadVersionError):
            await store.transaction([Put("/a", b""), Check("/b", 5)])
        await store.put("/c", b"")
        assert await next_changes(changes) == [(CREATED, "/c")]


async def test_a_watch_begins_when_it_is_entered(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    async with other.watch("/"):
        await store.put("/before", b"")
        await other.sync()
        async with other.watch("/") as changes:
            await store.put("/after", b"")
            assert await next_changes(changes) == [(CREATED, "/after")]


async def test_a_mirror_of_four_busy_sessions_equals_the_store(
    backend: Backend, is_soak: bool
) -> None:
    """Case 159: a thousand changes, ten thousand in a soak."""
    stores = [await backend.open() for _ in range(4)]
    observer = await backend.open()
    mirror: dict[str, int | None] = {}
    revisions: list[int] = []

    async def work(store: MetadataStore, number: int) -> None:
        for i in range(2500 if is_soak else 250):
            key = f"/m/{(i * 7 + number) % 13}"
            if i % 5 == 4:
                try:
                    await store.delete(key)
                except NoSuchKeyError:
                    continue
            else:
                await store.put(key, b"%d" % i)

    async def all_work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, store in enumerate(stores):
                tasks.create_task(work(store, number))
        await stores[0].sync()
        await stores[0].put("/m/end", b"")

    async with observer.watch("/m") as changes, asyncio.TaskGroup() as tasks:
        tasks.create_task(all_work())
        while "/m/end" not in mirror:
            change = await next_item(changes)
            assert not isinstance(change, Resync)
            revisions += [] if change.revision is None else [change.revision]
            for event in change.events:
                # An event tells whether the record was there before.
                assert (event.key in mirror) == (event.kind is not CREATED)
                if event.kind is DELETED:
                    del mirror[event.key]
                else:
                    mirror[event.key] = event.revision
    assert all(before < after for before, after in pairwise(revisions))
    await observer.sync()
    found = {r.key: r.stat.revision async for r in observer.scan_children("/m")}
    assert mirror.keys() == found.keys()
    if revisions:
        assert mirror == found


async def test_an_observer_reads_what_an_event_told_it(backend: Backend) -> None:
    """Case 72."""
    writer, observer = await backend.open(), await backend.open()
    async with observer.watch("/") as changes:
        for i in range(20):
            stat = await writer.put("/a", b"%d" % i)
            await next_events(changes)
            record = await observer.get("/a")
            assert record is not None
            assert (record.value, record.version) == (b"%d" % i, stat.version)


async def test_what_a_store_tells_it_tells_in_the_loop_of_who_asked(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 16: whatever threads a backend has."""
    push, threads = Subscription.push, set[int]()

    def noting_push(self: Subscription[object], item: object) -> None:
        threads.add(threading.get_ident())
        push(self, item)

    monkeypatch.setattr(Subscription, "push", noting_push)
    store, other = await backend.open(), await backend.open()
    async with store.watch("/") as changes, store.session_events() as events:
        async with asyncio.TaskGroup() as tasks:
            for i in range(20):
                tasks.create_task(other.put(f"/{i}", b""))
        await next_events(changes, 20)
        await backend.expire(store)
        async with asyncio.timeout(60):
            await anext(events)
    assert threads == {threading.get_ident()}
