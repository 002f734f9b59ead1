"""The bookie's side of a stream: how a stream begins, reads, writes and ends.

Two coroutines serve a stream, so a stream costs two tasks, and a request costs none. The reader
accepts messages until the client or the bookie ends the stream. The writer sends the owed answers,
and sleeps while no answer is owed. The subclasses `AddStreamHandler`, `ReadStreamHandler` and
`LacWatchHandler` define `_take`, which handles a message, and `_write`, which sends the answers.

Each message and each answer takes a turn of the event loop, which ordinary streams share. A stream
that does what recovery waits for does not wait for turns. A client that takes no answer loses its
connection after a while.
"""

from __future__ import annotations

import asyncio

from grpc import aio

from bookie.wire.grpc.server.arrivals import Arrived
from bookie.wire.grpc.server.visits import Visit
from bookie.wire.interfaces import CallContext


class StreamHandler:
    """Serves one streaming call; each kind of stream defines `_take` and `_write`.

    Args:
        visit: what the call holds of the bookie; its maker ends it after the call.
    """

    _offers: tuple[tuple[str, str], ...] = ()
    """Initial metadata, which tells the client what this stream supports."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._is_urgent = True
        """True if messages need no turn: recovery waits for them, or it is the first message."""
        self.is_brief = False
        """True if the stream ends after its first message, because it is refused for its share."""
        self._tasks = asyncio.TaskGroup()
        """The tasks of this call; all of them end before the call."""
        self._sleep: asyncio.Future[None] | None = None
        """The future on which the writer sleeps until an answer is owed or the stream ends.

        There is no await between the writer's last check for answers and the assignment of this
        future, so no wake-up is lost.
        """
        self._answered = asyncio.Event()
        """Set when an owed answer has been sent."""
        self._ended = False
        self.arrived = Arrived()
        """Counts the messages; whoever makes the handler sets the connection's own count."""

    async def serve(self, context: CallContext) -> None:
        """Serve until the client has sent its last message and received its last answer.

        The call is cancelled when the stream breaks, or returns early when gRPC reports the break
        by an error.
        """
        try:
            async with self._tasks as tasks:
                reader = tasks.create_task(
                    self._read(context), name=f"reader of {type(self).__name__}"
                )
                try:
                    await context.send_initial_metadata(self._offers)
                    await self._write(context)
                except aio.BaseError:
                    pass  # the stream broke during a write
                finally:
                    reader.cancel()
                    self._stop()
        finally:
            self.arrived.busy.discard(self)
            self._forget()

    def end(self) -> None:
        """Accept no further message, and end the stream after the owed answers."""
        self._ended = True
        self._wake()

    async def _read(self, context: CallContext) -> None:
        """Accept messages until the client or the bookie ends the stream."""
        while not self._ended:
            try:
                data = await context.read()
            except aio.BaseError:
                break
            if data is aio.EOF:
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
        """Write one message, in its turn; the visit bounds the time until the client takes it."""
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
        """True if too many answers are owed to read another message; then the client must wait."""
        return False

    async def _write(self, context: CallContext) -> None:
        """Send the owed answers until the stream has ended."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Cancel the tasks that prepare answers."""

    def _forget(self) -> None:
        """Release everything that the stream holds, after every task has ended."""

    def _wake(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
