"""Leftovers of a store on a real ZooKeeper server, and its view of the leftovers of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from kazoo.client import KazooClient

from bookie.coordination.election import Election
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.env import gather
from bookie.errors import BadVersionError
from bookie.metadata.connect import open_store
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.session import SessionEvent
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from bookie.metadata.zookeeper.outcome import RECEIPTS, RECEIPTS_MAX
from bookie.metadata.zookeeper.tree import HOME
from tests.conformance.streams import CREATED, DELETED, next_changes, next_item
from tests.conformance.waiting import until_found
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, expire_session, new_scope


@asynccontextmanager
async def opened(port: int, scope: str, timeout: float = 10) -> AsyncIterator[ZooKeeperStore]:
    uri = f"zk://127.0.0.1:{port}{scope}"
    async with open_store(uri, session_timeout_seconds=timeout) as store:
        assert isinstance(store, ZooKeeperStore)
        yield store


async def names_below(server: ZooKeeperServer, path: str) -> set[str]:
    """The names that another program sees."""

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


async def test_used_locks_and_elections_leave_no_parents(
    zookeeper_server: ZooKeeperServer,
) -> None:
    scope = new_scope()
    async with (
        opened(zookeeper_server.port, scope) as store,
        opened(zookeeper_server.port, scope) as other,
        Participant(store) as participant,
        Participant(other) as heir,
    ):
        for number in range(50):
            async with await LockManager(participant).acquire(f"/locks/{number}"):
                pass
        async with Election(participant, "/election") as election:
            await election.elect()
        async with await LockManager(participant).acquire("/locks/wanted") as lock:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(LockManager(heir).acquire("/locks/wanted"))
                await until_found(lambda: _is_wanted(store, 2))
                await lock.release()
            await waiting.result().release()
        await until_found(lambda: _has_nothing_below(zookeeper_server, scope))


async def _is_wanted(store: ZooKeeperStore, claims: int) -> bool:
    return len(await store.get_children("/locks/wanted")) == claims


async def _has_nothing_below(server: ZooKeeperServer, scope: str) -> bool:
    return not await names_below(server, scope)


async def test_many_locks_at_once_leave_nothing(zookeeper_server: ZooKeeperServer) -> None:
    """Three holders release locks side by side: their removals of parents meet each other.

    A removal that met others too often is given up. The next use of its lock takes what it left.
    """
    scope = new_scope()
    async with AsyncExitStack() as stack:
        holders = []
        for _ in range(3):
            store = await stack.enter_async_context(opened(zookeeper_server.port, scope, 30))
            holders.append(LockManager(await stack.enter_async_context(Participant(store))))

        async def use(holder: LockManager, number: int) -> None:
            async with await holder.acquire(f"/locks/{number}"):
                pass

        await gather(use(holders[number % 3], number) for number in range(150))
        has_left = await names_below(zookeeper_server, scope)
        left = await names_below(zookeeper_server, f"{scope}/locks") if has_left else set()
        assert len(left) < 75
        for number in sorted(map(int, left)):
            await use(holders[0], number)
        await use(holders[0], 0)  # `/locks` itself may be what was left
        await until_found(lambda: _has_nothing_below(zookeeper_server, scope))


async def test_a_parent_that_a_session_left_goes_with_the_next_lock(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Nothing grows with the number of uses, however they end."""
    scope = new_scope()
    async with opened(zookeeper_server.port, scope, 30) as store:
        for _ in range(3):
            async with opened(zookeeper_server.port, scope) as owner:
                await owner.put("/locks/one/claim-", b"", ephemeral=True, sequential=True)
        await store.sync()
        assert await store.get_children("/locks") == ["one"]
        assert not await store.exists("/locks/one")
        async with (
            Participant(store) as participant,
            await LockManager(participant).acquire("/locks/one"),
        ):
            pass
        assert await names_below(zookeeper_server, scope) == set()


async def test_a_removal_takes_no_record_that_came_in_between(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store removes the empty parent, and puts a record there of the same version."""
    scope = new_scope()
    async with (
        opened(zookeeper_server.port, scope) as store,
        opened(zookeeper_server.port, scope) as other,
    ):
        await store.put("/p/x", b"")
        nodes = store._require_open().nodes
        ask = nodes.ask

        async def ask_early(*arguments: Any) -> list[Any]:
            found = await ask(*arguments)
            monkeypatch.undo()
            await other._require_open().parents.remove_empty(["/p"])
            await other.put("/p", b"record", version=NOT_EXISTS)
            return found

        monkeypatch.setattr(nodes, "ask", ask_early)
        await store.delete("/p/x")
        record = await other.get("/p")
        assert record is not None
        assert record.stat.first_version, "it is the node's first version, like the parent's was"


@pytest.mark.parametrize("reconnected", [False, True])
async def test_hundreds_of_sequential_puts_at_once_are_done(
    zookeeper_server: ZooKeeperServer, reconnected: bool
) -> None:
    """Below a parent that does not exist: one of them makes it, and all are done soon."""
    scope = new_scope()
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(3):
            link = stack.enter_context(Proxy(zookeeper_server.port))
            store = await stack.enter_async_context(opened(link.port, scope, 30))
            if reconnected:
                events = await stack.enter_async_context(store.session_events())
                await store.put("/queue/n-", b"", sequential=True)
                link.reset()
                while await next_item(events) is not SessionEvent.RECONNECTED:
                    pass
            stores.append(store)
        puts = [s.put("/queue/n-", b"", sequential=True) for s in stores for _ in range(200)]
        before = [s._require_open().receipts.commits for s in stores]
        await gather(puts)
        refused = sum(s._require_open().receipts.commits for s in stores) - sum(before) - 600
        assert refused < 600
        assert len(await stores[0].get_children("/queue")) == 600 + (3 if reconnected else 0)


async def test_a_recursive_delete_tells_of_records_only(zookeeper_server: ZooKeeperServer) -> None:
    """Parents that it deletes are no events, and removals of parents notice them."""
    scope = new_scope()
    async with (
        opened(zookeeper_server.port, scope) as store,
        opened(zookeeper_server.port, scope) as other,
        store.watch("/") as changes,
    ):
        async with opened(zookeeper_server.port, scope) as owner:
            await owner.put("/t/a/b/c", b"", ephemeral=True)
        assert await next_changes(changes) == [(CREATED, "/t/a/b/c")]
        assert await next_changes(changes) == [(DELETED, "/t/a/b/c")]
        await other.delete_recursive("/t")
        await other.put("/end", b"")
        assert await next_changes(changes) == [(CREATED, "/end")]
        assert await names_below(zookeeper_server, scope) == {"end"}


async def test_a_scope_of_an_earlier_release_opens(zookeeper_server: ZooKeeperServer) -> None:
    """Its parents hold null, and nodes that counted creations lie outside of it."""
    scope = new_scope()

    def prepare() -> None:
        client = KazooClient(hosts=zookeeper_server.address)
        client.start()
        client.ensure_path("/.bookie/births")
        if client.exists("/.bookie/births/0000") is None:
            client.create("/.bookie/births/0000", None)
        for path in ("", "/ledgers", "/ledgers/00", "/empty"):
            client.create(scope + path, None)
        client.create(f"{scope}/ledgers/00/1", b"ledger")
        client.create(f"{scope}/queue", b"\0bookie: parent of sequential records\0")
        client.create(f"{scope}/queue/n-", b"item", sequence=True)
        client.stop()
        client.close()

    await asyncio.to_thread(prepare)
    async with opened(zookeeper_server.port, scope) as store:
        assert await store.get_children("/") == ["empty", "ledgers", "queue"]
        assert await store.get("/ledgers") is None
        assert not await store.exists("/empty")
        record = await store.get("/ledgers/00/1")
        assert record is not None
        assert record.value == b"ledger"
        await store.delete("/ledgers/00/1", version=record.version)
        await store.delete("/queue/n-0000000000")
        stat = await store.put("/queue/n-", b"", sequential=True)
        assert stat.key == "/queue/n-0000000001"
        await store.put("/empty", b"", version=NOT_EXISTS)
        assert await store.get_children("/") == ["empty", "queue"]


async def test_refused_and_cancelled_writes_leave_no_more_receipts_than_others(
    zookeeper_server: ZooKeeperServer,
) -> None:
    scope = new_scope()
    async with opened(zookeeper_server.port, scope) as store:
        session = f"{store.credentials[0] & 0xFFFFFFFFFFFFFFFF:016x}"

        async def mine() -> int:
            names = await names_below(zookeeper_server, RECEIPTS)
            return len([name for name in names if session in name])

        await store.put("/a", b"")
        before = await mine()
        for _ in range(300):
            with pytest.raises(BadVersionError):
                await store.put("/a", b"", version=7)
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await store.put("/a", b"")
        await store.sync()
        assert await mine() == before
        for _ in range(20):
            await gather(_refused(store.put(f"/a/b/{n}", b"", version=7)) for n in range(100))
        assert await mine() <= RECEIPTS_MAX + 1
    assert await mine() == 0


async def _refused(write: Awaitable[object]) -> None:
    with pytest.raises(BadVersionError):
        await write


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
    assert "receipts" in await names_below(zookeeper_server, HOME)
