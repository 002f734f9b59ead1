"""Writes whose reply is lost after etcd carried them out, or whose request arrives late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator

import pytest

from bookie.errors import KeyExistsError, MetadataUnavailableError
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.model import NOT_EXISTS, Check, Commit, Delete, Operation, Put, Stat
from bookie.metadata.store import MetadataStore
from tests.conformance.streams import CREATED, DELETED, MODIFIED, next_events, next_item
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Direction, Proxy

ROUNDS = 8
"""What a lost reply carries besides is gRPC's choice; some rounds meet each."""


@pytest.fixture
def links(etcd_server: EtcdServer) -> Iterator[list[Proxy]]:
    """Two ways to one server."""
    with Proxy(etcd_server.member.port) as one, Proxy(etcd_server.member.port) as other:
        yield [one, other]


@pytest.fixture
async def store(links: list[Proxy], etcd_scope: str) -> AsyncIterator[EtcdStore]:
    """Its session is so long that nothing else is under way when a test eats a reply."""
    hosts = [f"127.0.0.1:{link.port}" for link in links]
    async with EtcdStore(hosts, etcd_scope, session_timeout_seconds=300) as found:
        yield found


def _eat(store: EtcdStore, links: list[Proxy]) -> None:
    """Lose the next reply, on whichever way it comes."""
    for link in links:
        link.heal()
    current = store.client.endpoint().address
    (link,) = (link for link in links if current.endswith(f":{link.port}"))
    link.eat_next_reply()


async def test_a_create_that_happened_is_ours(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    """Case 157."""
    async with etcd_observer.watch("/") as changes:
        for i in range(ROUNDS):
            await store.exists("/")
            _eat(store, links)
            stat = await store.put(f"/k{i}", b"mine", version=NOT_EXISTS)
            (event,) = await next_events(changes)
            assert (event.kind, event.key, event.revision) == (CREATED, f"/k{i}", stat.revision)
            assert stat.first_version
            record = await store.get(f"/k{i}")
            assert record is not None
            assert record.stat == stat
    assert store.client.calls["Txn"] > 2 * ROUNDS


async def test_a_create_that_others_did_first_is_refused(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    for i in range(ROUNDS):
        await etcd_observer.put(f"/k{i}", b"theirs")
        _eat(store, links)
        with pytest.raises(KeyExistsError):
            await store.put(f"/k{i}", b"theirs", version=NOT_EXISTS)


async def test_a_compare_and_set_happens_once(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    stat = await store.put("/counter", b"0")
    async with etcd_observer.watch("/") as changes:
        for i in range(1, ROUNDS):
            _eat(store, links)
            stat = await store.put("/counter", b"%d" % i, version=stat.version)
            (event,) = await next_events(changes)
            assert (event.kind, event.revision) == (MODIFIED, stat.revision)
            assert not stat.first_version


async def test_a_plain_put_happens_once(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    async with etcd_observer.watch("/") as changes:
        for i in range(ROUNDS):
            _eat(store, links)
            stat = await store.put("/k", b"%d" % i)
            (event,) = await next_events(changes)
            assert event.revision == stat.revision
            assert stat.first_version == (i == 0)


async def test_an_ephemeral_put_is_ours(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    for i in range(ROUNDS):
        _eat(store, links)
        stat = await store.put("/e", b"%d" % i, ephemeral=True)
        assert stat.ephemeral
        assert stat.created_by_self
        record = await etcd_observer.get("/e")
        assert record is not None
        assert (record.version, record.ephemeral) == (stat.version, True)


async def test_a_sequential_put_leaves_no_orphan(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    keys = []
    for _ in range(ROUNDS):
        _eat(store, links)
        stat = await store.put("/queue/n-", b"", ephemeral=True, sequential=True)
        keys.append(stat.key.rpartition("/")[2])
    assert await etcd_observer.get_children("/queue") == keys


async def test_a_delete_happens_once(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    for i in range(ROUNDS):
        stat = await store.put("/k", b"")
        async with etcd_observer.watch("/") as changes:
            _eat(store, links)
            await store.delete("/k", version=stat.version if i % 2 else None)
            (event,) = await next_events(changes)
            assert event.kind is DELETED
        assert await etcd_observer.get("/k") is None


async def test_a_transaction_happens_once_and_whole(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    stat = await store.put("/guard", b"")
    await store.put("/old", b"")
    for i in range(ROUNDS):
        async with etcd_observer.watch("/") as changes:
            _eat(store, links)
            operations: list[Operation] = [
                Check("/guard", stat.version),
                Delete("/old"),
                Put("/new", b"%d" % i, NOT_EXISTS),
            ]
            results = await store.transaction(operations)
            commit = await next_item(changes)
            assert isinstance(commit, Commit)
            assert [(e.kind, e.key) for e in commit.events] == [
                (DELETED, "/old"),
                (CREATED, "/new"),
            ]
            assert isinstance(results[2], Stat)
            assert results[2].revision == commit.revision
        await store.transaction([Delete("/new"), Put("/old", b"")])


async def test_a_large_transaction_happens_once(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    """More compares than etcd takes in one Txn."""
    for i in range(2):
        _eat(store, links)
        stats = await store.transaction([Put(f"/a/{n:02}", b"%d" % i) for n in range(100)])
        records = [record async for record in etcd_observer.scan_children("/a")]
        assert [record.version for record in records] == [stat.version for stat in stats if stat]
        _eat(store, links)
        await store.transaction([Delete(f"/a/{n:02}") for n in range(100)])
        assert not await etcd_observer.exists("/a")


async def test_writes_at_once_happen_once_each(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    """Some succeed and some are refused; replies are lost."""
    for i in range(ROUNDS):
        for n in range(10):
            await etcd_observer.put(f"/{i}/taken/{n}", b"theirs")
            await etcd_observer.put(f"/{i}/gone/{n}", b"")
        old = await store.put(f"/{i}/mine", b"", ephemeral=True)
        async with etcd_observer.watch(f"/{i}") as changes:
            _eat(store, links)
            async with asyncio.TaskGroup() as tasks:
                created = [
                    tasks.create_task(store.put(f"/{i}/new/{n}", b"", version=NOT_EXISTS))
                    for n in range(20)
                ]
                refused = [
                    tasks.create_task(_refused(store.put(f"/{i}/taken/{n}", b"", version=-1)))
                    for n in range(10)
                ]
                for n in range(10):
                    tasks.create_task(store.delete(f"/{i}/gone/{n}"))
                kept = tasks.create_task(store.put(f"/{i}/mine", b"plain"))
            assert all(task.result() for task in refused)
            seen = {event.key: event for event in await next_events(changes, 31)}
        for n, task in enumerate(created):
            event, stat = seen[f"/{i}/new/{n}"], task.result()
            assert (event.kind, event.revision) == (CREATED, stat.revision)
            assert stat.first_version
        assert seen[f"/{i}/mine"].revision == kept.result().revision
        assert kept.result().created_by_self
        assert kept.result().version > old.version
        assert await etcd_observer.get_children(f"/{i}") == ["mine", "new", "taken"]


async def _refused(write: Coroutine[None, None, Stat]) -> bool:
    with pytest.raises(KeyExistsError):
        await write
    return True


async def test_a_request_that_arrives_late_does_nothing(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    """It is settled over another way; when the first one heals, etcd refuses what waited there."""
    await store.put("/k", b"before")
    first = store.client.endpoint().address
    slow, fast = sorted(links, key=lambda link: not first.endswith(f":{link.port}"))
    slow.hold(Direction.TO_SERVER)
    stat = await store.put("/k", b"written")
    assert store.client.endpoint().address.endswith(f":{fast.port}")
    later = await etcd_observer.put("/k", b"by another")
    assert stat.revision is not None
    assert later.revision is not None
    async with etcd_observer.watch("/") as changes:
        slow.heal()
        fast.refuse()
        await store.put("/next", b"")  # goes the slow way, behind what waited there
        (event,) = await next_events(changes)
        assert event.key == "/next"
    record = await store.get("/k")
    assert record is not None
    assert record.value == b"by another"


async def test_an_outcome_that_nobody_can_tell_is_said_to_be_unknown(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    await store.put("/k", b"before")
    for link in links:
        link.hold(Direction.TO_CLIENT)
    with pytest.raises(MetadataUnavailableError, match="unknown"):
        await store.put("/k", b"after")
    for link in links:
        link.heal()
    record = await etcd_observer.get("/k")
    assert record is not None
    assert record.value == b"after"
    # The session and its other writes are as good as before.
    assert (await store.put("/k", b"again", version=record.version)).version > record.version


async def test_a_cancelled_write_harms_no_other(
    store: EtcdStore, etcd_observer: MetadataStore, links: list[Proxy]
) -> None:
    for i in range(ROUNDS):
        async with asyncio.TaskGroup() as tasks:
            writes = [tasks.create_task(store.put(f"/{i}/{n}", b"")) for n in range(10)]
            await asyncio.sleep(0)
            for write in writes[::2]:
                write.cancel()
        assert all(write.result().version for write in writes[1::2])
        found = set(await etcd_observer.get_children(f"/{i}"))
        assert found >= {str(n) for n in range(1, 10, 2)}
