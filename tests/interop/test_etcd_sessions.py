"""Sessions on real etcd: leases that are lost, and processes that do not know it yet."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bookie
from bookie.env import boot_time_seconds
from bookie.errors import (
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    SessionLostError,
)
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.etcd.client import GRANT, EtcdClient, LostReplyError, Method
from bookie.metadata.model import NOT_EXISTS, Delete, Operation, Put
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.metadata.store import MetadataStore
from tests.conformance.streams import CREATED, DELETED, next_changes, next_item
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Direction, Proxy

LOST, BACK = EXPIRY_EVENTS[:2], EXPIRY_EVENTS[2:]


@pytest.fixture
async def store(etcd_link: Proxy, etcd_scope: str) -> AsyncIterator[EtcdStore]:
    async with EtcdStore(
        [f"127.0.0.1:{etcd_link.port}"], etcd_scope, session_timeout_seconds=2
    ) as found:
        yield found


async def test_the_first_lease_counts_from_its_request(
    etcd_server: EtcdServer, etcd_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply may be late, so it does not count; unanswered requests are ignored."""
    send, asked, answered = EtcdClient._send, [], []

    async def note(self: EtcdClient, method: Method, request: Any, seconds: float) -> Any:
        if method is not GRANT:
            return await send(self, method, request, seconds)
        asked.append(boot_time_seconds())
        if len(asked) == 1:
            raise LostReplyError("the test lost the request")
        response = await send(self, method, request, seconds)
        await asyncio.sleep(0.01)
        answered.append(boot_time_seconds())
        return response

    monkeypatch.setattr(EtcdClient, "_send", note)
    async with EtcdStore(etcd_server.endpoints, etcd_scope) as store:
        assert not asked, "reads need no lease"
        await store.put("/a", b"")
        assert store._session._monitor is not None
        begun_at = store._session._monitor._machine._begun_at
        assert asked[0] < begun_at <= asked[1] < answered[0]


async def _take(events: AsyncIterator[SessionEvent], expected: tuple[SessionEvent, ...]) -> None:
    assert tuple([await next_item(events) for _ in expected]) == expected


async def test_a_black_holed_session_is_lost_before_its_records_are(
    store: EtcdStore, etcd_observer: MetadataStore, etcd_link: Proxy
) -> None:
    """Case 64, with a server that nobody hears and whose connections stand."""
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, etcd_observer.watch("/e") as changes:
        etcd_link.hold()
        await _take(events, LOST)
        record = await etcd_observer.get("/e")
        assert record is not None, "the owner knows before anybody else can take its place"
        assert await next_changes(changes) == [(DELETED, "/e")]
        with pytest.raises(SessionLostError):
            await store.put("/e", b"", ephemeral=True)
        etcd_link.heal()
        await _take(events, BACK)
        await store.put("/e", b"again", ephemeral=True)
        assert await next_changes(changes) == [(CREATED, "/e")]


async def test_a_write_waits_for_the_session_that_follows_a_known_loss(
    store: EtcdStore, etcd_link: Proxy
) -> None:
    """A ledger that is closed right after an outage needs no second call."""
    async with store.session_events() as events, asyncio.TaskGroup() as tasks:
        etcd_link.hold()
        await _take(events, LOST)
        writing = tasks.create_task(store.put("/e", b"", ephemeral=True))
        await asyncio.sleep(0.2)
        etcd_link.heal()
        await _take(events, BACK)
        assert (await writing).created_by_self


async def test_a_store_that_closes_ends_the_writes_that_wait(
    etcd_link: Proxy, etcd_scope: str
) -> None:
    async with asyncio.TaskGroup() as tasks:
        servers = [f"127.0.0.1:{etcd_link.port}"]
        async with EtcdStore(servers, etcd_scope, session_timeout_seconds=2) as store:
            async with store.session_events() as events:
                etcd_link.hold()
                await _take(events, LOST)
            writing = tasks.create_task(_refusal_of(store))
            await asyncio.sleep(0.2)
        assert isinstance(await writing, MetadataClosedError)


async def _refusal_of(store: EtcdStore) -> Exception | None:
    try:
        await store.put("/e", b"")
    except MetadataError as error:
        return error
    return None


@pytest.mark.parametrize("direction", list(Direction))
async def test_a_link_that_is_dead_one_way_is_dead(
    store: EtcdStore, etcd_link: Proxy, direction: Direction
) -> None:
    async with store.session_events() as events:
        etcd_link.hold(direction)
        await _take(events, LOST)
        etcd_link.heal()
        await _take(events, BACK)
        assert (await store.put("/e", b"", ephemeral=True)).created_by_self


async def test_a_session_that_the_server_ended_is_replaced(
    store: EtcdStore, etcd_observer: MetadataStore
) -> None:
    """Cases 65, 155: nobody tells the owner; it finds out by asking."""
    await store.put("/e", b"", ephemeral=True)
    await store.put("/p", b"")
    async with store.session_events() as events, etcd_observer.watch("/") as changes:
        await (await store._session.current_lease(0)).revoke(10)
        assert await next_changes(changes) == [(DELETED, "/e")]
        await _take(events, EXPIRY_EVENTS)
        assert (await store.put("/e", b"", ephemeral=True)).created_by_self
    assert await etcd_observer.exists("/p")


_WRITES: list[list[Operation]] = [
    [Put("/p", b"")],
    [Put("/lock", b"", ephemeral=True)],
    [Put("/lock", b"", NOT_EXISTS, ephemeral=True)],
    [Delete("/other")],
    [Put(f"/p/{i}", b"") for i in range(60)],
]


@pytest.mark.parametrize("operations", _WRITES)
async def test_a_write_of_a_lost_session_is_refused_by_the_server(
    store: EtcdStore, etcd_observer: MetadataStore, operations: list[Operation]
) -> None:
    """Case 156: the events of the loss come before the refusal is raised."""
    await store.put("/lock", b"", ephemeral=True)
    await etcd_observer.put("/other", b"")
    async with store.session_events() as events:
        await (await store._session.current_lease(0)).revoke(10)
        with pytest.raises(SessionLostError):
            await store.transaction(operations)
        assert await anext(events) is SessionEvent.CONNECTION_LOST
        assert await anext(events) is SessionEvent.SESSION_LOST
    assert await etcd_observer.get_children("/") == ["other"]


async def test_an_idle_session_outlives_many_timeouts(
    store: EtcdStore, etcd_observer: MetadataStore
) -> None:
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await anext(events)
    assert await etcd_observer.exists("/e")


async def test_an_outage_says_so_in_one_sentence(store: EtcdStore, etcd_link: Proxy) -> None:
    etcd_link.refuse()
    with pytest.raises(MetadataUnavailableError, match=r"^etcd at 127.0.0.1:\d+ does not answer: "):
        await store.get("/a")


# ---- processes

_HOLDER = """
import asyncio, sys
from bookie.errors import MetadataError
from bookie.metadata.etcd.backend import EtcdStore

async def main(host, scope):
    async with EtcdStore([host], scope, session_timeout_seconds=2) as store:
        async with store.session_events() as events:
            await store.put("/lock", b"", ephemeral=True)
            await store.put("/guarded", b"")
            print("held", flush=True)
            async def tell():
                async for event in events:
                    print(event.value, flush=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tell())
                while True:
                    await asyncio.sleep(0.01)
                    try:
                        await store.put("/guarded", b"")
                    except MetadataError as error:
                        print("refused", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def _holder(server: EtcdServer, scope: str) -> AsyncIterator[Process]:
    root = os.path.dirname(os.path.dirname(bookie.__file__))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _HOLDER,
        server.member.endpoint,
        scope,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        assert await _line(process) == "held"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return (await process.stdout.readline()).decode().strip()


async def test_a_killed_holder_loses_its_records(
    etcd_server: EtcdServer, etcd_scope: str, etcd_observer: MetadataStore
) -> None:
    """Case 155."""
    async with etcd_observer.watch("/lock") as changes, _holder(etcd_server, etcd_scope) as holder:
        assert await next_changes(changes) == [(CREATED, "/lock")]
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
        assert await etcd_observer.exists("/lock"), "etcd does not know yet"
        assert await next_changes(changes) == [(DELETED, "/lock")]


async def test_a_holder_that_was_stopped_learns_it_before_it_writes(
    etcd_server: EtcdServer, etcd_scope: str, etcd_observer: MetadataStore
) -> None:
    """Case 156."""
    async with etcd_observer.watch("/lock") as changes, _holder(etcd_server, etcd_scope) as holder:
        assert await next_changes(changes) == [(CREATED, "/lock")]
        holder.send_signal(signal.SIGSTOP)
        assert await next_changes(changes) == [(DELETED, "/lock")]
        async with etcd_observer.watch("/guarded") as writes:
            holder.send_signal(signal.SIGCONT)
            lines = [await _line(holder)]
            while lines[-1] != SessionEvent.SESSION_REESTABLISHED.value:
                lines.append(await _line(holder))
            await next_item(writes)
        told = [line for line in lines if line != "refused"]
        assert told == [event.value for event in EXPIRY_EVENTS]
