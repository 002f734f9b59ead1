"""What a store leaves on a real ZooKeeper server, and what it sees of what others left there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient

from bookie.metadata.connect import open_store
from bookie.metadata.store import SessionEvent
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.metadata.zookeeper_outcome import HOME, RECEIPTS
from tests.conformance.streams import CREATED, next_changes, next_item
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, expire_session, new_scope


@asynccontextmanager
async def opened(port: int, scope: str, timeout: float = 10) -> AsyncIterator[ZooKeeperStore]:
    uri = f"zk://127.0.0.1:{port}{scope}"
    async with open_store(uri, session_timeout_seconds=timeout) as store:
        assert isinstance(store, ZooKeeperStore)
        yield store


async def names_below(server: ZooKeeperServer, path: str) -> set[str]:
    """What another program sees."""

    def ask() -> set[str]:
        client = KazooClient(hosts=server.address)
        client.start()
        try:
            return set(client.get_children(path))
        finally:
            client.stop()
            client.close()

    return await asyncio.to_thread(ask)


async def expire(server: ZooKeeperServer, store: ZooKeeperStore) -> None:
    session, password = store.credentials
    async with store.session_events() as events:
        await asyncio.to_thread(expire_session, server.address, session, password)
        while await next_item(events) is not SessionEvent.SESSION_REESTABLISHED:
            pass


async def test_who_leaves_leaves_no_empty_parents(zookeeper_server: ZooKeeperServer) -> None:
    scope = new_scope()
    async with opened(zookeeper_server.port, scope) as store:
        for number in range(120):
            await store.put(f"/locks/{number}/holder", b"", ephemeral=True)
        await store.put("/top", b"", ephemeral=True)
        await store.put("/record/below", b"", ephemeral=True)
        await store.put("/record", b"")
    assert await names_below(zookeeper_server, scope) == {"record"}


@pytest.mark.parametrize("sequential", [False, True])
async def test_a_parent_that_nobody_saw_become_empty_is_not_seen(
    zookeeper_server: ZooKeeperServer, sequential: bool
) -> None:
    """The lease below it ended while nobody else was there."""
    scope = new_scope()
    async with opened(zookeeper_server.port, scope) as store:
        await store.put("/a/b/c/e", b"", ephemeral=True, sequential=sequential)
        await store.put("/kept/x", b"")
        await store.put("/record", b"")
        await store.put("/record/b/e", b"", ephemeral=True, sequential=sequential)
        store._require_open().parents.begin([])  # it does not look for what it lost itself
        await expire(zookeeper_server, store)
        async with opened(zookeeper_server.port, scope) as other:
            assert await other.get_children("/") == ["kept", "record"]
            assert await other.get_children("/record") == []
            assert not await other.exists("/a/b")
            await other.delete("/record")
            assert await other.get_children("/") == ["kept"]
    if not sequential:
        assert await names_below(zookeeper_server, scope) == {"kept"}


async def test_a_lease_that_ends_during_an_outage_is_no_child(
    zookeeper_server: ZooKeeperServer,
) -> None:
    scope = new_scope()
    with Proxy(zookeeper_server.port) as link:
        async with opened(link.port, scope, 20) as store, store.session_events() as events:
            await store.put("/z", b"record")
            assert await store.get_children("/z") == []
            async with opened(zookeeper_server.port, scope) as other:
                link.refuse()
                assert await next_item(events) is SessionEvent.CONNECTION_LOST
                await other.put("/z/v/e", b"", ephemeral=True)
                await expire(zookeeper_server, other)
                link.heal()
                assert await next_item(events) is SessionEvent.RECONNECTED
                assert await store.get_children("/z") == []
                await store.delete("/z")


async def test_receipts_go_with_their_session_and_no_scope_sees_them(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """A scope may lie in another one."""
    outer = new_scope()
    async with opened(zookeeper_server.port, outer) as above, above.watch("/") as changes:
        async with opened(zookeeper_server.port, f"{outer}/inner") as store:
            await store.sync()
            session = f"{store.credentials[0] & 0xFFFFFFFFFFFFFFFF:016x}"
            await store.put("/a", b"")
            while await next_changes(changes) != [(CREATED, "/inner/a")]:
                pass
            await store.sync()
            await store.put("/a/b", b"")
            assert await next_changes(changes) == [(CREATED, "/inner/a/b")]
            assert await above.get_children("/") == ["inner"]
            mine = {n for n in await names_below(zookeeper_server, RECEIPTS) if session in n}
            assert mine
        assert not mine & await names_below(zookeeper_server, RECEIPTS)
        async with opened(zookeeper_server.port, f"{outer}/inner") as store:
            await store.sync()
            session = f"{store.credentials[0] & 0xFFFFFFFFFFFFFFFF:016x}"
            await expire(zookeeper_server, store)
            found = await names_below(zookeeper_server, RECEIPTS)
            assert not [name for name in found if session in name]
    assert {"births", "receipts"} <= await names_below(zookeeper_server, HOME)
