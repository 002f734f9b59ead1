"""A store on a real ZooKeeper server whose link stalls, or breaks, at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from bookie.errors import InvalidKeyError, MetadataUnavailableError, UnauthorizedError
from bookie.metadata.connect import open_store
from bookie.metadata.model import Acl, Put
from bookie.metadata.session import SessionEvent
from bookie.metadata.zookeeper import outcome, session
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from bookie.metadata.zookeeper.kazoo_parts import AddWatch
from bookie.metadata.zookeeper.requests import Exists
from tests.conformance.streams import CREATED, DELETED, next_changes, next_item
from tests.servers.proxy import Direction, Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope

LOST, RECONNECTED = SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED


@asynccontextmanager
async def opened(proxy: Proxy, scope: str, timeout: float = 10) -> AsyncIterator[ZooKeeperStore]:
    uri = f"zk://127.0.0.1:{proxy.port}{scope}"
    async with open_store(uri, session_timeout_seconds=timeout) as store:
        assert isinstance(store, ZooKeeperStore)
        yield store


async def test_who_sends_never_waits_for_a_thread_that_stands_still(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """More wake-ups than fit into its pipe, while it waits for a silent server's hand-shake."""
    with Proxy(zookeeper_server.port) as proxy:
        async with opened(proxy, new_scope(), 30) as store, store.session_events() as events:
            link = store._require_open().link
            proxy.hold()
            proxy.reset()
            assert await next_item(events) is LOST
            async with asyncio.timeout(60):
                asked = []
                for _ in range(2000):
                    asked.append(link.send(Exists("/")))
                    await asyncio.sleep(0)
            proxy.heal()
            await asyncio.wait([pending.answer for pending in asked])
            await store.put("/after", b"")


async def test_a_stall_behind_the_handshake_ends_with_the_connection(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that sets the watch again stays unanswered.

    Then all goes on as if it had succeeded: kazoo keeps such a connection.
    """
    with Proxy(zookeeper_server.port) as proxy:
        async with opened(proxy, new_scope(), 6) as store, store.session_events() as events:

            def silence(root: str) -> AddWatch:
                proxy.hold(Direction.TO_CLIENT)
                monkeypatch.undo()
                return AddWatch(root)

            monkeypatch.setattr(session, "AddWatch", silence)
            proxy.reset()
            assert await next_item(events) is LOST
            link = store._require_open().link
            with pytest.raises(MetadataUnavailableError):
                await store.get("/x")
            await asyncio.sleep(link.patience_seconds / 2)
            proxy.heal()
            while await next_item(events) is not RECONNECTED:
                pass
            await store.put("/after", b"")


async def test_a_store_whose_closing_is_cancelled_ends_its_session(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Its ephemeral records would live on for as long as the process does."""
    scope = new_scope()
    with Proxy(zookeeper_server.port) as link, Proxy(zookeeper_server.port) as other:
        async with opened(other, scope) as witness, witness.watch("/member") as changes:
            is_leaving = asyncio.Event()

            async def use() -> None:
                async with opened(link, scope, 6) as store:
                    await store.put("/member", b"", ephemeral=True)
                    link.delay(0.3)
                    is_leaving.set()

            async with asyncio.TaskGroup() as tasks:
                user = tasks.create_task(use())
                await is_leaving.wait()
                await asyncio.sleep(0.1)
                user.cancel()
            async with asyncio.timeout(60):
                assert await next_changes(changes) == [(CREATED, "/member")]
                assert await next_changes(changes) == [(DELETED, "/member")]


async def test_who_may_not_write_beside_the_scopes_is_told_so(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts lie where others may rule."""
    parent, scope = new_scope(), new_scope()

    def prepare() -> None:
        client = KazooClient(hosts=zookeeper_server.address)
        client.start()
        client.create(parent, b"")
        client.create(scope)
        client.set_acls(parent, [make_acl("world", "anyone", read=True)])
        client.stop()
        client.close()

    await asyncio.to_thread(prepare)
    monkeypatch.setattr(outcome, "RECEIPTS", f"{parent}/below")
    with Proxy(zookeeper_server.port) as proxy:
        async with opened(proxy, scope) as store:
            assert await store.get("/x") is None
            async with asyncio.timeout(60):
                with pytest.raises(UnauthorizedError, match=f"{parent}/below"):
                    await store.put("/x", b"")


async def test_a_silent_server_is_left_also_by_who_keeps_asking(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Whatever is sent counts as a ping for kazoo, so that it never sends one itself."""
    with Proxy(zookeeper_server.port) as one, Proxy(zookeeper_server.port) as two:
        uri = f"zk://127.0.0.1:{one.port},127.0.0.1:{two.port}{new_scope()}"
        async with (
            open_store(uri, session_timeout_seconds=4) as store,
            store.session_events() as events,
            asyncio.TaskGroup() as tasks,
        ):
            assert isinstance(store, ZooKeeperStore)
            link = store._require_open().link

            async def ask() -> None:
                while True:
                    link.send(Exists("/"))
                    await asyncio.sleep(0.05)

            asking = tasks.create_task(ask())
            used, other = (one, two) if one.accepted else (two, one)
            before = other.accepted
            used.hold()
            while await next_item(events) is not RECONNECTED:
                pass
            assert other.accepted > before
            asking.cancel()
            await store.put("/after", b"")
            used.heal()


async def test_a_request_that_is_too_large_is_refused_before_it_is_sent(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """The server would end the connection, again and again."""
    with Proxy(zookeeper_server.port) as proxy:
        async with opened(proxy, new_scope()) as store:
            acl = (Acl("digest", "u" * 1_000_000, frozenset({"read"})),)
            with pytest.raises(InvalidKeyError, match="bytes in one request"):
                await store.put("/a", b"", acl=acl)
            assert proxy.accepted == 1
            deep = "/abcdef" * 60
            await store.transaction([Put(f"/{number:02}{deep}", b"") for number in range(20)])
