"""A client's two gRPC connections to one bookie: one for bulk streams, one for all other calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any, Final

import grpc
from grpc import aio

from bookie.config import RpcSettings
from bookie.wire.call_metadata import Pairs
from bookie.wire.grpc import transport
from bookie.wire.interfaces import SERVICE

UNARY_RPCS: Final = ("Read", "ReadLac", "Fence", "Force", "WriteLac", "GetInfo")
"""The calls with one answer."""


class GrpcCarrier:
    """Carries a client's calls to the bookie at `address` (``HOST:PORT``); see `Carrier`.

    A fence or a LAC read must not wait behind megabytes of adds, so adds have a connection of their
    own.
    """

    failures: tuple[type[Exception], ...] = (grpc.RpcError,)
    broken: tuple[type[Exception], ...] = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)

    def __init__(
        self,
        address: str,
        settings: RpcSettings,
        connect_timeout_seconds: float,
        credentials: Any = None,
    ) -> None:
        options = transport.channel_options(settings, connect_timeout_seconds)
        self._bulk = transport.open_channel(address, options, credentials)
        self._control = transport.open_channel(address, options, credentials)
        self._unary = {rpc: self._control.unary_unary(f"/{SERVICE}/{rpc}") for rpc in UNARY_RPCS}

    @property
    def is_connected(self) -> bool:
        states = {one.get_state() for one in (self._bulk, self._control)}
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.READY in states and failed not in states

    @property
    def is_failing(self) -> bool:
        return False  # if gRPC cannot reach a bookie, no other carrier can

    def prepared(self, metadata: Pairs, /) -> Any:
        # This is gRPC's own type, so gRPC need not convert the metadata at each call.
        return aio.Metadata(*metadata)

    def stream(self, rpc: str, metadata: Any, /, *, is_bulk: bool = False) -> Any:
        connection = self._bulk if is_bulk else self._control
        return connection.stream_stream(f"/{SERVICE}/{rpc}")(metadata=metadata)

    def call(self, rpc: str, request: bytes, metadata: Any, /) -> Any:
        return self._unary[rpc](request, metadata=metadata)

    def listing(
        self, rpc: str, request: bytes, metadata: Any, timeout: float | None, /
    ) -> AsyncIterable[bytes]:
        begin = self._control.unary_stream(f"/{SERVICE}/{rpc}")
        call: AsyncIterable[bytes] = begin(request, timeout=timeout, metadata=metadata)
        return call

    async def close(self) -> None:
        await self._bulk.close()
        await self._control.close()
