"""A served fake node, and ways to call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from bookie.config import RpcSettings
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from tests.served_node import serve
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode


@dataclass
class Served:
    """A bookie on loopback and a client of it."""

    node: FakeNode
    metrics: Metrics
    address: str
    channel: BookieChannel
    tasks: asyncio.TaskGroup

    def requests(self, rpc: str, status: str) -> float:
        """Number of answers of `rpc` with `status`."""
        value = self.metrics.registry.get_sample_value(
            "bookie_requests_total", {"rpc": rpc, "status": status}
        )
        return value or 0.0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    node, metrics = FakeNode(), Metrics()
    settings = RpcSettings(drain_seconds=0.2)
    async with serve(node, "127.0.0.1", 0, settings, metrics) as port, asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        yield Served(node, metrics, f"127.0.0.1:{port}", channel, tasks)
        await channel.close()
