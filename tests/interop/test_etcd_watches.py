"""Watches on real etcd over broken links, compactions and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.etcd.client import EtcdEndpoint
from bookie.metadata.etcd.watch import EtcdWatch
from bookie.metadata.model import Change, Commit, Put, Resync
from bookie.metadata.store import MetadataStore
from tests.conformance.streams import CREATED, DELETED, next_changes, next_events, next_item
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Direction, Proxy


@pytest.fixture
async def store(etcd_link: Proxy, etcd_scope: str) -> AsyncIterator[EtcdStore]:
    async with EtcdStore(
        [f"127.0.0.1:{etcd_link.port}"], etcd_scope, session_timeout_seconds=6
    ) as found:
        yield found


async def test_a_reconnection_without_changes_reads_nothing(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """Case 63; the next change is seen as if nothing had happened."""
    await etcd_observer.put("/before", b"")
    async with store.watch("/") as changes:
        reads = store.client.calls["Range"]
        streams = store.client.calls["Watch"]
        for i in range(5):
            etcd_link.reset()
            await etcd_observer.put(f"/{i}", b"")
            assert await next_changes(changes) == [(CREATED, f"/{i}")]
        assert store.client.calls["Watch"] > streams
        assert store.client.calls["Range"] == reads


async def test_a_watch_outlives_a_connection_that_nobody_answers(
    etcd_scope: str, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """Its stream is given up before gRPC could send anything of it."""
    endpoints = [f"127.0.0.1:{etcd_link.port}"]
    async with (
        EtcdStore(endpoints, etcd_scope, session_timeout_seconds=3) as store,
        store.watch("/") as changes,
    ):
        etcd_link.hold()
        etcd_link.reset()
        await asyncio.sleep(3 * store.client.attempt_seconds)
        await etcd_observer.put("/meanwhile", b"")
        etcd_link.heal()
        assert await next_changes(changes) == [(CREATED, "/meanwhile")]


async def test_changes_during_an_outage_are_seen_after_it(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    async with store.watch("/a") as changes:
        await etcd_observer.put("/a/0", b"")
        assert await next_changes(changes) == [(CREATED, "/a/0")]
        etcd_link.refuse()
        for i in range(1, 50):
            await etcd_observer.put(f"/a/{i}", b"")
            await etcd_observer.put(f"/b/{i}", b"")
        await etcd_observer.transaction([Put("/a/x", b""), Put("/b/x", b""), Put("/a/y", b"")])
        etcd_link.heal()
        assert await next_changes(changes, 49) == [(CREATED, f"/a/{i}") for i in range(1, 50)]
        assert await next_changes(changes, 2) == [(CREATED, "/a/x"), (CREATED, "/a/y")]


async def test_a_silent_stream_is_replaced(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """The packets are dropped silently. A stream that stays silent is replaced."""
    async with store.watch("/") as changes:
        await etcd_observer.put("/0", b"")
        assert await next_changes(changes) == [(CREATED, "/0")]
        streams = store.client.calls["Watch"]
        etcd_link.hold(Direction.TO_CLIENT)
        await etcd_observer.put("/1", b"")
        async with asyncio.timeout(60):
            is_replaced = False
            while not is_replaced:
                await asyncio.sleep(0.05)
                is_replaced = store.client.calls["Watch"] > streams
        etcd_link.heal()
        assert await next_changes(changes) == [(CREATED, "/1")]


async def test_a_compaction_during_an_outage_is_a_resync(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy, etcd_server: EtcdServer
) -> None:
    """Case 158."""
    await etcd_observer.put("/gone", b"")
    async with store.watch("/") as changes, store.watch("/p") as others:
        await etcd_observer.put("/0", b"")
        assert await next_changes(changes) == [(CREATED, "/0")]
        etcd_link.refuse()
        await etcd_observer.delete("/gone")
        for i in range(20):
            await etcd_observer.put(f"/p/{i:02}", b"")
        await asyncio.to_thread(etcd_server.member.compact)
        etcd_link.heal()
        assert await next_item(changes) == Resync()
        assert await next_item(others) == Resync()
        assert await store.get("/gone") is None
        assert await store.get_children("/p") == [f"{i:02}" for i in range(20)]
        stat = await etcd_observer.put("/after", b"")
        (event,) = await next_events(changes)
        assert (event.key, event.revision) == ("/after", stat.revision)


async def test_a_compaction_under_a_watch_that_runs_is_not_seen(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_server: EtcdServer
) -> None:
    async with store.watch("/") as changes:
        for i in range(10):
            await etcd_observer.put(f"/{i}", b"")
            assert await next_changes(changes) == [(CREATED, f"/{i}")]
            await asyncio.to_thread(etcd_server.member.compact)


async def test_a_commit_larger_than_a_message_is_whole(
    store: EtcdStore, etcd_observer: MetadataStore
) -> None:
    """etcd sends fragments of it; they are put together."""
    async with store.watch("/") as changes:
        for _ in range(3):
            value = bytes(7 * 1024)
            await etcd_observer.transaction([Put(f"/big/{i:02}", value) for i in range(100)])
            commit = await next_item(changes)
            assert isinstance(commit, Commit)
            assert [event.key for event in commit.events] == [f"/big/{i:02}" for i in range(100)]


async def test_a_backlog_larger_than_a_message_is_whole(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """While nobody listened, more was written than fits into one response."""
    value = bytes(256 * 1024)
    async with store.watch("/") as changes:
        etcd_link.refuse()
        for i in range(40):
            await etcd_observer.put(f"/{i:02}", value)
        etcd_link.heal()
        assert await next_changes(changes, 40) == [(CREATED, f"/{i:02}") for i in range(40)]


async def test_a_restart_of_the_server_costs_no_change(etcd_scope: str) -> None:
    server = EtcdServer()
    try:
        server.start()
        hosts = server.endpoints
        async with EtcdStore(hosts, etcd_scope) as store, store.watch("/") as changes:
            await store.put("/e", b"", ephemeral=True)
            await store.put("/0", b"")
            assert await next_changes(changes, 2) == [(CREATED, "/e"), (CREATED, "/0")]
            for i in range(1, 4):
                await server.member.restart()
                await store.put(f"/{i}", b"")
                assert await next_changes(changes) == [(CREATED, f"/{i}")]
            record = await store.get("/e")
            assert record is not None
            assert record.created_by_self
    finally:
        server.stop()


async def test_a_cluster_that_was_restored_from_a_backup_is_a_resync(etcd_scope: str) -> None:
    """It says that it is the same cluster, and its next revisions were delivered long ago."""
    server = EtcdServer()
    try:
        server.start()
        async with EtcdStore(server.endpoints, etcd_scope) as store, store.watch("/") as changes:
            for i in range(20):
                await store.put(f"/{i}", b"")
            await next_changes(changes, 20)
            await server.member.restore_empty()
            assert isinstance(await next_item(changes), Resync)
            async with (
                EtcdStore(server.endpoints, etcd_scope) as writer,
                store.watch("/") as more,
            ):
                for i in range(3):
                    await writer.put("/after", b"%d" % i)
                    assert [event.key for event in await next_events(changes)] == ["/after"]
                    assert [event.key for event in await next_events(more)] == ["/after"]
    finally:
        server.stop()


@pytest.mark.parametrize("foreign", [0, 1])
async def test_a_compaction_behind_what_was_delivered_costs_nothing(
    store: EtcdStore,
    etcd_observer: MetadataStore,
    etcd_link: Proxy,
    etcd_server: EtcdServer,
    foreign: int,
) -> None:
    """The last commit may be forgotten, as long as nothing behind it is."""
    async with (
        EtcdStore(etcd_server.endpoints, "/foreign") as elsewhere,
        store.watch("/") as changes,
    ):
        for last in ("put", "delete"):
            await etcd_observer.put("/k", b"")
            assert await next_changes(changes) == [(CREATED, "/k")]
            if last == "delete":
                await etcd_observer.delete("/k")
                assert await next_changes(changes) == [(DELETED, "/k")]
            etcd_link.refuse()
            for _ in range(foreign):
                await elsewhere.put("/k", b"")
            await asyncio.to_thread(etcd_server.member.compact)
            etcd_link.heal()
            await etcd_observer.put("/next", last.encode())
            ((_, key),) = await next_changes(changes)
            assert key == "/next"
            await etcd_observer.delete("/next")
            assert await next_changes(changes) == [(DELETED, "/next")]
            if last == "put":
                await etcd_observer.delete("/k")
                assert await next_changes(changes) == [(DELETED, "/k")]


async def test_a_watch_is_sent_what_it_watches(
    store: EtcdStore, etcd_observer: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' writes cost it nothing, and a watch that covers another is shared."""
    sent: list[int] = []
    take = EtcdWatch._take

    def counting(self: EtcdWatch, response: Any, endpoint: EtcdEndpoint) -> None:
        sent.append(response.ByteSize())
        take(self, response, endpoint)

    monkeypatch.setattr(EtcdWatch, "_take", counting)
    async with store.watch("/available") as changes, store.watch("/available/b1") as one:
        assert list(store._followed) == ["/available"]
        for i in range(200):
            await etcd_observer.put(f"/ledgers/{i}", bytes(20_000))
        await etcd_observer.put("/available", b"")
        await etcd_observer.put("/available/b1", b"")
        both = [(CREATED, "/available"), (CREATED, "/available/b1")]
        assert await next_changes(changes, 2) == both
        assert await next_changes(one) == both[1:]
        assert sum(sent) < 10_000
    assert not store._followed


async def test_a_server_that_lags_is_no_restored_one(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """The first position of a stream counts only after a comparison with a read."""
    async with store.watch("/") as changes:
        await etcd_observer.put("/0", b"")
        assert await next_changes(changes) == [(CREATED, "/0")]
        (followed,) = store._followed.values()
        watch, reads = followed.watch, store.client.calls["Range"]
        watch._seen = replace(watch._seen, revision=watch._seen.revision + 1)
        etcd_link.reset()
        await etcd_observer.put("/1", b"")
        assert await next_changes(changes) == [(CREATED, "/1")]
        assert store.client.calls["Range"] <= reads + 1


async def test_a_resumed_watch_equals_the_history(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """Random cuts while four sessions' worth of writes go on: every commit once, in order."""
    seen: list[int] = []
    written: list[int] = []

    async def follow(changes: AsyncIterator[Change]) -> None:
        while len(seen) < 400:
            change = await next_item(changes)
            assert isinstance(change, Commit)
            assert change.revision is not None
            seen.append(change.revision)

    async def write() -> None:
        for i in range(400):
            stat = await etcd_observer.put(f"/{i % 7}", b"%d" % i)
            assert stat.revision is not None
            written.append(stat.revision)
            if i % 40 == 20:
                etcd_link.reset()

    async with store.watch("/") as changes, asyncio.TaskGroup() as tasks:
        tasks.create_task(follow(changes))
        tasks.create_task(write())
    assert seen == written


async def test_a_neighbour_with_the_same_beginning_is_not_seen(etcd_server: EtcdServer) -> None:
    """A store of `/bk` leaves `/bk-2` and `/bk/…` of another store alone."""
    uri = "/" + etcd_server.uri().rpartition("/")[2]
    hosts = etcd_server.endpoints
    async with EtcdStore(hosts, uri) as ours, EtcdStore(hosts, f"{uri}-2") as near:
        async with ours.watch("/") as changes:
            await near.put("/a", b"theirs")
            await near.put("/e", b"theirs", ephemeral=True)
            assert await ours.get_children("/") == []
            assert not await ours.exists("/")
            assert [record async for record in ours.scan_children("/")] == []
            await ours.put("/a", b"ours")
            await ours.delete_recursive("/")
            assert await next_changes(changes, 2) == [(CREATED, "/a"), (DELETED, "/a")]
        assert await near.get_children("/") == ["a", "e"]
