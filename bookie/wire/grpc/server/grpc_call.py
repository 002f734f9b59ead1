"""Serves a bookie's calls by gRPC: turns gRPC's contexts into calls that depend on no carrier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from grpc import aio

from bookie.wire.interfaces import SERVICE, BrokenCallError, IdentifiedCall
from bookie.wire.server.service import Handlers


class GrpcCall:
    """One call with several messages, on gRPC's context of the call."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            data = await self._context.read()
        except aio.BaseError as error:
            raise BrokenCallError(str(error)) from None
        return None if data is aio.EOF else data

    async def write(self, message: bytes, /) -> None:
        try:
            await self._context.write(message)
        except aio.BaseError as error:
            raise BrokenCallError(str(error)) from None

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...], /) -> None:
        try:
            await self._context.send_initial_metadata(metadata)
        except aio.BaseError as error:
            raise BrokenCallError(str(error)) from None

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        metadata: tuple[tuple[str, str | bytes], ...] = self._context.invocation_metadata()
        return metadata

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        self._context.add_done_callback(callback)

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        properties: Mapping[str, Iterable[bytes]] = self._context.auth_context()
        return properties

    def peer(self) -> str:
        name: str = self._context.peer()
        return name


def grpc_handlers(handlers: Handlers) -> grpc.GenericRpcHandler:
    """Return the handlers in the form that a gRPC server takes."""
    methods = {
        rpc: grpc.stream_stream_rpc_method_handler(_stream(serve))
        for rpc, serve in handlers.streams.items()
    }
    for rpc, listing in handlers.listings.items():
        methods[rpc] = grpc.unary_stream_rpc_method_handler(_listing(listing))
    for rpc, answer in handlers.calls.items():
        # A call with one answer uses only those methods of gRPC's context that need no translation.
        methods[rpc] = grpc.unary_unary_rpc_method_handler(answer)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _stream(
    serve: Callable[[IdentifiedCall], Awaitable[None]],
) -> Callable[[Any, Any], Awaitable[None]]:
    async def handler(_requests: Any, context: Any) -> None:
        await serve(GrpcCall(context))

    return handler


def _listing(
    serve: Callable[[bytes, IdentifiedCall], Awaitable[None]],
) -> Callable[[bytes, Any], Awaitable[None]]:
    async def handler(request: bytes, context: Any) -> None:
        await serve(request, GrpcCall(context))

    return handler
