"""The bookie's side of the connection that carries a client's calls with one answer each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bookie.env.turns import Turns
from bookie.errors import BadRequestError
from bookie.telemetry import event_log
from bookie.wire.call_metadata import Pairs
from bookie.wire.carrier import CallCode
from bookie.wire.frames.format import (
    CallRequest,
    encode_answer,
    parse_request,
    parse_request_head,
)
from bookie.wire.interfaces import BrokenCallError
from bookie.wire.server.service import Handlers

if TYPE_CHECKING:
    from bookie.wire.frames.server import FramesPort, ServedConnection

IDLE_TIMES: Final = 2
"""A connection for calls is closed after this many times `rpc.connection_idle_seconds_max` without
a call. Our client closes it after `rpc.connection_idle_seconds_max`, so it never sends a call while
the bookie closes."""

URGENT_BYTES_MAX: Final = 1024
"""Every request for which a recovery waits is smaller than this."""

_log = event_log(__name__)


class ServedCalls:
    """The calls of one connection, each in a task of its own.

    While the largest allowed number of calls runs on one connection, further requests wait. The
    connection counts their bytes, and reads nothing while too many bytes wait. A cancellation does
    not wait.

    Each call waits for a turn of the event loop before it begins, so a client with thousands of
    calls on many connections delays no other address. Calls for which a recovery waits have turns
    of their own, and overtake the other calls.
    """

    def __init__(self, connection: ServedConnection, port: FramesPort, handlers: Handlers) -> None:
        self._connection = connection
        self._port = port
        self._handlers, self._is_urgent = handlers.calls, handlers.is_urgent
        address = connection.peer().rpartition(":")[0]
        self._urgent = WaitingCalls(port.urgent_turns, address, self.pump)
        self._others = WaitingCalls(port.turns, address, self.pump)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._is_draining = False
        self._is_over = False
        """True if the connection has ended, so that no further call begins."""
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._rest()

    def arrived(self, data: bytes) -> None:
        """Take a frame of the client: a request, or the cancellation of an earlier request.

        Raises:
            BadRequestError: the frame is too short, or another unanswered call has the same id.
        """
        request_id, rpc, start = parse_request_head(data)
        if rpc is None:
            self._cancelled(request_id)
            return
        if any(request_id in one for one in (self._running, *self._queues())):
            raise BadRequestError("the id of a call is in use")  # the answers would look alike
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        request = data[start : start + URGENT_BYTES_MAX]
        waiting = self._urgent if self._is_urgent(rpc, request) else self._others
        waiting.requests[request_id] = data
        self._connection.hold(data)
        self.pump()

    def _cancelled(self, request_id: int) -> None:
        """Cancel a call that waits or runs; ignore other ids, whose calls were already answered."""
        for queue in self._queues():
            if (data := queue.pop(request_id, None)) is not None:
                self._connection.took(data)
                self._rest()
                return
        if (task := self._running.get(request_id)) is not None:
            _cancel(task)

    def pump(self) -> None:
        """Begin waiting requests while there is room; if the bookie is stopping, refuse them."""
        most = self._port.settings.concurrent_streams_max
        for waiting in (self._urgent, self._others):
            while waiting.requests and not self._is_over:
                has_room = len(self._running) < most
                if not (self._is_draining or (has_room and waiting.take_turn())):
                    break
                request_id = next(iter(waiting.requests))
                data = waiting.requests.pop(request_id)
                self._connection.took(data)
                if self._is_draining:
                    self._refuse(request_id)
                else:
                    self._start(data)
        self._rest()

    def _queues(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        return self._urgent.requests, self._others.requests

    def _refuse(self, request_id: int) -> None:
        answer = encode_answer(request_id, CallCode.UNAVAILABLE, b"the bookie is stopping")
        self._connection.try_answer(answer)

    def _start(self, data: bytes) -> None:
        try:
            request = parse_request(data, self._port.settings.metadata_bytes_max)
        except BadRequestError as error:
            self._port.note_malformed(self._connection.peer(), error)
            self._connection.abort()
            self.cancel()
            return
        assert isinstance(request, CallRequest)
        task = self._port.spawn(self._serve(request), f"{request.rpc} by frames")
        self._running[request.request_id] = task
        task.add_done_callback(lambda _: self._over(request.request_id))

    async def _serve(self, request: CallRequest) -> None:
        call = UnaryCall(self._connection, request.metadata)
        try:
            try:
                await self._connection.answer(await self._answer(request, call))
            finally:
                call.end()
        except BrokenCallError:
            pass  # the client is gone
        except Exception as error:  # noqa: BLE001  (it would stop the bookie, whose task this is)
            _log.error("call_failed", error, peer=call.peer(), rpc=request.rpc)
            self._connection.abort()

    async def _answer(self, request: CallRequest, call: UnaryCall) -> bytes:
        handler, most = self._handlers.get(request.rpc), self._port.settings.message_bytes_max
        code = CallCode.OK
        if handler is None:
            code, data = CallCode.UNIMPLEMENTED, b"there is no such call"
        elif len(request.message) > most:
            code, data = CallCode.RESOURCE_EXHAUSTED, b"the request is too large"
        else:
            try:
                data = await handler(request.message, call)
            except Exception as error:  # noqa: BLE001  (as gRPC answers what a handler raises)
                _log.error("call_failed", error, peer=call.peer(), rpc=request.rpc)
                code, data = CallCode.UNKNOWN, b"the bookie failed; its log says why"
            if len(data) > most:
                code, data = CallCode.RESOURCE_EXHAUSTED, b"the answer is too large"
        return encode_answer(request.request_id, code, data)

    def drain(self) -> None:
        """Refuse further calls; the connection ends after the earlier calls are answered."""
        self._is_draining = True
        self.pump()

    def cancel(self) -> None:
        """Cancel all calls, because the connection has ended."""
        self._is_over = True
        self._urgent.clear()
        self._others.clear()
        if self._idle is not None:
            self._idle.cancel()
        for task in self._running.values():
            _cancel(task)

    def _over(self, request_id: int) -> None:
        del self._running[request_id]
        self.pump()

    def _rest(self) -> None:
        """If no call is left, end the connection, or start its idle timer.

        The connection ends at once if it drains, or if its client has ended.
        """
        if self._is_over or self._running or any(self._queues()):
            return
        if self._is_draining or self._connection.has_ended:
            self._connection.finish(CallCode.OK)
        elif self._idle is None:
            seconds = IDLE_TIMES * self._port.settings.connection_idle_seconds_max
            self._idle = self._loop.call_later(seconds, self._connection.finish, CallCode.OK)


class WaitingCalls:
    """Requests of one connection that wait to begin, and the turn for which the first one waits.

    Args:
        turns: the turns of all connections.
        line: the name of the line in which the connection's address waits for turns (`Turns`).
        go_on: called when the turn has come.
    """

    __slots__ = ("_go_on", "_line", "_turn", "_turns", "requests")

    def __init__(self, turns: Turns, line: str, go_on: Callable[[], None]) -> None:
        self.requests: dict[int, bytes] = {}
        """The frames, by the ids of the calls."""
        self._turns, self._line, self._go_on = turns, line, go_on
        self._turn: asyncio.Future[None] | None = None

    def take_turn(self) -> bool:
        """Take a turn of the event loop; return False if the turn has not come yet."""
        if self._turn is not None:
            if not self._turn.done():
                return False
            self._turn = None
            return True
        if self._turns.try_take(1):
            return True
        self._turn = self._turns.later(1, self._line)
        self._turn.add_done_callback(lambda _: self._go_on())
        return False

    def clear(self) -> None:
        """Forget the requests, because the connection has ended."""
        self.requests.clear()
        if self._turn is not None:
            self._turn.cancel()


def _cancel(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a second cancellation would interrupt the task's cleanup
        task.cancel()


class UnaryCall:
    """The context of a call with one answer."""

    __slots__ = ("_callbacks", "_connection", "_metadata")

    def __init__(self, connection: ServedConnection, metadata: Pairs) -> None:
        self._connection = connection
        self._metadata = metadata
        self._callbacks: list[Callable[[Any], None]] = []

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        self._callbacks.append(callback)

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._connection.auth_context()

    def peer(self) -> str:
        return self._connection.peer()

    def end(self) -> None:
        """Call the callbacks, because the answer was taken or nobody waits for it."""
        for callback in self._callbacks:
            callback(self)
