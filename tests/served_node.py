"""Serve a node on a port of this machine, as the daemon does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from bookie.config import RpcSettings
from bookie.telemetry import Metrics
from bookie.wire.frames.server import hold_frames_port
from bookie.wire.grpc.server.grpc_server import ServedNode, hold_port


@contextlib.asynccontextmanager
async def serve(
    bookie: ServedNode, host: str, port: int, settings: RpcSettings, metrics: Metrics
) -> AsyncIterator[int]:
    """Hold a port and serve `bookie` on it; yields the port. See `hold_port`, `HeldPort.serve`."""
    async with hold_port(host, port, settings) as held, held.serve(bookie, metrics):
        yield held.port


@contextlib.asynccontextmanager
async def serve_both(
    bookie: ServedNode,
    host: str,
    settings: RpcSettings,
    metrics: Metrics,
    *,
    port: int = 0,
    frames_port: int = 0,
) -> AsyncIterator[dict[str, int]]:
    """Serve `bookie` by gRPC and by frames; yields the port of each carrier."""
    async with (
        hold_port(host, port, settings) as held,
        hold_frames_port(host, frames_port, settings) as frames,
        held.serve(bookie, metrics, beside=[frames]),
    ):
        yield {"grpc": held.port, "frames": frames.port}
