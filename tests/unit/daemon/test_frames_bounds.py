"""The bounds of connections and of unread bytes hold for frames as for gRPC."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bookie.config import RpcSettings
from bookie.daemon.connections import ConnectionBounds, OwnSockets, bound_connections
from bookie.daemon.unfinished import UnfinishedCount, bound_unfinished
from bookie.env import beside
from bookie.telemetry import Metrics
from bookie.wire.codec import encode_add_request
from bookie.wire.frames.format import pack_size
from bookie.wire.frames.server import hold_frames_port
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.server.arrivals import Arrivals
from tests.unit.wire.fake_node import FakeNode, batch_of, until
from tests.unit.wire.frames.raw_peer import frame, hello, raw_peer

MIB = 1024 * 1024
RPC = RpcSettings(drain_seconds=0.2)


def add(request_id: int, size: int) -> bytes:
    return frame(encode_add_request(request_id, 3, batch_of([size])))


async def test_one_address_does_not_take_the_place_of_all() -> None:
    """The newest of its connections end, whichever carrier they are for."""
    metrics = Metrics()
    async with (
        hold_port("127.0.0.1", 0, RPC) as held,
        hold_frames_port("127.0.0.1", 0, RPC) as frames,
        held.serve(FakeNode(), metrics, beside=[frames]),
        AsyncExitStack() as stack,
        beside(
            [
                bound_connections(
                    OwnSockets([held.port, frames.port]),
                    lambda: ConnectionBounds(100, 4, 0),
                    lambda _: False,
                    metrics,
                )
            ]
        ),
    ):
        peers = []
        for _ in range(4):
            peers.append(await stack.enter_async_context(raw_peer(frames.port)))
            peers[-1].send(hello("AddStream"))
            await peers[-1].hello()
        count = metrics.registry.get_sample_value
        await until(lambda: count("bookie_connections") == 4)
        surplus = await stack.enter_async_context(raw_peer(frames.port))
        surplus.send(hello("AddStream"))
        while await surplus.unit() is not None:
            pass
        assert count("bookie_connections_ended_total", {"reason": "address"}) == 1
        for peer in peers:
            peer.send(add(1, 40))
            await peer.message()


async def test_what_is_read_does_not_count_and_what_is_unfinished_does() -> None:
    """Half a message of 8 MB on each of ten connections: the largest of them end."""
    arrivals, metrics, bound = Arrivals(), Metrics(), 100 * MIB
    async with (
        hold_port("127.0.0.1", 0, RPC) as held,
        hold_frames_port("127.0.0.1", 0, RPC) as frames,
        held.serve(FakeNode(), metrics, arrivals=arrivals, beside=[frames]),
        AsyncExitStack() as stack,
    ):
        sockets = OwnSockets([frames.port])
        count = UnfinishedCount(sockets, arrivals, drift=0)
        working = await stack.enter_async_context(raw_peer(frames.port))
        working.send(hello("AddStream"))
        await working.hello()
        for number in range(50):
            working.send(add(number, 100_000))
            await working.message()
        assert sum((await count.look()).values()) < 1000
        half = 200_000
        peers = [await stack.enter_async_context(raw_peer(frames.port)) for _ in range(10)]
        for peer in peers:
            peer.send(hello("AddStream") + pack_size(8_000_000) + bytes(half))
        # Each hello may explain a little more than was sent.
        least = 10 * half - 10_000
        async with asyncio.timeout(60):
            while sum((await count.look()).values()) < least:  # noqa: ASYNC110  (by the kernel)
                await asyncio.sleep(0.01)
        assert sum((await count.look()).values()) < 10 * half + 10_000
        bound = 5 * half
        async with beside([bound_unfinished(sockets, arrivals, lambda: bound, metrics)]):
            value = metrics.registry.get_sample_value
            labels = {"reason": "unfinished"}
            await until(lambda: (value("bookie_connections_ended_total", labels) or 0) >= 5)
        working.send(add(99, 40))
        await working.message()
