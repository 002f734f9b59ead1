"""Roles on streams: what is refused, looked up, or ended while a stream stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.config import NodeSettings, RpcSettings
from bookie.env import SystemClock
from bookie.ids import BOOKIE_ID_METADATA_KEY, INSTANCE_ID_METADATA_KEY, Status
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Caller, Gatekeeper, PrincipalRules
from bookie.security.grants import Grant, Grants, GrantScope
from bookie.security.permissions import LedgerLogs, Permissions
from bookie.security.rights import Role
from bookie.telemetry import Metrics
from bookie.wire.codec import encode_streamed_read
from bookie.wire.commands import LacState, LedgerRow, ReadCommand, Reply
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.lac_watch import LacWatchHandler
from bookie.wire.server.read_budget import ReadBudget
from bookie.wire.server.read_stream import ReadStreamHandler
from bookie.wire.server.service import BookieService
from bookie.wire.server.visits import Reception, Visit
from bookie.wire.unary_codec import (
    WatchChange,
    encode_watch_change,
    parse_lac_state,
    parse_ledger_rows,
    parse_ranges,
)
from tests.unit.wire.fake_node import BOOKIE_ID, INSTANCE_ID, FakeNode, until


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
        """Nobody asks for the end."""


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
    visit = Reception(NodeSettings(), RpcSettings(), Metrics()).enter("ipv4:10.0.0.1:1", who)
    return LacWatchHandler(node, ErrorMapper(Metrics()), None, who, visit=visit)


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
        call.requests.put_nowait(None)


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


class Listing(Stream):
    """A call that gets pages, without gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[bytes] = []

    async def write(self, message: bytes) -> None:
        self.pages.append(message)
        self.written()

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID), (BOOKIE_ID_METADATA_KEY, BOOKIE_ID))

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [b"x"], "x509_common_name": [b"p"]}

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"


@pytest.mark.parametrize(
    ("rpc", "request_", "parse"),
    [
        ("ListLedgers", pb.ListLedgersRequest(after_ledger_id=-1), parse_ledger_rows),
        ("ListEntries", pb.ListEntriesRequest(ledger_id=3, last_entry_id=9), parse_ranges),
    ],
)
async def test_a_listing_ends_when_the_role_is_taken_away(
    rpc: str, request_: Any, parse: Callable[[bytes], tuple[Reply, object]]
) -> None:
    """The client takes pages slowly, so a listing lasts as long as he likes."""
    node, call = FakeNode(), Listing()
    node.rows = [[LedgerRow(number, False, False, 0, 1, 2, 3, 1)] for number in range(3)]
    node.pages = [(np.array([number]), np.array([number])) for number in range(3)]
    clock = SystemClock()
    keeper = Gatekeeper(
        PrincipalRules(["cn:(.+)"]), LedgerLogs(Store().find), clock, AuditLog(clock)
    )
    keeper.take(Grants([Grant("p", Role.REPAIRER)]))
    call.written = lambda: keeper.take(Grants())
    service = BookieService(node, node.settings, Metrics(), keeper)
    await service.handlers().listings[rpc](request_.SerializeToString(), call)
    statuses = [parse(page)[0].status for page in call.pages]
    assert statuses == [Status.OK, Status.NOT_PERMITTED]


class Reads(Stream):
    """A call whose answers are only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def write(self, message: bytes) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("role", "log", "turns"),
    [
        pytest.param(Role.READER, "", 5, id="forbidden: all but the first message"),
        pytest.param(Role.RECOVERER, "", 0, id="permitted"),
        pytest.param(Role.RECOVERER, "shop/*", 2, id="permitted after a look-up: the messages"),
        pytest.param(Role.RECOVERER, "other/*", 5, id="forbidden after a look-up"),
    ],
)
async def test_fencing_reads_skip_turns_once_they_are_permitted(
    role: Role, log: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may not fence would else read and be answered before all others."""
    taken: list[int] = []

    def try_turn(_: Visit, units: int) -> bool:
        taken.append(units)
        return True

    monkeypatch.setattr(Visit, "try_turn", try_turn)
    store, call, metrics = Store(), Reads(), Metrics()
    who = caller(store, Grant("p", role, GrantScope(log=log)))
    visit = Reception(NodeSettings(), RpcSettings(), metrics).enter("ipv4:10.0.0.1:1", who)
    budget = ReadBudget(1 << 20, 1 << 20, metrics)
    stream = ReadStreamHandler(FakeNode(), ErrorMapper(metrics), budget, None, who, visit=visit)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.serve(call))
        for number in range(3):
            read = ReadCommand(3, number, number, 1, 1000, True)
            call.requests.put_nowait(encode_streamed_read(1 + number, read))
        await until(lambda: call.count == 3 or len(taken) == 2)
        for _ in range(5):
            await asyncio.sleep(0)
        store.open.set()
        await until(lambda: call.count == 3)
        assert len(taken) == turns
        call.requests.put_nowait(None)
