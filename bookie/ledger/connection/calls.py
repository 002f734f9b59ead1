"""Calls, timers and metadata operations that a protocol machine asks for.

A driver owns one machine. It feeds the machine one event at a time and carries out the effects in
their order. A call or a timer takes time; its outcome comes back as an event later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from types import TracebackType
from typing import Generic, Self, TypeVar

from bookie.errors import BadVersionError, BookieError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    TimerId,
    WriteMetadata,
)
from bookie.wire.deadlines import LATE_SECONDS

T = TypeVar("T")

MetadataEvent = MetadataRead | MetadataWritten | MetadataConflict | MetadataFailed

ELSEWHERE = (
    "the client belongs to another event loop; call it there, as "
    "asyncio.run_coroutine_threadsafe does"
)
"""Error text for a call in another event loop than the client's."""

PART_SECONDS = 0.5
"""One look at the clock adds at most this to a timer."""


class Timers:
    """The timers of one machine. They count the time in which the event loop ran.

    A pause of the process must not look like a timeout. The loop would find its timers expired
    before it reads the answers that arrived meanwhile. So a timer consists of short parts, and each
    part begins when the one before has ended. A pause of any length costs one part. A last part
    that ends late is followed by exactly one more, so a loop that is always late has timeouts too.
    """

    def __init__(self, on_fired: Callable[[TimerId], None]) -> None:
        self._on_fired = on_fired
        self._loop = asyncio.get_running_loop()
        self._running: dict[TimerId, asyncio.TimerHandle] = {}

    def start(self, effect: StartTimer) -> None:
        """Start a timer, or restart it."""
        self.cancel(effect.timer)
        self._begin_part(effect.timer, effect.seconds, is_last=False)

    def cancel(self, timer: TimerId) -> None:
        """Forget a timer, if it runs."""
        handle = self._running.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        """Forget all timers."""
        for handle in self._running.values():
            handle.cancel()
        self._running.clear()

    def _begin_part(self, timer: TimerId, seconds: float, *, is_last: bool) -> None:
        """Wait for a part of `seconds`. If `is_last`, it ends the timer even when late."""
        part = min(seconds, PART_SECONDS)
        due = self._loop.time() + part
        self._running[timer] = self._loop.call_at(
            due, self._end_part, timer, due, seconds - part, is_last
        )

    def _end_part(self, timer: TimerId, due: float, left_seconds: float, is_last: bool) -> None:
        if left_seconds > 0:
            self._begin_part(timer, left_seconds, is_last=False)
        elif not is_last and self._loop.time() - due > LATE_SECONDS:
            self._begin_part(timer, PART_SECONDS, is_last=True)
        else:
            del self._running[timer]
            self._on_fired(timer)


class Calls(Generic[T]):
    """Calls under way whose outcomes are taken one by one as they end.

    An async context manager: at its end the calls that still run are cancelled. Errors of the body
    pass by unchanged. A call must turn the failures that it expects into outcomes.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._outcomes: asyncio.Queue[T] = asyncio.Queue()

    def start(self, call: Coroutine[None, None, T], name: str) -> None:
        """Begin a call."""
        task = self._tasks.create_task(self._run(call), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A task that is cancelled before its first step has not begun to await the call.
        task.add_done_callback(lambda _: call.close())

    def put(self, outcome: T) -> None:
        """Add an outcome that needs no call."""
        self._outcomes.put_nowait(outcome)

    async def next(self) -> T:
        """The outcome of the call that ended first among those not taken yet."""
        return await self._outcomes.get()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._running:
            task.cancel()
        # The body's own error passes by the group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _run(self, call: Coroutine[None, None, T]) -> None:
        self._outcomes.put_nowait(await call)


async def carry_out_metadata(
    ledgers: LedgerManager, ledger_id: int, token: int, effect: ReadMetadata | WriteMetadata
) -> MetadataEvent:
    """Do one metadata operation and return its outcome, also a failure, as an event.

    It is about the ledger that was created with `token`: another one may have the id meanwhile.
    """
    try:
        if isinstance(effect, ReadMetadata):
            found = await ledgers.read_latest(ledger_id, token)
            return MetadataRead(found.value, found.version)
        written = await ledgers.write(effect.metadata, effect.version)
    except BadVersionError:
        return MetadataConflict()
    except BookieError as error:
        return MetadataFailed(error)
    return MetadataWritten(written.version)


def fresh(error: BookieError) -> BookieError:
    """Copy an error. An object that is raised twice would collect both tracebacks."""
    duplicate = copy(error)
    duplicate.__cause__ = error.__cause__
    return duplicate


def settle(
    waiters: Iterable[asyncio.Future[T]], result: T, error: BookieError | None = None
) -> None:
    """Give each waiter that is still there the result, or an error of its own."""
    for waiter in waiters:
        if not waiter.done():
            if error is None:
                waiter.set_result(result)
            else:
                waiter.set_exception(fresh(error))
