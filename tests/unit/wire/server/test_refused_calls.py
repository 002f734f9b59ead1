"""Calls that are refused before a handler sees them count like all others: once, by status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import NodeSettings, RpcSettings
from bookie.env import SystemClock
from bookie.ids import (
    BOOKIE_ID_METADATA_KEY,
    INCARNATION_METADATA_KEY,
    INSTANCE_ID_METADATA_KEY,
    Status,
)
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Gatekeeper, PrincipalRules
from bookie.security.permissions import LedgerLogs
from bookie.security.rights import RPC_RIGHTS
from bookie.telemetry import Metrics
from bookie.wire.codec import encode_add_request, encode_streamed_read
from bookie.wire.commands import ReadCommand
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.interfaces import SERVICE
from bookie.wire.unary_codec import WatchChange, encode_watch_change
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of

RPC = RpcSettings(drain_seconds=0.2)
OURS = (INSTANCE_ID_METADATA_KEY, INSTANCE_ID)
TIMEOUT_SECONDS = 60.0

PAGED = ("ListEntries", "ListLedgers")
MESSAGES = {
    "AddStream": encode_add_request(1, 7, batch_of([1])),
    "ReadStream": encode_streamed_read(1, ReadCommand(3, 0, 0, 1, 1000)),
    "WatchLac": encode_watch_change(WatchChange(subscribe=[1], unsubscribe=[])),
}
"""A first message of each stream."""
UNARY = {"WriteLac": pb.WriteLacRequest(lac_packet=b"x").SerializeToString()}
"""Requests that cannot be empty."""

CASES = [
    pytest.param(((INSTANCE_ID_METADATA_KEY, "another"),), Status.WRONG_CLUSTER, id="cluster"),
    pytest.param((), Status.WRONG_CLUSTER, id="no cluster"),
    pytest.param((OURS, (BOOKIE_ID_METADATA_KEY, "b9")), Status.IO_ERROR, id="bookie"),
    pytest.param((OURS, (INCARNATION_METADATA_KEY, "a")), Status.WRONG_INCARNATION, id="life"),
    pytest.param((OURS, ("authorization", "Bearer x")), Status.NOT_PERMITTED, id="token"),
    pytest.param((OURS,), Status.TOO_MANY_REQUESTS, id="share"),
]


async def no_log(_: int) -> str | None:
    return None


@asynccontextmanager
async def server(status: Status) -> AsyncIterator[tuple[Any, Metrics]]:
    """A channel to a bookie; it is at its share if that is the case to be tested."""
    at_share = status is Status.TOO_MANY_REQUESTS
    node, metrics = FakeNode(NodeSettings(identity_calls_max=1 if at_share else 100)), Metrics()
    node.incarnation = "b"
    clock = SystemClock()
    rules, logs = PrincipalRules([]), LedgerLogs(no_log)
    keeper = Gatekeeper(rules, logs, clock, AuditLog(clock), is_required=not at_share)
    async with (
        hold_port("127.0.0.1", 0, RPC) as held,
        held.serve(node, metrics, keeper),
        aio.insecure_channel(f"127.0.0.1:{held.port}") as channel,
    ):
        if at_share:
            stream = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=(OURS,))
            await stream.initial_metadata()
        yield channel, metrics


async def call(channel: Any, rpc: str, metadata: Any, messages: list[bytes]) -> None:
    """Make a call up to its end."""
    given = {"metadata": metadata, "timeout": TIMEOUT_SECONDS}
    method = f"/{SERVICE}/{rpc}"
    if rpc in MESSAGES:
        stream = channel.stream_stream(method)(**given)
        await stream.initial_metadata()
        for message in messages:
            await stream.write(message)
            assert await stream.read() is not aio.EOF
        await stream.done_writing()
        while await stream.read() is not aio.EOF:
            pass
    elif rpc in PAGED:
        assert len([page async for page in channel.unary_stream(method)(b"", **given)]) == 1
    else:
        await channel.unary_unary(method)(UNARY.get(rpc, b""), **given)


def counted(metrics: Metrics) -> dict[tuple[str, str], float]:
    """The answers of all calls, by call and status."""
    return {
        (sample.labels["rpc"], sample.labels["status"]): sample.value
        for family in metrics.requests_total.collect()
        for sample in family.samples
        if sample.name == "bookie_requests_total"
    }


@pytest.mark.parametrize(("metadata", "status"), CASES)
async def test_every_refused_call_counts_once(metadata: Any, status: Status) -> None:
    """A stream, too, whose client sends nothing: else a flood of them would not show."""
    async with server(status) as (channel, metrics):
        for rpc in RPC_RIGHTS:
            await call(channel, rpc, metadata, [])
        expected = {(rpc, status.name): 1.0 for rpc in RPC_RIGHTS}
        assert counted(metrics) == expected


@pytest.mark.parametrize("rpc", ["AddStream", "ReadStream"])
async def test_each_request_of_a_refused_stream_counts(rpc: str) -> None:
    """The stream itself does not count beside them."""
    status = Status.WRONG_CLUSTER
    async with server(status) as (channel, metrics):
        await call(channel, rpc, (), [MESSAGES[rpc]] * 3)
        await call(channel, rpc, (), [])
        assert counted(metrics) == {(rpc, status.name): 4.0}
