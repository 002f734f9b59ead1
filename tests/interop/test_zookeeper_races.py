"""Acts of others between a look at ZooKeeper and the write that rests on it.

The tests hold a store at that moment, by its inner parts, and let another store act.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bookie.cluster.instance import initialize_cluster
from bookie.errors import BadVersionError, BookieError, KeyExistsError, MetadataUnavailableError
from bookie.ledger.catalog.removal import nuke_cluster
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from bookie.metadata.zookeeper.outcome import RECEIPTS_MAX, Receipts
from tests.interop.test_zookeeper_parents import expire, opened
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope

DELETES = 20
"""At once, while the server is away. One after the other they would take so many times as long."""


def _inside(store: ZooKeeperStore) -> Any:
    """The parts of an open store."""
    return store._require_open()


async def _outcome(call: Awaitable[object]) -> object:
    try:
        return await call
    except BookieError as error:
        return error


async def test_a_receipt_that_comes_with_the_timeout_is_given_back() -> None:
    """A loop that is busy hands out a receipt and the timeout of its waiter at once."""
    receipts = Receipts(None)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    names = [await receipts._take(loop.time() + 99) for _ in range(RECEIPTS_MAX)]
    async with asyncio.TaskGroup() as tasks:
        deadline = loop.time() + 0.05
        waiters = [tasks.create_task(_outcome(receipts._take(deadline))) for _ in names]
        await asyncio.sleep(0)
        while loop.time() < deadline + 0.05:
            pass  # a busy loop
        await asyncio.sleep(0)
        for name in names:
            receipts._give_back(name)
    assert all(isinstance(one.result(), MetadataUnavailableError) for one in waiters)
    assert len(receipts._free) == RECEIPTS_MAX


async def test_of_two_creates_on_an_empty_parent_one_succeeds(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Ephemeral records have nodes of their own, which begin with the version of the parent."""
    scope, keys = new_scope(), [f"/k{number}" for number in range(20)]
    async with (
        opened(zookeeper_server.port, scope) as a,
        opened(zookeeper_server.port, scope) as b,
        opened(zookeeper_server.port, scope) as gone,
    ):
        for key in keys:
            await gone.put(f"{key}/child", b"", ephemeral=True)
        await expire(zookeeper_server, gone)
        for key in keys:
            async with asyncio.TaskGroup() as tasks:
                puts = [
                    tasks.create_task(
                        _outcome(store.put(key, b"", version=NOT_EXISTS, ephemeral=True))
                    )
                    for store in (a, b)
                ]
            assert sum(isinstance(put.result(), KeyExistsError) for put in puts) == 1


async def test_a_record_made_anew_is_not_taken_for_the_parent(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Another store removes the parent and creates a record, before ours is put on the parent."""
    scope = new_scope()
    async with (
        opened(zookeeper_server.port, scope) as a,
        opened(zookeeper_server.port, scope) as b,
        opened(zookeeper_server.port, scope) as gone,
    ):
        await gone.put("/k/child", b"", ephemeral=True)
        await expire(zookeeper_server, gone)
        receipts = _inside(a).writer._receipts
        real, calls = receipts.commit, 0

        async def commit(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:  # the first attempt found the node, the second has read it
                await b.put("/k/z", b"")
                await b.delete("/k/z")
                await b.put("/k", b"b", version=NOT_EXISTS)
            return await real(*args)

        receipts.commit = commit
        with pytest.raises(KeyExistsError):
            await a.put("/k", b"a", version=NOT_EXISTS)
        assert calls > 1
        record = await b.get("/k")
        assert record is not None
        assert record.value == b"b"


async def test_a_removal_of_a_parent_takes_no_record(zookeeper_server: ZooKeeperServer) -> None:
    """The empty parent was seen; then others made it a record, deleted that and made it anew."""
    scope = new_scope()
    async with opened(zookeeper_server.port, scope) as a, opened(zookeeper_server.port, scope) as b:
        await a.put("/k/child", b"")
        nodes = _inside(a).parents._nodes
        real, calls = nodes.ask, 0

        async def ask(reads: Iterable[Any], deadline: float) -> Sequence[Any]:
            nonlocal calls
            reads = list(reads)
            found: Sequence[Any] = await real(reads, deadline)
            calls += len(reads) == 2
            if len(reads) == 2 and calls == 1:
                await b.put("/k", b"1")
                await b.delete("/k")
                await b.put("/k", b"precious", version=NOT_EXISTS)
            return found

        nodes.ask = ask
        await a.delete("/k/child")
        assert calls
        assert await b.get("/k") is not None


async def test_a_write_waits_and_hears_of_another_life(zookeeper_server: ZooKeeperServer) -> None:
    """It was planned, and then waited for a receipt while the record was made anew."""
    scope = new_scope()
    async with opened(zookeeper_server.port, scope) as a, opened(zookeeper_server.port, scope) as b:
        old = await a.put("/k", b"old")
        loop, receipts = asyncio.get_running_loop(), _inside(a).receipts
        names = [await receipts._take(loop.time() + 99) for _ in range(RECEIPTS_MAX)]
        async with a.watch("/k") as changes:
            late = loop.create_task(a.put("/k", b"late", version=old.version))
            await asyncio.sleep(0.1)
            await b.delete("/k")
            await b.put("/k", b"new life", version=NOT_EXISTS)
            for _ in range(2):
                await anext(changes)
        receipts._give_back(names[0])
        with suppress(BadVersionError):
            await late
        record = await b.get("/k")
        assert record is not None
        assert record.value == b"new life"


async def test_a_numbered_put_that_waits_for_a_plain_one_keeps_the_parent(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """ZooKeeper's numbers go on only while the parent stays."""
    async with opened(zookeeper_server.port, new_scope()) as store:
        parents, making = _inside(store).parents, asyncio.Event()
        make = parents._make

        async def told(wanted: Mapping[str, bool]) -> None:
            making.set()
            await make(wanted)

        parents._make = told
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(store.put("/q/x", b""))
            await making.wait()
            first = await store.put("/q/item-", b"", sequential=True)
        await store.delete("/q/x")
        await store.delete(first.key)
        assert (await store.put("/q/item-", b"", sequential=True)).key > first.key


async def test_deletes_do_not_wait_one_after_the_other_for_a_server_that_is_away(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """They are done; what is left of them is the removal of their parents."""
    with Proxy(zookeeper_server.port) as proxy:
        async with opened(proxy.port, new_scope()) as store:
            for number in range(DELETES):
                await store.put(f"/p{number}/x", b"")
            inside = _inside(store)
            async with asyncio.TaskGroup() as tasks:
                async with inside.parents._removing:
                    for number in range(DELETES):
                        tasks.create_task(store.delete(f"/p{number}/x"))
                    await asyncio.sleep(1)
                    proxy.refuse()
                    await asyncio.sleep(0.2)
                began = asyncio.get_running_loop().time()
            took = asyncio.get_running_loop().time() - began
            assert took < DELETES / 2 * inside.link.patience_seconds, "one waited for the other"
            proxy.heal()


async def test_a_parent_that_was_left_over_goes_with_a_recursive_delete(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Its last child went with a session."""
    scope = new_scope()
    async with (
        opened(zookeeper_server.port, scope) as store,
        opened(zookeeper_server.port, scope) as gone,
    ):
        await gone.put("/available/child", b"", ephemeral=True)
        await expire(zookeeper_server, gone)
        await store.delete_recursive("/available")
        assert await store.get_children("/") == []


async def test_a_scope_with_a_left_over_parent_can_be_used_again(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """A delete was cut off before it removed the parent; nuke and init do not block each other."""
    async with opened(zookeeper_server.port, new_scope()) as store:
        await initialize_cluster(store)
        await store.put("/cookies/b1", b"")
        parents = _inside(store).parents
        real = parents.remove_empty

        async def cut_off(keys: Iterable[str]) -> None:
            raise asyncio.CancelledError

        parents.remove_empty = cut_off
        with suppress(asyncio.CancelledError):
            await store.delete("/cookies/b1")
        parents.remove_empty = real
        await nuke_cluster(store)
        await initialize_cluster(store)


async def test_a_parent_that_may_not_be_written_is_an_error(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """A sequential put would make the parent stay, which needs the right to write it."""
    from kazoo.client import KazooClient
    from kazoo.security import make_acl

    scope = new_scope()

    def prepare() -> None:
        client = KazooClient(hosts=zookeeper_server.address)
        client.start()
        rights = make_acl("world", "anyone", read=True, create=True, delete=True)
        client.create(scope, b"", acl=[rights], makepath=True)
        client.create(f"{scope}/q", b"\0bookie: parent\0")
        client.stop()
        client.close()

    await asyncio.to_thread(prepare)
    async with opened(zookeeper_server.port, scope) as store, asyncio.timeout(60):
        with pytest.raises(BookieError):
            await store.put("/q/item-", b"", sequential=True)
