"""Peers that break the rules of the transport hurt themselves and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from bookie.config import RpcSettings
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from tests.served_node import serve
from tests.unit.wire.fake_node import INFO, INSTANCE_ID, FakeNode, until
from tests.unit.wire.http2_peer import DATA, END_STREAM, PING, RST_STREAM, connected

SETTINGS = RpcSettings(drain_seconds=0.2, handshake_timeout_seconds=0.3, concurrent_streams_max=20)


@dataclass
class Target:
    """A server with tight limits, and somebody who keeps the rules."""

    node: FakeNode
    port: int
    honest: BookieChannel

    async def still_serves(self) -> None:
        """The honest client gets its answer."""
        assert await self.honest.info(timeout=60) == INFO


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    node = FakeNode()
    async with (
        serve(node, "127.0.0.1", 0, SETTINGS, Metrics()) as port,
        asyncio.TaskGroup() as tasks,
    ):
        honest = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        yield Target(node, port, honest)
        await honest.close()


async def test_a_flood_of_pings_ends_the_connection(target: Target) -> None:
    """A peer that pings more often than it may is sent away."""
    async with connected(target.port) as peer:
        for _ in range(20):
            peer.frame(PING, 0, 0, bytes(8))
        async with asyncio.timeout(60):
            await peer.until_closed()
    await target.still_serves()


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n"])
async def test_a_peer_that_never_introduces_itself_is_dropped(target: Target, sent: bytes) -> None:
    """Half a handshake holds its connection no longer than the handshake timeout."""
    async with connected(target.port, introduced=False) as peer:
        peer.writer.write(sent)
        async with asyncio.timeout(60):
            await peer.until_closed()
    await target.still_serves()


async def test_streams_opened_and_reset_cost_nothing(target: Target) -> None:
    """Thousands of calls that are taken back at once leave nothing behind."""
    async with connected(target.port) as peer:
        for rpc in ["AddStream", "ReadStream"] * 1500:
            peer.frame(RST_STREAM, 0, peer.open(rpc), (8).to_bytes(4, "big"))
        await peer.flush()
        await target.still_serves()


async def test_calls_on_one_connection_are_bounded(target: Target) -> None:
    """More streams than allowed are refused by transport; other connections have their own."""
    target.node.reading.clear()
    async with connected(target.port) as peer:
        for _ in range(60):
            peer.call("Read", b"\x08\x03")
        await until(lambda: len(target.node.calls) == SETTINGS.concurrent_streams_max)
        await target.still_serves()
        assert len(target.node.calls) == SETTINGS.concurrent_streams_max + 1


async def test_metadata_is_bounded(target: Target) -> None:
    """A call with more metadata than allowed never reaches the servicer."""
    async with connected(target.port) as peer:
        stream_id = peer.open("GetInfo", (("x-bomb", "b" * 15000), ("x-more", "b" * 3000)))
        peer.frame(DATA, END_STREAM, stream_id, bytes(5))
        await peer.flush()
        await target.still_serves()
    assert len(target.node.calls) == 1
