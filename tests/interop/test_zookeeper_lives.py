"""Versions of earlier lives of a record on a real ZooKeeper server, which counts anew in each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError

from bookie.errors import BadVersionError, ConfigurationError, NoSuchKeyError
from bookie.metadata import zookeeper_births
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore, Put, SessionEvent
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.metadata.zookeeper_outcome import Committed
from tests.conformance.streams import CREATED, DELETED, next_changes, next_item
from tests.servers.proxy import Direction, Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope

ROUNDS = 20


class Net:
    """A store behind a proxy, and two others."""

    def __init__(self, stores: list[MetadataStore], link: Proxy) -> None:
        self.first, self.second, self.third = stores
        self.link = link


@pytest.fixture
async def net(zookeeper_server: ZooKeeperServer) -> AsyncIterator[Net]:
    async with AsyncExitStack() as stack:
        link = stack.enter_context(Proxy(zookeeper_server.port))
        scope, stores = new_scope(), []
        for port in (link.port, zookeeper_server.port, zookeeper_server.port):
            uri = f"zk://127.0.0.1:{port}{scope}"
            store = await stack.enter_async_context(open_store(uri, session_timeout_seconds=12))
            stores.append(store)
            await store.sync()
        yield Net(stores, link)


async def version_of(store: MetadataStore, key: str) -> int:
    record = await store.get(key)
    assert record is not None
    return record.version


async def one_of(*writes: Awaitable[object]) -> None:
    """One of the writes at once is done; the others hear that they come too late."""
    late = 0

    async def attempt(write: Awaitable[object]) -> None:
        nonlocal late
        try:
            await write
        except (BadVersionError, NoSuchKeyError):
            late += 1

    async with asyncio.TaskGroup() as tasks:
        for write in writes:
            tasks.create_task(attempt(write))
    assert late == len(writes) - 1


async def is_refused(write: Awaitable[object]) -> bool:
    """Whether a write finds that its version is not the record's."""
    try:
        await write
    except BadVersionError:
        return True
    return False


async def test_one_of_two_takes_over(net: Net) -> None:
    for number in range(ROUNDS):
        key = f"/lock-{number}"
        await net.third.put(key, b"", ephemeral=True)
        one, two = await version_of(net.first, key), await version_of(net.second, key)
        take_overs = (
            net.first.put(key, b"one", version=one, ephemeral=True),
            net.second.put(key, b"two", version=two, ephemeral=True),
        )
        await one_of(*take_overs)


async def test_a_take_over_leaves_the_old_owner_without_a_version(net: Net) -> None:
    for number in range(ROUNDS):
        key = f"/lock-{number}"
        await net.third.put(key, b"", ephemeral=True)
        for _ in range(number % 3):
            await net.third.put(key, b"", ephemeral=True)
        version = await version_of(net.second, key)
        assert version == await version_of(net.third, key)
        take_over = net.second.put(key, b"two", version=version, ephemeral=True)
        if number % 2:
            await one_of(take_over, net.third.put(key, b"3", version=version))
        else:
            await one_of(take_over, net.third.delete(key, version=version))


async def test_a_write_begun_in_an_outage_looks_again(net: Net) -> None:
    mine = await net.first.put("/lock", b"first")
    async with net.first.session_events() as events:
        net.link.refuse()
        assert await next_item(events) is SessionEvent.CONNECTION_LOST
    await net.second.delete("/lock")
    theirs = await net.second.put("/lock", b"second", ephemeral=True)
    async with asyncio.TaskGroup() as tasks:
        release = tasks.create_task(is_refused(net.first.delete("/lock", version=mine.version)))
        await asyncio.sleep(0.05)
        net.link.heal()
    assert release.result()
    assert await version_of(net.third, "/lock") == theirs.version


async def test_a_write_that_was_lost_is_made_anew_of_what_there_is(net: Net) -> None:
    """It never arrived; when it is made again, another life has the version."""
    mine = await net.first.put("/lock", b"first")
    net.link.hold(Direction.TO_SERVER)
    async with asyncio.TaskGroup() as tasks:
        release = tasks.create_task(is_refused(net.first.delete("/lock", version=mine.version)))
        await asyncio.sleep(0.1)
        await net.second.delete("/lock")
        theirs = await net.second.put("/lock", b"second", ephemeral=True)
        net.link.reset()
        net.link.heal()
    assert release.result()
    assert await version_of(net.third, "/lock") == theirs.version


async def test_what_an_event_ended_is_not_believed(net: Net) -> None:
    """The answer to a read and the event about the deletion arrive in one piece."""
    old = await net.second.put("/k", b"old")
    async with net.first.watch("/") as changes:
        net.link.hold(Direction.TO_CLIENT)
        async with asyncio.TaskGroup() as tasks:
            read = tasks.create_task(net.first.get("/k"))
            await asyncio.sleep(0.2)
            await net.second.delete("/k")
            await asyncio.sleep(0.1)
            net.link.heal()
        record = read.result()
        assert record is not None
        assert record.version == old.version
        assert await next_changes(changes) == [(DELETED, "/k")]
        new = await net.second.put("/k", b"new")
        assert await next_changes(changes) == [(CREATED, "/k")]
    with pytest.raises(BadVersionError):
        await net.first.put("/k", b"overwritten", version=old.version)
    assert await version_of(net.third, "/k") == new.version


async def test_a_number_given_again_is_another_life(net: Net) -> None:
    """A queue is removed with all that was in it, and begun anew by others."""
    await net.first.put("/queue", b"")
    first = await net.first.put("/queue/n-", b"old", sequential=True)
    await net.second.sync()
    net.link.hold(Direction.TO_CLIENT)
    await net.second.delete_recursive("/queue")
    await net.second.put("/queue", b"")
    again = await net.second.put("/queue/n-", b"new", sequential=True)
    assert again.key == first.key
    async with asyncio.TaskGroup() as tasks:
        late = tasks.create_task(is_refused(net.first.delete(first.key, version=first.version)))
        await asyncio.sleep(0.1)
        net.link.heal()
    assert late.result()
    assert await version_of(net.third, again.key) == again.version


@pytest.mark.parametrize("is_own", [False, True])
async def test_an_owner_who_comes_between_reading_and_writing_stays(
    net: Net, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """A lease ends and another begins while somebody takes it over, or writes what was its own."""
    former = net.first if is_own else net.third
    stat = await former.put("/lock", b"old", ephemeral=True)
    await net.first.sync()
    assert isinstance(net.first, ZooKeeperStore)
    receipts = net.first._require_open().receipts
    commit = receipts.commit

    async def commit_late(*plan: Any) -> Committed:
        monkeypatch.undo()
        await former.delete("/lock")
        await net.second.put("/lock", b"new", ephemeral=True)
        return await commit(*plan)

    monkeypatch.setattr(receipts, "commit", commit_late)
    version = None if is_own else stat.version
    assert await is_refused(net.first.put("/lock", b"stolen", version=version, ephemeral=True))
    await net.third.sync()
    record = await net.third.get("/lock")
    assert record is not None
    assert record.value == b"new"


async def test_a_scope_in_another_one_is_made_anew(zookeeper_server: ZooKeeperServer) -> None:
    """Its own node is born again as well, and with it the numbers at its top."""
    scope = new_scope()
    with Proxy(zookeeper_server.port) as link:
        async with (
            open_store(f"zk://{zookeeper_server.address}{scope}") as above,
            open_store(f"zk://127.0.0.1:{link.port}{scope}/b") as late,
            open_store(f"zk://{zookeeper_server.address}{scope}/b") as other,
        ):
            first = await late.put("/n-", b"old", sequential=True)
            await above.sync()
            link.hold(Direction.TO_CLIENT)
            await above.delete_recursive("/b")
            again = await other.put("/n-", b"new", sequential=True)
            assert again.key == first.key
            async with asyncio.TaskGroup() as tasks:
                deleted = tasks.create_task(
                    is_refused(late.delete(first.key, version=first.version))
                )
                await asyncio.sleep(0.1)
                link.heal()
            assert deleted.result()
            assert await version_of(other, again.key) == again.version


@pytest.fixture
async def client(zookeeper_server: ZooKeeperServer) -> AsyncIterator[KazooClient]:
    found = KazooClient(hosts=zookeeper_server.address)
    await asyncio.to_thread(found.start)
    yield found
    await asyncio.to_thread(found.stop)
    found.close()


async def test_nobody_may_delete_counters(net: Net, client: KazooClient) -> None:
    """Others would begin at 0, and come to numbers that somebody knows."""
    await net.first.put("/k", b"")
    with pytest.raises(NotEmptyError):
        await asyncio.to_thread(client.delete, zookeeper_births.BASE)
    with pytest.raises(NoAuthError):
        await asyncio.to_thread(client.delete, f"{zookeeper_births.BASE}/0000")


async def test_counters_that_are_missing_are_made(
    net: Net, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, also where the node above them is there, and what was known of them is not used
    again."""
    base = new_scope()
    await asyncio.to_thread(client.create, base)
    monkeypatch.setattr(zookeeper_births, "BASE", base)
    assert isinstance(net.first, ZooKeeperStore)
    receipts = net.first._require_open().receipts
    commit, commits = receipts.commit, 0

    async def count(*plan: Any) -> Committed:
        nonlocal commits
        commits += 1
        return await commit(*plan)

    monkeypatch.setattr(receipts, "commit", count)
    await net.first.transaction([Put(f"/{number}", b"") for number in range(100)])
    assert commits <= 3
    stat = await net.first.put("/0", b"")
    for _ in range(10):
        await net.second.delete("/0")
        await net.second.put("/0", b"")
    await net.first.sync()
    stat = await net.first.put("/0", b"")

    def wipe() -> None:
        for name in client.get_children(base):
            client.delete(f"{base}/{name}")

    await asyncio.to_thread(wipe)
    for _ in range(3):  # refused, made, and then known
        stat = await net.first.put("/0", b"", version=stat.version)
    commits = 0
    for _ in range(10):
        stat = await net.first.put("/0", b"", version=stat.version)
    assert commits == 10


@pytest.mark.parametrize("scope", ["/.bookie", "/.bookie/births", "/.bookie/below"])
def test_a_scope_cannot_be_where_bookie_keeps_its_own(scope: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot hold a cluster"):
        open_store(f"zk://127.0.0.1:1{scope}")
