"""Rates at a bookie, over real gRPC on loopback: who is told to come back, and who never is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from bookie.config import NodeSettings, RpcSettings
from bookie.env import SystemClock
from bookie.errors import TooManyRequestsError
from bookie.ids import Status
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Gatekeeper, PrincipalRules
from bookie.security.grants import Grant, Grants, GrantScope
from bookie.security.permissions import LedgerLogs
from bookie.security.rates import LogDirectory, Rates
from bookie.security.rights import Role
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import AddCommand, LacReply, ReadCommand, ReadReply, Reply
from bookie.wire.interfaces import IdentifiedCall
from bookie.wire.server.rate_meter import RateMeter
from tests.served_node import serve
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until

SLOW = 100
"""Bytes a second: one message uses up the rate for longer than a test takes."""


@dataclass
class Bookie:
    """A served bookie and a client of it."""

    node: FakeNode
    metrics: Metrics
    channel: BookieChannel
    answers: dict[int, tuple[Status, int]]

    def limited(self, kind: str = "identity") -> float:
        labels = {"kind": kind}
        return self.metrics.registry.get_sample_value("bookie_rate_limited_total", labels) or 0.0

    async def add(self, request_id: int, size: int = 40, *, recovery: bool = False) -> Status:
        """The status of an add; `answers` has its time as well."""
        self.stream.send(encode_add_request(request_id, 3, batch_of([size]), recovery=recovery))
        await until(lambda: request_id in self.answers)
        return self.answers[request_id][0]

    def open(self) -> None:
        self.stream = self.channel.add_stream(self._on_answer, lambda _: None)

    def _on_answer(self, request_id: int, status: Status, _: str, retry_after_ms: int) -> None:
        self.answers[request_id] = status, retry_after_ms


@asynccontextmanager
async def bookie(settings: NodeSettings) -> AsyncIterator[Bookie]:
    node, metrics = FakeNode(settings), Metrics()
    rpc = RpcSettings(drain_seconds=0.2)
    async with serve(node, "127.0.0.1", 0, rpc, metrics) as port, asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        found = Bookie(node, metrics, channel, {})
        found.open()
        yield found
        await channel.close()


async def test_an_add_beyond_the_rate_is_told_when_to_come_back() -> None:
    """The node does not see it. A recovery passes at any time."""
    async with bookie(NodeSettings(identity_bytes_per_second=SLOW)) as one:
        assert await one.add(1, 10_000) is Status.OK
        assert await one.add(2) is Status.TOO_MANY_REQUESTS
        assert one.answers[1][1] == 0
        assert 30_000 < one.answers[2][1] < 110_000
        assert await one.add(3, recovery=True) is Status.OK
        assert len(one.node.added) == 2
        assert one.limited() == 1


async def test_an_add_that_waits_for_room_is_charged_once() -> None:
    async with bookie(NodeSettings(identity_requests_per_second=2)) as one:
        one.node.admitting.clear()
        asyncio.get_running_loop().call_later(0.05, one.node.admitting.set)
        assert await one.add(1) is Status.OK
        assert await one.add(2) is Status.OK
        assert one.limited() == 0


async def test_rates_change_in_streams_that_are_open() -> None:
    async with bookie(NodeSettings()) as one:
        for number in (1, 2, 3):
            assert await one.add(number, 10_000) is Status.OK
        one.node.settings = NodeSettings(identity_bytes_per_second=SLOW)
        assert await one.add(4, 10_000) is Status.OK
        assert await one.add(5) is Status.TOO_MANY_REQUESTS
        one.node.settings = NodeSettings()
        assert await one.add(6) is Status.OK


@pytest.mark.parametrize("way", ["read", "read_entry"])
async def test_a_read_is_charged_for_what_it_returned(way: str) -> None:
    """By a call and by a stream. A fencing read passes at any time."""
    async with bookie(NodeSettings(identity_bytes_per_second=SLOW)) as one:
        one.node.read_reply = ReadReply(Status.OK, "", batch_of([10_000]), 1)

        async def read() -> ReadReply:
            command = ReadCommand(3, 0, 0, 1, 1)
            return cast("ReadReply", await getattr(one.channel, way)(command, timeout=60))

        assert (await read()).status is Status.OK
        refused = await read()
        assert refused.status is Status.TOO_MANY_REQUESTS
        assert 30_000 < refused.retry_after_ms < 110_000
        fencing = ReadCommand(3, 0, 0, 1, 1, fence=True)
        assert (await one.channel.read(fencing, timeout=60)).status is Status.OK
        assert await one.add(1) is Status.OK, "adds have a bucket of their own"


async def _read_lac(channel: BookieChannel) -> LacReply:
    return await channel.read_lac(3, b"", timeout=60)


async def _write_lac(channel: BookieChannel) -> Reply:
    return await channel.write_lac(3, b"", b"lac", timeout=60)


@pytest.mark.parametrize("ask", [_read_lac, _write_lac])
async def test_small_calls_count_as_requests(
    ask: Callable[[BookieChannel], Awaitable[LacReply | Reply]],
) -> None:
    async with bookie(NodeSettings(identity_requests_per_second=1)) as one:
        assert (await ask(one.channel)).status is Status.OK
        refused = await ask(one.channel)
        assert refused.status is Status.TOO_MANY_REQUESTS
        assert 0 < refused.retry_after_ms <= 1000
        # Whoever recovers, or only asks what a bookie is, is never told to come back.
        assert (await one.channel.fence(3, b"", timeout=60)).status is Status.OK
        assert (await one.channel.force(3, timeout=60)).status is Status.OK
        assert (await one.channel.info(timeout=60)).bookie_id == "b1"


async def test_a_listing_names_the_time_in_its_error() -> None:
    async with bookie(NodeSettings(identity_requests_per_second=1)) as one:
        assert [page async for page in one.channel.list_entries(3, timeout=60)] == []
        with pytest.raises(TooManyRequestsError) as caught:
            [page async for page in one.channel.list_entries(3, timeout=60)]
        assert 0 < caught.value.retry_after_seconds <= 1


# -- who is counted, and who is exempt -------------------------------------------------------------


class Call(SimpleNamespace):
    """The context of a call of a peer with this certificate, from this address."""

    def __init__(self, name: str = "", address: str = "ipv4:10.0.0.1:5") -> None:
        properties = {"x509_pem_cert": [b"x"], "x509_common_name": [name.encode()]}
        super().__init__(
            auth_context=lambda: properties if name else {},
            invocation_metadata=tuple,
            peer=lambda: address,
        )


def gatekeeper(*grants: Grant, required: bool = True, logs: LedgerLogs | None = None) -> Gatekeeper:
    async def nothing(_: int) -> str:
        return ""

    clock = SystemClock()
    rules = PrincipalRules(["cn:(.+)"])
    keeper = Gatekeeper(
        rules, logs or LedgerLogs(nothing), clock, AuditLog(clock), is_required=required
    )
    keeper.take(Grants(grants))
    return keeper


def rates(settings: NodeSettings, logs: LogDirectory | None = None) -> Rates:
    """Rates whose clock stands still."""
    return Rates(lambda: settings, lambda: 0.0, lambda _: None, logs or LogDirectory())


ADD = AddCommand(None, 3, b"", 0)
STRICT = NodeSettings(identity_requests_per_second=1)


def is_limited(meter: RateMeter, command: AddCommand = ADD) -> bool:
    """True if the meter refuses one of three adds."""
    try:
        for _ in range(3):
            meter.add(command, 1)
    except TooManyRequestsError:
        return True
    return False


def meter(one: Rates, keeper: Gatekeeper | None, *call: str) -> RateMeter:
    return RateMeter(one, keeper, cast("IdentifiedCall", Call(*call)))


def test_each_name_has_a_rate_of_its_own_whatever_its_address() -> None:
    one, keeper = rates(STRICT), gatekeeper(Grant("*", Role.WRITER))
    assert is_limited(meter(one, keeper, "greedy", "ipv4:10.0.0.1:1"))
    with pytest.raises(TooManyRequestsError):
        meter(one, keeper, "greedy", "ipv4:10.0.0.2:1").add(ADD, 1)
    meter(one, keeper, "modest", "ipv4:10.0.0.1:1").add(ADD, 1)


def test_callers_without_a_name_count_by_their_hosts() -> None:
    one = rates(STRICT)
    assert is_limited(meter(one, None, "", "ipv4:10.0.0.1:1"))
    with pytest.raises(TooManyRequestsError):
        meter(one, None, "", "ipv4:10.0.0.1:2").add(ADD, 1)
    meter(one, None, "", "ipv4:10.0.0.2:1").add(ADD, 1)


@pytest.mark.parametrize(
    ("role", "limited"),
    [
        (Role.READER, True),
        (Role.WRITER, True),
        (Role.RECOVERER, True),
        (Role.REPAIRER, False),
        (Role.ADMIN, False),
    ],
)
def test_repair_and_admins_are_exempt(role: Role, limited: bool) -> None:
    keeper = gatekeeper(Grant("someone", role))
    assert is_limited(meter(rates(STRICT), keeper, "someone")) is limited
    some = gatekeeper(Grant("someone", role, GrantScope(3, 3)))
    one = meter(rates(STRICT), some, "someone")
    assert is_limited(one) is limited
    assert is_limited(one, ADD._replace(ledger_id=4))


def test_without_roles_nobody_is_exempt_but_recovery() -> None:
    """Everybody is an admin there."""
    one = meter(rates(STRICT), gatekeeper(required=False), "someone")
    assert is_limited(one)
    assert not is_limited(one, ADD._replace(recovery=True))


async def test_a_namespace_is_held_to_its_rate_once_its_ledgers_are_known() -> None:
    asked: list[int] = []

    async def find(ledger_id: int) -> str:
        asked.append(ledger_id)
        return "shop/orders"

    logs = LedgerLogs(find)
    keeper = gatekeeper(Grant("*", Role.WRITER), logs=logs)
    one = rates(NodeSettings(namespace_requests_per_second=1), logs)
    assert not is_limited(meter(one, keeper, "first"))
    await until(lambda: logs.known(3) is not None)
    assert is_limited(meter(one, keeper, "first"))
    assert is_limited(meter(one, keeper, "second"))
    assert not is_limited(meter(one, keeper, "second"), ADD._replace(ledger_id=9))
    assert asked == [3]
    await until(lambda: asked == [3, 9])
