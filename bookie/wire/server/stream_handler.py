"""The bookie's side of a stream: how a stream begins, reads, writes and ends.

Two tasks serve a stream, a reader and a writer; a request needs no task of its own. The reader
accepts messages until the client or the bookie ends the stream. The writer sends answers, and
sleeps while no answer is ready. The subclasses `AddStreamHandler`, `ReadStreamHandler` and
`LacWatchHandler` define `_take`, which handles a message, and `_write`, which sends the answers.

Each message and each answer waits for a turn of the event loop (`bookie.env.turns`). Messages for
which a recovery waits need no turn. A client that receives no answer for too long loses its
connection.
"""

from __future__ import annotations

import asyncio

from bookie.errors import BookieError
from bookie.wire.interfaces import BrokenCallError, CallContext
from bookie.wire.server.arrivals import Arrived
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.visits import Visit


class StreamHandler:
    """Serves one streaming call; each kind of stream defines `_take` and `_write`.

    Args:
        visit: the resources of the bookie that the call uses; the code that made the visit ends it.
        errors: counts the answers by status.
        refusal: answers every request, because the stream as a whole is refused. If no request
            comes, the refusal is counted once, so that a flood of such streams is visible in the
            metrics.
    """

    _rpc: str
    """The call's name in metrics."""
    _offers: tuple[tuple[str, str], ...] = ()
    """Initial metadata, which tells the client what this stream supports."""

    def __init__(self, visit: Visit, errors: ErrorMapper, refusal: BookieError | None) -> None:
        self._visit = visit
        self._errors = errors
        self._refusal = refusal
        self._untold = refusal
        """The refusal of the stream; None once the refusal has answered a request."""
        self._is_urgent = True
        """True if messages need no turn: recovery waits for them, or it is the first message."""
        self.is_brief = False
        """True if the stream ends after its first message, because a share has no room for the
        stream."""
        self._tasks = asyncio.TaskGroup()
        """The tasks of this call; all of them end before the call."""
        self._sleep: asyncio.Future[None] | None = None
        """The future on which the writer sleeps until an answer is ready or the stream ends.

        There is no await between the writer's last check for answers and the assignment of this
        future, so no wake-up is lost.
        """
        self._answered = asyncio.Event()
        """Set when an answer has been sent."""
        self._ended = False
        self.arrived = Arrived()
        """Counts the received bytes; the service replaces this object by the one of the
        connection."""

    async def serve(self, context: CallContext) -> None:
        """Serve until the client has sent its last message and received its last answer.

        When the stream breaks, the carrier cancels this method, or a call of the carrier raises an
        error and the method returns early.
        """
        try:
            async with self._tasks as tasks:
                reader = tasks.create_task(
                    self._read(context), name=f"reader of {type(self).__name__}"
                )
                try:
                    await context.send_initial_metadata(self._offers)
                    await self._write(context)
                except BrokenCallError:
                    pass  # the stream broke during a write
                finally:
                    reader.cancel()
                    self._stop()
        finally:
            if self._untold is not None:
                self._errors.count(self._rpc, self._untold.status)
            self.arrived.busy.discard(self)
            self._forget()

    def end(self) -> None:
        """Accept no further message; end the stream after the answers to the accepted requests."""
        self._ended = True
        self._wake()

    async def _read(self, context: CallContext) -> None:
        """Accept messages until the client or the bookie ends the stream."""
        while not self._ended:
            try:
                data = await context.read()
            except BrokenCallError:
                break
            if data is None:
                break
            self.arrived.message(len(data))
            self.arrived.busy.add(self)
            if not (self._is_urgent or self._visit.try_turn(1)):
                await self._visit.turn(1)
            self._is_urgent = False
            self._take(data)
            while self._is_full:
                self._answered.clear()
                await self._answered.wait()
            self.arrived.busy.discard(self)
            if self.is_brief:
                break
        self.end()

    async def _send(self, context: CallContext, data: bytes) -> None:
        """Wait for a turn, then write one message; the visit limits the time of the write."""
        visit = self._visit
        if not (self._is_urgent or visit.try_turn(1)):
            await visit.turn(1)
        visit.sends()
        try:
            await context.write(data)
        finally:
            visit.rests()

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    @property
    def _is_full(self) -> bool:
        """True if too many requests are unanswered; the reader then reads no further message."""
        return False

    async def _write(self, context: CallContext) -> None:
        """Send answers until the stream has ended."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Cancel the tasks that prepare answers."""

    def _forget(self) -> None:
        """Release everything that the stream holds, after every task has ended."""

    def _wake(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
