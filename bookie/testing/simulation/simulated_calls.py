"""Simulated gRPC: channels and calls with the methods of `grpc.aio`, on a `SimulatedNetwork`.

The real client uses these channels, which pass its bytes to the handlers of the real service. Calls
fail as in gRPC: with UNAVAILABLE if the connection is broken or refused, with DEADLINE_EXCEEDED
after the call's timeout, and with CANCELLED if the client or the server cancels the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from bookie.env.backoff import Backoff
from bookie.testing.simulation.simulated_network import (
    PROCESS,
    Connection,
    Pipe,
    SimulatedNetwork,
    SimulatedProcess,
    run_in,
)

BACKOFF_SECONDS = (0.1, 1.0)
"""The first and the longest backoff, in seconds. After a failed attempt to connect, calls fail at
once during the backoff; each further failed attempt doubles the backoff.
"""


def failed(code: grpc.StatusCode, details: str) -> aio.AioRpcError:
    """Return the error for a failed call."""
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details)


@dataclass(frozen=True, slots=True)
class _CallDetails:
    """The method and metadata of a call; gRPC's generic handlers read both."""

    method: str
    invocation_metadata: tuple[tuple[str, Any], ...]


class SimulatedChannel:
    """A channel to one address, which belongs to the simulated process that opened it."""

    def __init__(
        self, network: SimulatedNetwork, address: str, connect_timeout_seconds: float
    ) -> None:
        self.network = network
        self.address = address
        self.process: SimulatedProcess = PROCESS.get()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._connection: Connection | None = None
        self._waiting: list[ClientCall] = []
        self._is_connecting = False
        self._refuses_until = 0.0
        self._backoff = Backoff(*BACKOFF_SECONDS)
        self._calls: dict[ClientCall, None] = {}
        self._is_closed = False

    def unary_unary(self, method: str) -> Callable[..., ClientCall]:
        """Return a function that starts a call with one request and one answer."""

        def begin(request: bytes, timeout: float | None = None, metadata: Any = None) -> ClientCall:
            return ClientCall(self, method, metadata, request, timeout)

        return begin

    unary_stream = unary_unary
    """Return a function that starts a call with one request and many answers."""

    def stream_stream(self, method: str) -> Callable[..., ClientCall]:
        """Return a function that starts a call with many messages in both directions."""

        def begin(metadata: Any = None) -> ClientCall:
            return ClientCall(self, method, metadata, None, None)

        return begin

    async def close(self) -> None:
        self._is_closed = True
        for call in list(self._calls):
            call.cancel()
        await asyncio.sleep(0)

    def begin(self, call: ClientCall) -> None:
        """Start `call` on the channel's connection, or as soon as there is a connection."""
        loop = self.network.loop
        self._calls[call] = None
        if self._is_closed:
            call.cancel()
        elif self._connection is not None and self._connection.is_client_open:
            call.start(self._connection)
        elif loop.time() < self._refuses_until:
            call.fail(grpc.StatusCode.UNAVAILABLE, "the last attempt to connect failed")
        else:
            self._waiting.append(call)
            self._connect()

    def end(self, call: ClientCall) -> None:
        self._calls.pop(call, None)

    def _connect(self) -> None:
        if self._is_connecting:
            return
        self._is_connecting = True
        _Handshake(self, self.network, self._connect_timeout_seconds).begin()

    def connected(self, connection: Connection | None, reason: str = "") -> None:
        """Start the waiting calls after a successful attempt to connect, else fail these calls."""
        self._is_connecting = False
        waiting, self._waiting = self._waiting, []
        self._connection = connection
        if connection is None:
            self._refuses_until = self.network.loop.time() + self._backoff.next()
            for call in waiting:
                call.fail(grpc.StatusCode.UNAVAILABLE, reason)
            return
        self._backoff.reset()
        for call in waiting:
            if not call.done():
                call.start(connection)


class _Handshake:
    """One attempt to connect: a message to the server and its answer, within the timeout."""

    def __init__(
        self, channel: SimulatedChannel, network: SimulatedNetwork, timeout_seconds: float
    ) -> None:
        self._channel = channel
        self._network = network
        self._timeout_seconds = timeout_seconds
        self._is_over = False

    def begin(self) -> None:
        loop = self._network.loop
        lane = loop.new_lane()
        loop.call_in_lane_at(lane, loop.time() + self._timeout_seconds, self._time_out)
        client = self._channel.process
        port = self._network.find(self._channel.address)
        if port is None:
            there = self._network.arrival(client.host, client.host)
            loop.call_in_lane_at(lane, there, self._end, None, "connection refused")
            return
        server = port.process
        back = Pipe(self._network, server, client, lambda _: self._accept(server))
        there_pipe = Pipe(self._network, client, server, lambda _: back.send(None))
        there_pipe.send(None)

    def _accept(self, server: SimulatedProcess) -> None:
        if not self._is_over:
            self._end(Connection(self._network, self._channel.process, server), "")

    def _time_out(self) -> None:
        self._end(None, "no answer in time")

    def _end(self, connection: Connection | None, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._channel.connected(connection, reason)


class ClientCall:
    """The client's side of one call."""

    def __init__(
        self,
        channel: SimulatedChannel,
        method: str,
        metadata: Any,
        request: bytes | None,
        timeout: float | None,
    ) -> None:
        self._channel = channel
        self._loop = channel.network.loop
        self.method = method
        self.metadata = tuple(metadata or ())
        self._request = request
        self._up: Pipe | None = None
        self._connection: Connection | None = None
        self._early: list[Any] = []
        """Messages written before the call had a connection."""
        self._messages: deque[bytes] = deque()
        self._initial: Any = None
        self._outcome: BaseException | None = None
        self._is_done = False
        self._changed: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._timer = self._loop.call_later(
                timeout, self.fail, grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"
            )
        channel.begin(self)

    # --- as gRPC has it ------------------------------------------------------------------

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return isinstance(self._outcome, asyncio.CancelledError)

    def cancel(self) -> bool:
        """End the call; the server gets the cancellation later."""
        if self._is_done:
            return False
        if self._up is not None:
            self._up.send(("cancel", None))
        self._finish(asyncio.CancelledError())
        return True

    async def initial_metadata(self) -> Any:
        """Return the initial metadata of the bookie; empty for a failed call."""
        while self._initial is None and not self._is_done:
            await self._change()
        if self.cancelled():
            raise asyncio.CancelledError
        return self._initial or ()

    async def details(self) -> str:
        """Return the reason why the call failed; empty if the call has not failed."""
        error = self._outcome
        return (error.details() or "") if isinstance(error, grpc.RpcError) else ""

    async def write(self, message: bytes) -> None:
        if self._is_done:
            raise asyncio.InvalidStateError("the call has ended")
        if self._up is None:
            self._early.append(message)
        else:
            self._up.send(("message", bytes(message)))
        await asyncio.sleep(0)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._answer().__await__()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answers()

    async def _answer(self) -> bytes:
        try:
            while not self._is_done:
                await self._change()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._outcome is not None:
            raise self._outcome
        return self._messages.popleft()

    async def _answers(self) -> AsyncIterator[bytes]:
        while True:
            while self._messages:
                yield self._messages.popleft()
            if self._is_done:
                break
            await self._change()
        if self._outcome is not None:
            raise self._outcome

    # --- below ---------------------------------------------------------------------------

    def start(self, connection: Connection) -> None:
        """Begin the call on `connection`: send the request and all messages written so far."""
        if self._is_done:
            return
        self._connection = connection
        network = connection.network
        server = ServerCall(connection, self)
        self._up = Pipe(network, connection.client, connection.server, server.take)
        connection.client_calls[self] = None
        self._up.send(("begin", self._request))
        for message in self._early:
            self._up.send(("message", bytes(message)))
        self._early.clear()

    def take(self, item: tuple[str, Any]) -> None:
        if self._is_done:
            return
        kind, value = item
        if kind == "initial":
            self._initial = value
        elif kind == "message":
            self._messages.append(value)
        elif kind == "end":
            self._finish(None)
        else:
            self.fail(*value)
            return
        self._wake()

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        if not self._is_done:
            self._messages.clear()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and self._up is not None:
                self._up.send(("cancel", None))
            self._finish(failed(code, details))

    @property
    def is_sending_adds(self) -> bool:
        return self.method.endswith("/AddStream") and self._up is not None and self._up.is_busy

    def delay(self, seconds: float) -> None:
        """Delay by `seconds` the messages of this call that are in flight."""
        if self._up is not None:
            self._up.delay(seconds)

    def on_broken(self, reason: str) -> None:
        """End the call, because its connection broke at the client."""
        self.fail(grpc.StatusCode.UNAVAILABLE, reason)

    def _finish(self, outcome: BaseException | None) -> None:
        self._is_done = True
        self._outcome = outcome
        if self._timer is not None:
            self._timer.cancel()
        self._channel.end(self)
        if self._connection is not None:
            self._connection.client_calls.pop(self, None)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    async def _change(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(future)
        await future


class ServerCall:
    """The server's side of one call; the handler gets this object in place of gRPC's context."""

    def __init__(self, connection: Connection, client: ClientCall) -> None:
        self._connection = connection
        self._network = connection.network
        self._method, self._metadata = client.method, client.metadata
        self._down = Pipe(self._network, connection.server, connection.client, client.take)
        self._messages: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._is_over = False

    # --- as gRPC has it ------------------------------------------------------------------

    async def read(self) -> Any:
        while not self._messages:
            if self._is_over:
                return aio.EOF
            self._reader = self._network.loop.create_future()
            await self._reader
        return self._messages.popleft()

    async def write(self, message: bytes) -> None:
        if self._is_over:
            raise aio.UsageError("the call has ended")
        self._down.send(("message", bytes(message)))
        await asyncio.sleep(0)

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        if self._is_over:
            raise aio.UsageError("the call has ended")
        self._down.send(("initial", tuple(metadata)))
        await asyncio.sleep(0)

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def peer(self) -> str:
        """Return the client's address; only its host is meaningful."""
        return f"simulated:{self._connection.client.host}:0"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self._down.send(("error", (code, details)))
        raise aio.AbortError

    # --- below ---------------------------------------------------------------------------

    def take(self, item: tuple[str, Any]) -> None:
        if self._is_over or not self._connection.is_server_open:
            return
        kind, value = item
        if kind == "begin":
            self._begin(value)
        elif kind == "message":
            if not self._connection.is_client_open and self._method.endswith("/AddStream"):
                self._network.late_adds += self._connection.has_successor(self._method)
            self._messages.append(value)
            if self._reader is not None and not self._reader.done():
                self._reader.set_result(None)
        else:
            self.on_broken("the client cancelled")

    def on_broken(self, reason: str) -> None:
        """End the call: its connection broke at the server, or the client cancelled the call."""
        del reason
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self, request: bytes | None) -> None:
        process = self._connection.server
        port = next(
            (
                found
                for found in self._network.ports()
                if found.process is process and found.process.is_alive
            ),
            None,
        )
        handler = None if port is None else port.service(_CallDetails(self._method, self._metadata))
        if handler is None:
            code = grpc.StatusCode.UNIMPLEMENTED if port else grpc.StatusCode.UNAVAILABLE
            self._down.send(("error", (code, "no such method here")))
            return
        self._connection.server_calls[self] = None
        self._task = self._network.loop.create_task(
            self._serve(handler, request), name=f"call {self._method}", context=run_in(process)
        )

    async def _serve(self, handler: Any, request: bytes | None) -> None:
        try:
            if handler.unary_unary is not None:
                self._down.send(("message", bytes(await handler.unary_unary(request, self))))
            elif handler.unary_stream is not None:
                await handler.unary_stream(request, self)
            else:
                await handler.stream_stream(None, self)
            self._down.send(("end", None))
        except aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._down.send(("error", (grpc.StatusCode.CANCELLED, "the call was cancelled")))
        except Exception as error:  # noqa: BLE001  (gRPC also answers any error of a handler)
            if self._connection.server.is_alive:
                self._network.unexpected.append(error)
            self._down.send(("error", (grpc.StatusCode.UNKNOWN, str(error))))
        finally:
            self._is_over = True
            self._connection.server_calls.pop(self, None)
            for callback in self._callbacks:
                callback(self)
