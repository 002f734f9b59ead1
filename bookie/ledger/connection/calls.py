"""Carries out the calls and metadata operations that a state machine requests.

A driver owns one state machine. The driver passes one event at a time to the state machine, and
carries out the effects in their order. The outcome of a call or a timer arrives later, as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from copy import copy
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from bookie.errors import BadVersionError, BookieError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    WriteMetadata,
)

T = TypeVar("T")

MetadataEvent = MetadataRead | MetadataWritten | MetadataConflict | MetadataFailed

ELSEWHERE = (
    "the client belongs to another event loop; call it there, as "
    "asyncio.run_coroutine_threadsafe does"
)
"""Error text for a call from an event loop other than the client's."""


class Calls(Generic[T]):
    """Runs calls concurrently; the caller takes each outcome after its call has ended.

    The end of this async context manager cancels the calls that still run. An error in the ``with``
    block is raised unchanged. If a call can fail in an expected way, it must return this failure as
    its outcome.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._outcomes: asyncio.Queue[T] = asyncio.Queue()

    def start(self, call: Coroutine[None, None, T], name: str) -> None:
        task = self._tasks.create_task(self._run(call), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Close the coroutine, because a task that is cancelled before its first step never awaits
        # it.
        task.add_done_callback(lambda _: call.close())

    def put(self, outcome: T) -> None:
        self._outcomes.put_nowait(outcome)

    async def next(self) -> T:
        """Return the oldest outcome that `next` has not returned yet; wait if there is none yet."""
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
        # Hide the error of the block from the task group, which would wrap it in an ExceptionGroup.
        await self._tasks.__aexit__(None, None, None)

    async def _run(self, call: Coroutine[None, None, T]) -> None:
        self._outcomes.put_nowait(await call)


async def carry_out_metadata(
    ledgers: LedgerManager, ledger_id: int, token: int, effect: ReadMetadata | WriteMetadata
) -> MetadataEvent:
    """Do one metadata operation; return its result or its failure as an event.

    The operation applies only to the ledger that was created with `token`, because another ledger
    may have the same id now.
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
    """Copy an error, because an error object that is raised twice would collect two tracebacks."""
    duplicate = copy(error)
    duplicate.__cause__ = error.__cause__
    return duplicate


def settle(
    waiters: Iterable[asyncio.Future[T]], result: T, error: BookieError | None = None
) -> None:
    """Give each waiter that is not done the result, or its own copy of the error."""
    for waiter in waiters:
        if not waiter.done():
            if error is None:
                waiter.set_result(result)
            else:
                waiter.set_exception(fresh(error))


class RatedReply(Protocol):
    """An answer of a bookie that may limit the rate of a caller's requests."""

    @property
    def status(self) -> Status:
        """The status of the answer; TOO_MANY_REQUESTS if the caller exceeded its rate."""

    @property
    def retry_after_ms(self) -> int:
        """The pause, in ms, before the caller should ask again; 0 if the bookie gave none."""


R = TypeVar("R", bound=RatedReply)


async def patiently(ask: Callable[[], Awaitable[R]], patience_seconds: float) -> R:
    """Call `ask`; while the answer is TOO_MANY_REQUESTS with a pause, wait and call `ask` again.

    All pauses together last at most `patience_seconds`; then the last answer is returned.
    """
    waited = 0.0
    while True:
        reply = await ask()
        seconds = reply.retry_after_ms / 1000
        waited += seconds
        if reply.status is not Status.TOO_MANY_REQUESTS or not seconds or waited > patience_seconds:
            return reply
        await asyncio.sleep(seconds)
