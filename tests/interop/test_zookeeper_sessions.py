"""Sessions and watches on a real ZooKeeper server whose link breaks in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bookie.coordination.membership import Group
from bookie.coordination.participant import Participant
from bookie.errors import BadVersionError, MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.metadata.model import Resync
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from bookie.metadata.zookeeper.client import Pending
from bookie.metadata.zookeeper.requests import GetChildren, Request
from bookie.metadata.zookeeper.session import ZooKeeperLink
from tests.conformance.streams import CREATED, DELETED, next_changes, next_item
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, expire_session, new_scope

LOST, RECONNECTED = SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED
SESSION_LOST, REESTABLISHED = SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED


class Net:
    """A server, and stores that reach it through a proxy each."""

    def __init__(self, server: ZooKeeperServer, stack: AsyncExitStack) -> None:
        self.server = server
        self.scope = new_scope()
        self._stack = stack

    async def open(self, timeout: float = 30.0) -> tuple[ZooKeeperStore, Proxy]:
        """A store and its link."""
        proxy = self._stack.enter_context(Proxy(self.server.port))
        uri = f"zk://127.0.0.1:{proxy.port}{self.scope}"
        store = await self._stack.enter_async_context(
            open_store(uri, session_timeout_seconds=timeout)
        )
        assert isinstance(store, ZooKeeperStore)
        return store, proxy


@pytest.fixture
async def net(zookeeper_server: ZooKeeperServer) -> AsyncIterator[Net]:
    async with AsyncExitStack() as stack:
        yield Net(zookeeper_server, stack)


async def expire(net: Net, store: ZooKeeperStore) -> None:
    session, password = store.credentials
    await asyncio.to_thread(expire_session, net.server.address, session, password)


async def test_a_reset_costs_the_watch_a_resync_and_the_session_nothing(net: Net) -> None:
    """Case 63."""
    store, proxy = await net.open()
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, store.watch("/") as changes:
        for number in range(3):
            proxy.reset()
            assert await next_item(events) is LOST
            assert await next_item(events) is RECONNECTED
            assert isinstance(await next_item(changes), Resync)
            await store.put(f"/after-{number}", b"")
            assert await next_changes(changes) == [(CREATED, f"/after-{number}")]
    record = await store.get("/e")
    assert record is not None
    assert record.created_by_self


async def test_a_reconnection_without_changes_costs_one_listing(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 63: the watch may have missed something, and whoever follows a group lists it once."""
    store, proxy = await net.open()
    other, _ = await net.open()
    listings: list[Request] = []
    send = ZooKeeperLink.send

    def count(link: ZooKeeperLink, request: Request, *args: Any) -> Pending:
        if isinstance(request, GetChildren) and link is store._require_open().link:
            listings.append(request)
        return send(link, request, *args)

    monkeypatch.setattr(ZooKeeperLink, "send", count)
    async with AsyncExitStack() as stack:
        participants = [await stack.enter_async_context(Participant(s)) for s in (store, other)]
        for number in range(40):
            await stack.enter_async_context(Group(participants[1], "/group").join(f"{number}"))
        view = await stack.enter_async_context(Group(participants[0], "/group").view())
        events = await stack.enter_async_context(store.session_events())
        for number in range(3):
            listings.clear()
            proxy.reset()
            assert await next_item(events) is LOST
            assert await next_item(events) is RECONNECTED
            await stack.enter_async_context(Group(participants[1], "/group").join(f"n{number}"))
            async with asyncio.timeout(60):
                while f"n{number}" not in view.members:
                    await view.wait_for_change()
            assert len(view.members) == 41 + number
            assert len(listings) == 1


async def test_silence_loses_the_session_before_the_server_ends_it(net: Net) -> None:
    """Cases 64, 155: the owner knows first, and what was its own is gone soon after."""
    store, proxy = await net.open(3)
    observer, _ = await net.open()
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, observer.watch("/") as changes:
        proxy.hold()
        assert await next_item(events) is LOST
        with pytest.raises(MetadataUnavailableError):
            await store.get("/e")
        assert await next_item(events) is SESSION_LOST
        assert await observer.exists("/e")
        assert await next_changes(changes) == [(DELETED, "/e")]
        proxy.heal()
        assert await next_item(events) is RECONNECTED
        assert await next_item(events) is REESTABLISHED
    await store.put("/e", b"again", ephemeral=True)


async def test_a_session_that_its_server_ended_is_followed_by_another(net: Net) -> None:
    """Case 65."""
    store, _ = await net.open(10)
    await store.put("/e", b"", ephemeral=True)
    before, _ = store.credentials
    async with store.session_events() as events:
        await expire(net, store)
        assert [await next_item(events) for _ in EXPIRY_EVENTS] == list(EXPIRY_EVENTS)
    assert store.credentials[0] != before
    assert await store.get("/e") is None
    stat = await store.put("/e", b"", ephemeral=True)
    assert stat.created_by_self


async def test_a_write_of_an_ended_session_is_not_done_in_the_next(net: Net) -> None:
    """Case 156: it was made under a lock that went with the session."""
    store, proxy = await net.open(10)
    observer, _ = await net.open()
    stat = await store.put("/guarded", b"0")
    proxy.hold()
    write = asyncio.create_task(  # noqa: TID251  (it fails, which would end a group)
        store.put("/guarded", b"late", version=stat.version)
    )
    await asyncio.sleep(0)
    session, password = store.credentials
    async with store.session_events() as events:
        await asyncio.to_thread(expire_session, net.server.address, session, password)
        proxy.reset()
        proxy.heal()
        with pytest.raises((SessionLostError, MetadataUnavailableError)):
            await write
        while await next_item(events) is not REESTABLISHED:
            pass
    await observer.sync()
    record = await observer.get("/guarded")
    assert record is not None
    assert record.value == b"0"


async def test_the_owner_of_an_earlier_life_cannot_touch_the_next(net: Net) -> None:
    """The first holder's session ends; the second holds a new node of the same name and version."""
    first, _ = await net.open(10)
    second, _ = await net.open()
    stat = await first.put("/lock", b"first", ephemeral=True)
    async with first.session_events() as events, second.watch("/lock") as changes:
        await expire(net, first)
        assert await next_changes(changes) == [(DELETED, "/lock")]
        held = await second.put("/lock", b"second", ephemeral=True)
        while await next_item(events) is not REESTABLISHED:
            pass
    assert held.version > stat.version
    with pytest.raises(BadVersionError):
        await first.put("/lock", b"stolen", version=stat.version)
    with pytest.raises(BadVersionError):
        await first.delete("/lock", version=stat.version)
    record = await second.get("/lock")
    assert record is not None
    assert (record.value, record.version) == (b"second", held.version)


async def test_a_server_that_stands_still_is_noticed(net: Net) -> None:
    """SIGSTOP: connections stay open and nothing is answered."""
    store, _ = await net.open(3)
    async with store.session_events() as events:
        net.server.process.pause()
        try:
            assert await next_item(events) is LOST
            assert await next_item(events) is SESSION_LOST
            with pytest.raises(MetadataUnavailableError, match="does not answer"):
                await store.put("/a", b"")
        finally:
            net.server.process.resume()
        assert await next_item(events) is RECONNECTED
        assert await next_item(events) is REESTABLISHED
    await store.put("/a", b"")


async def test_a_slow_link_is_no_broken_link(net: Net) -> None:
    store, proxy = await net.open(10)
    async with store.session_events() as events:
        proxy.delay(0.05)
        for number in range(10):
            await store.put(f"/{number}", b"")
        assert len(await store.get_children("/")) == 10
        proxy.reset()
        assert await next_item(events) is LOST
        assert await next_item(events) is RECONNECTED


async def test_closing_a_store_whose_server_is_silent_ends(net: Net) -> None:
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(Proxy(net.server.port))
        uri = f"zk://127.0.0.1:{proxy.port}{net.scope}"
        async with open_store(uri, session_timeout_seconds=3) as store:
            await store.put("/a", b"")
            proxy.hold()


async def test_many_sessions_come_back_without_a_storm(net: Net) -> None:
    """Their server is away for twice their timeout; all register again."""
    count = 60
    proxy = Proxy(net.server.port)
    async with AsyncExitStack() as stack:
        stack.enter_context(proxy)
        uri = f"zk://127.0.0.1:{proxy.port}{net.scope}"
        stores: list[MetadataStore] = []
        streams = []
        for number in range(count):
            store = await stack.enter_async_context(open_store(uri, session_timeout_seconds=2))
            await store.put(f"/members/{number}", b"", ephemeral=True)
            streams.append(await stack.enter_async_context(store.session_events()))
            stores.append(store)
        observer, _ = await net.open()
        accepted = proxy.accepted
        proxy.refuse()
        for events in streams:
            while await next_item(events) is not SESSION_LOST:
                pass
        proxy.heal()
        for number, (store, events) in enumerate(zip(stores, streams, strict=True)):
            while await next_item(events) is not REESTABLISHED:
                pass
            await store.put(f"/members/again-{number}", b"", ephemeral=True)
        # A third of a timeout is the longest pause between two attempts of one session.
        assert proxy.accepted - accepted < count * 30
        await observer.sync()
        assert len(await observer.get_children("/members")) >= count
