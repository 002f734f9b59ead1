"""Calls of each method wait in a line of their own until the bookie accepts them."""

from __future__ import annotations

from contextlib import ExitStack, closing

import grpc
import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import RpcSettings
from bookie.ids import INSTANCE_ID_METADATA_KEY
from bookie.security.rights import RPC_RIGHTS
from bookie.telemetry import Metrics
from bookie.wire.grpc.server.grpc_call import grpc_handlers
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.grpc.transport import WAITING_CALLS
from bookie.wire.interfaces import SERVICE
from bookie.wire.server.service import BookieService
from tests.served_node import serve
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, until
from tests.unit.wire.http2_peer import BlockingPeer

WRITES, FENCES = 2000, 20
"""So many writes in a line that gRPC refuses a part of them."""

SETTINGS = RpcSettings(drain_seconds=0.1, concurrent_streams_max=WRITES)
WRITE = pb.WriteLacRequest(ledger_id=3, lac_packet=b"x").SerializeToString()
LAST_WRITE = pb.WriteLacRequest(ledger_id=4, lac_packet=b"x").SerializeToString()
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


async def test_the_calls_that_wait_for_one_method_are_bounded() -> None:
    """The first thousand are never refused; later ones are, and take no memory."""
    node = FakeNode()
    most = 2 * WAITING_CALLS[1]
    settings = RpcSettings(drain_seconds=0.1, concurrent_streams_max=most)
    async with serve(node, "127.0.0.1", 0, settings, Metrics()) as port:
        with closing(BlockingPeer(port)) as peer:
            for _ in range(most):
                peer.call("WriteLac", WRITE)
            peer.until_seen()
            await until(lambda: len(node.calls) >= WAITING_CALLS[0] - 1)
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                last = channel.unary_unary(f"/{SERVICE}/WriteLac")
                # The line is shorter than a thousand now, and this call is its last one.
                await last(LAST_WRITE, metadata=((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),))
    assert node.calls[-1] == ("write_lac", 4, b"", b"x")
    assert WAITING_CALLS[0] < len(node.calls) <= WAITING_CALLS[1] + 2


async def test_each_method_of_the_service_has_a_line() -> None:
    """Also before the bookie serves; a method that is none has no line, and is refused."""
    node = FakeNode()
    service = BookieService(node, node.settings, Metrics())
    assert grpc_handlers(service.handlers()).keys() == RPC_RIGHTS.keys()
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
