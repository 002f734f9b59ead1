"""Roles on streams: what is refused, looked up, or ended while a stream stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grpc import aio

from bookie.env import SystemClock
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Caller
from bookie.security.grants import Grant, Grants, GrantScope
from bookie.security.permissions import LedgerLogs, Permissions
from bookie.security.rights import Role
from bookie.telemetry import Metrics
from bookie.wire.commands import LacState
from bookie.wire.grpc.server.error_mapper import ErrorMapper
from bookie.wire.grpc.server.lac_watch import LacWatchHandler
from bookie.wire.unary_codec import WatchChange, encode_watch_change, parse_lac_state
from tests.unit.wire.fake_node import FakeNode, until


class Stream:
    """A call whose requests come when the test sends them."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[LacState] = []
        self.written: Callable[[], None] = lambda: None

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, message: bytes) -> None:
        self.answers.append(parse_lac_state(message))
        self.written()
        await asyncio.sleep(0)

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        raise NotImplementedError


class Store:
    """Answers look-ups when the test lets it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[int] = []

    async def find(self, ledger_id: int) -> str | None:
        self.asked.append(ledger_id)
        await self.open.wait()
        return "shop/orders"


def caller(store: Store, *grants: Grant) -> Caller:
    now = Grants(grants or [Grant("p", Role.READER, GrantScope(log="shop/*"))])
    return Caller(
        Permissions("p", lambda: now, LedgerLogs(store.find)), "", AuditLog(SystemClock())
    )


def watch(node: FakeNode, who: Caller | None) -> LacWatchHandler:
    return LacWatchHandler(node, ErrorMapper(Metrics()), None, who)


def changed(subscribe: list[int], unsubscribe: list[int]) -> bytes:
    return encode_watch_change(WatchChange(subscribe=subscribe, unsubscribe=unsubscribe))


async def test_a_ledger_that_was_let_go_is_not_watched_after_its_look_up() -> None:
    """Subscribe, unsubscribe, subscribe, unsubscribe, while the store is slow."""
    node, store, call = FakeNode(), Store(), Stream()
    stream = watch(node, caller(store))
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.serve(call))
        call.requests.put_nowait(changed([1], []))
        await until(lambda: bool(store.asked))
        call.requests.put_nowait(changed([1], [1]))
        await until(call.requests.empty)
        for _ in range(5):
            await asyncio.sleep(0)
        call.requests.put_nowait(changed([], [1]))
        await until(call.requests.empty)
        store.open.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.watchers[0].ledgers == set()
        assert call.answers == []
        call.requests.put_nowait(aio.EOF)


async def test_a_stream_that_was_ended_ends_although_ledgers_go_on() -> None:
    """The token ended. Each write lets the ledger advance, so there is always a state to send."""
    node, call = FakeNode(), Stream()
    node.lacs[1] = 0
    stream = watch(node, None)
    serving = asyncio.ensure_future(stream.serve(call))  # noqa: TID251 (the test gives it up)
    call.requests.put_nowait(changed([1], []))
    await until(lambda: bool(call.answers))
    lacs = iter(range(1, 1000))
    call.written = lambda: node.advance(1, [next(lacs)])
    node.advance(1, [0])
    stream.end()
    for _ in range(300):
        await asyncio.sleep(0)
    assert serving.done(), len(call.answers)
    await serving
