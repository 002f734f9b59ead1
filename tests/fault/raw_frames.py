"""Calls by frames as a stranger would make them, with the methods of gRPC's channel.

Only the product's carrier takes part, which moves bytes and knows nothing of ledgers or roles.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from bookie.config import RpcSettings
from bookie.wire.frames.client import FramesCarrier, StreamConnection

CONNECT_SECONDS_MAX = 60.0

Serialize = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]


def _rpc(method: str) -> str:
    return method.rpartition("/")[2]


class FramesChannel:
    """A channel by TLS to the port for frames of a bookie of this machine."""

    def __init__(self, port: int, context: ssl.SSLContext, tasks: asyncio.TaskGroup) -> None:
        self._carrier = FramesCarrier(
            f"127.0.0.1:{port}", tasks, RpcSettings(), CONNECT_SECONDS_MAX, lambda: context
        )

    async def close(self) -> None:
        """End all calls."""
        await self._carrier.close()

    def unary_unary(self, method: str, serialize: Serialize, parse: Parse) -> Callable[..., Any]:
        """A function that makes a call with one answer."""

        async def call(request: Any, *, metadata: Any, timeout: float) -> Any:
            prepared = self._carrier.prepared(metadata)
            async with asyncio.timeout(timeout):
                return parse(await self._carrier.call(_rpc(method), serialize(request), prepared))

        return call

    def unary_stream(self, method: str, serialize: Serialize, parse: Parse) -> Callable[..., Any]:
        """A function that makes a call with pages of answers."""

        async def call(request: Any, *, metadata: Any, timeout: float) -> AsyncIterator[Any]:
            prepared = self._carrier.prepared(metadata)
            data = serialize(request)
            async for page in self._carrier.listing(_rpc(method), data, prepared, timeout):
                yield parse(page)

        return call

    def stream_stream(self, method: str, serialize: Serialize, parse: Parse) -> Callable[..., Any]:
        """A function that opens a stream."""

        def call(*, metadata: Any, timeout: float) -> _Stream:
            del timeout  # whoever reads has a time limit of the test's
            prepared = self._carrier.prepared(metadata)
            return _Stream(self._carrier.stream(_rpc(method), prepared), serialize, parse)

        return call


class _Stream:
    def __init__(self, stream: StreamConnection, serialize: Serialize, parse: Parse) -> None:
        self._stream = stream
        self._answers = aiter(stream)
        self._serialize, self._parse = serialize, parse

    async def write(self, request: Any) -> None:
        await self._stream.write(self._serialize(request))

    async def read(self) -> Any:
        return self._parse(await anext(self._answers))

    def cancel(self) -> None:
        self._stream.cancel()
