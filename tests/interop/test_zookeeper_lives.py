"""Versions of earlier lives of a record on a real ZooKeeper server, which counts anew in each.

A writer that has heard of the later life is refused; so is the loser of a take-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

import pytest

from bookie.errors import BadVersionError, ConfigurationError, NoSuchKeyError
from bookie.metadata.connect import open_store
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
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
    """True if a write finds that its version is not the record's."""
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


@pytest.mark.parametrize("scope", ["/.bookie", "/.bookie/births", "/.bookie/below"])
def test_a_scope_cannot_be_where_bookie_keeps_its_own(scope: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot hold a cluster"):
        open_store(f"zk://127.0.0.1:1{scope}")
