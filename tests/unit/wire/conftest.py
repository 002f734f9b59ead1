"""A served fake node, and ways to call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bookie.config import RpcSettings
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from tests.served_node import serve_both
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode


@dataclass
class Served:
    """A bookie on loopback and a client of it."""

    node: FakeNode
    metrics: Metrics
    address: str
    """The address of the gRPC port."""
    channel: BookieChannel
    tasks: asyncio.TaskGroup

    def requests(self, rpc: str, status: str) -> float:
        """Number of answers of `rpc` with `status`."""
        value = self.metrics.registry.get_sample_value(
            "bookie_requests_total", {"rpc": rpc, "status": status}
        )
        return value or 0.0


@asynccontextmanager
async def serving_by(carrier: str) -> AsyncIterator[Served]:
    """Serve a fake node by both carriers, and call it by one of them."""
    node, metrics = FakeNode(), Metrics()
    settings = RpcSettings(drain_seconds=0.2)
    async with (
        serve_both(node, "127.0.0.1", settings, metrics) as ports,
        asyncio.TaskGroup() as tasks,
    ):
        address = f"127.0.0.1:{ports['grpc']}"
        channel = BookieChannel(
            f"127.0.0.1:{ports[carrier]}", INSTANCE_ID, tasks, is_framed=carrier == "frames"
        )
        yield Served(node, metrics, address, channel, tasks)
        await channel.close()


@pytest.fixture(params=["grpc", "frames"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A client by each carrier in turn."""
    async with serving_by(request.param) as one:
        yield one


@pytest.fixture
async def by_grpc() -> AsyncIterator[Served]:
    """A client by gRPC alone."""
    async with serving_by("grpc") as one:
        yield one
