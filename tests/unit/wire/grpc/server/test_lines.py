"""Calls of each method wait in a line of their own until the bookie accepts them."""

from __future__ import annotations

from contextlib import ExitStack, closing

import grpc
import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import RpcSettings
from bookie.security.rights import RPC_RIGHTS
from bookie.telemetry import Metrics
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.grpc.server.service import BookieService
from bookie.wire.interfaces import SERVICE
from tests.served_node import serve
from tests.unit.wire.fake_node import FakeNode, until
from tests.unit.wire.http2_peer import BlockingPeer

WRITES, FENCES = 2000, 20
"""So many writes in a line that gRPC refuses a part of them."""

SETTINGS = RpcSettings(drain_seconds=0.1, concurrent_streams_max=WRITES)
WRITE = pb.WriteLacRequest(ledger_id=3, lac_packet=b"x").SerializeToString()
FENCE = pb.FenceRequest(ledger_id=3).SerializeToString()


async def test_a_fence_does_not_wait_for_calls_of_other_methods() -> None:
    """Every fence is answered before most of the writes, which came first; none is refused."""
    node, metrics = FakeNode(), Metrics()

    def answered(rpc: str) -> float:
        labels = {"rpc": rpc, "status": "OK"}
        return metrics.registry.get_sample_value("bookie_requests_total", labels) or 0.0

    async with serve(node, "127.0.0.1", 0, SETTINGS, metrics) as port:
        with ExitStack() as stack:
            # Here the event loop stands still, so the bookie accepts none of these calls.
            for rpc, request, many in (("WriteLac", WRITE, WRITES), ("Fence", FENCE, FENCES)):
                peer = stack.enter_context(closing(BlockingPeer(port)))
                for _ in range(many):
                    peer.call(rpc, request)
                peer.until_seen()
            assert not node.calls
            # A turn accepts one write and one fence, so about as many writes as fences.
            few = WRITES // 4
            await until(lambda: answered("Fence") == FENCES or answered("WriteLac") > few)
            assert answered("Fence") == FENCES
            assert answered("WriteLac") <= few


async def test_each_method_of_the_service_has_a_line() -> None:
    """Also before the bookie serves; a method that is none has no line, and is refused."""
    node = FakeNode()
    assert BookieService(node, node.settings, Metrics()).handlers().keys() == RPC_RIGHTS.keys()
    async with (
        hold_port("127.0.0.1", 0, SETTINGS) as held,
        aio.insecure_channel(f"127.0.0.1:{held.port}") as channel,
    ):

        async def code(rpc: str) -> grpc.StatusCode:
            with pytest.raises(aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{SERVICE}/{rpc}")(b"")
            found: grpc.StatusCode = caught.value.code()
            return found

        for rpc in (*RPC_RIGHTS, "Nothing"):
            assert await code(rpc) is grpc.StatusCode.UNAVAILABLE, rpc
        async with held.serve(node, Metrics()):
            assert await code("Nothing") is grpc.StatusCode.UNIMPLEMENTED
