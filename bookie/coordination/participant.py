"""A process that takes part in coordination: its session with a store, and its background work.

The recipes (locks, queues, groups, …) ask the participant if the session is certainly alive, and
get the session's events in order. The participant also runs work of the recipes that must be
finished even if the caller is cancelled. For example, an unanswered write must be undone, because
it may still take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Self, TypeVar

from bookie.env import Backoff, SystemClock, jitter
from bookie.errors import BookieError, MetadataClosedError
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 5.0
"""The longest pause between attempts. Pauses begin at `PAUSE_SECONDS_MIN`, and double."""

LATE_FRACTION = 3
"""The pause between the two runs of a sweep is the session timeout divided by this number.

A sweep undoes a write without an answer; its second run finds a write that arrived late.
"""

_log = event_log(__name__)


class Participant:
    """One process in the coordination: an async context manager.

    When the context is left, its locks are released, and its candidates resign.

    Memberships and taken items last until their own contexts end, or until the session ends.

    Args:
        store: the participant uses the session of this store, which must stay open until the
            participant is closed.
        nonce: 16 bytes that no other participant has; if empty, random bytes are used.
        jitter: returns random numbers in [0, 1), which vary the pauses between attempts.
    """

    def __init__(
        self, store: MetadataStore, *, nonce: bytes = b"", jitter: Callable[[], float] = jitter
    ) -> None:
        self.store = store
        self._name = (nonce or SystemClock().nonce())[:8].hex()
        self._backoff = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter)
        self._claims = 0
        self._is_connected = True
        self._has_session = True
        self._epoch = 0
        self._listeners: dict[Callable[[SessionEvent], None], None] = {}
        self._closers: dict[Callable[[], Awaitable[object]], None] = {}
        self._live: set[str] = set()
        self._is_closed = False
        self._sweeping: set[asyncio.Event] = set()
        """One event for each sweep in the background; an event is set after a sweep's first run."""
        self._tasks = asyncio.TaskGroup()
        self._background: set[asyncio.Task[None]] = set()
        self._events = AsyncExitStack()

    # ---- the session

    @property
    def is_certain(self) -> bool:
        """True while neither events nor the clock give a reason to doubt that the session lives."""
        return self.is_certain_by_events and self.store.is_session_certain

    @property
    def is_certain_by_events(self) -> bool:
        """True while no event gives a reason to doubt that the session lives; ignores the clock."""
        return self._is_connected and self._has_session

    @property
    def session_epoch(self) -> int:
        """A number that grows when a session is lost, and again when the store has a session again.

        If the number is equal at two moments, the session and its leased records have existed
        without interruption between these moments.
        """
        return self._epoch

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        """Call `listener` with each event of the session, in order, until `forget` is called."""
        self._listeners[listener] = None

    def forget(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.pop(listener, None)

    def on_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Await `closer()` when the context is left, unless `forget_closer` is called before.

        The closer that was registered last is awaited first.
        """
        self._closers[closer] = None

    def forget_closer(self, closer: Callable[[], Awaitable[object]]) -> None:
        self._closers.pop(closer, None)

    # ---- names of claims

    def new_name(self) -> str:
        """Return a unique name of 32 hexadecimal digits."""
        self._claims += 1
        return f"{self._name}{self._claims:016x}"

    def new_guid(self) -> str:
        """Return a unique name for a claim in a queue; the claim counts as used until `abandon`."""
        guid = self.new_name()
        self._live.add(guid)
        return guid

    def abandon(self, guid: str) -> None:
        """Mark the claim `guid` as no longer used, so that its records may be deleted."""
        self._live.discard(guid)

    def is_leftover(self, guid: str) -> bool:
        """True if this participant made a claim with this guid and no longer uses it."""
        return guid.startswith(self._name) and guid not in self._live

    # ---- work

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do `work` in the background; `work` is cancelled when the context is left.

        Raises:
            MetadataClosedError: the context was left.
        """
        if self._is_closed:
            work.close()
            raise MetadataClosedError("the participant in the coordination was closed")
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def spawn_if_open(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the background like `spawn`, but do nothing if the context was left."""
        with suppress(MetadataClosedError):
            self.spawn(work)

    async def insist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat `work` after each `BookieError`, until `work` succeeds or the store is closed.

        `work` is repeated even after `SessionLostError`: perhaps only this process's clock ended
        the session, and it lives on in the store with all its records.
        """
        attempt = 0
        while True:
            try:
                await work()
            except MetadataClosedError:
                return
            except BookieError:
                await self.pause(attempt)
                attempt += 1
            else:
                return

    def sweep(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`, which undoes an unanswered write, in the background.

        `work` is repeated as in `insist`. After a pause `work` runs once more, because the
        unanswered write may arrive late. When the context is left, it waits for the first success
        of `work`, but only while the session is certainly alive.
        """
        self.spawn_if_open(self._sweep(work))

    async def _sweep(self, work: Callable[[], Awaitable[object]]) -> None:
        answered = asyncio.Event()
        self._sweeping.add(answered)
        try:
            for rest_seconds in (self.store.session_timeout_seconds / LATE_FRACTION, 0.0):
                await self.insist(work)
                answered.set()
                await asyncio.sleep(rest_seconds)
        finally:
            answered.set()
            self._sweeping.discard(answered)

    async def finish(
        self,
        work: Coroutine[Any, Any, T],
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Await `work` and return its result; finish `work` even if the caller is cancelled.

        If the caller is cancelled, `undo` is called with the result of `work`.

        Raises:
            MetadataClosedError: the context was left; `work` was not begun.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work
            except BookieError as error:
                if not outcome.cancelled():
                    outcome.set_exception(error)
                return
            except asyncio.CancelledError:
                outcome.cancel()
                raise
            if not outcome.cancelled():
                outcome.set_result(result)
            elif undo is not None:
                await undo(result)

        try:
            task = self.spawn(run())
        except MetadataClosedError:
            work.close()
            raise
        # If the task is cancelled before its first step, nothing has awaited `work`: close it here.
        task.add_done_callback(lambda _: (work.close(), outcome.cancel()))
        try:
            return await outcome
        except asyncio.CancelledError:
            # The work may have ended in the same turn of the loop in which the caller was
            # cancelled. Then the caller never gets the result, so undo the work.
            is_given = outcome.done() and not outcome.cancelled() and outcome.exception() is None
            if is_given and undo is not None:
                self.spawn_if_open(undo(outcome.result()))
            raise

    async def pause(self, attempt: int) -> None:
        """Sleep after a failed attempt; the pause grows with `attempt`, which counts from 0."""
        await asyncio.sleep(self._backoff.after(attempt))

    # ---- life

    async def __aenter__(self) -> Self:
        events = await self._events.enter_async_context(self.store.session_events())
        await self._tasks.__aenter__()
        self.spawn(self._follow(events))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            # Locks that are not released in this time end with the session.
            async with asyncio.timeout(self.store.session_timeout_seconds):
                while self._closers:
                    await self._closers.popitem()[0]()
                await asyncio.sleep(0)  # lets the background work of the closers begin
                for answered in list(self._sweeping):
                    if self.is_certain:
                        await answered.wait()
        except TimeoutError:
            _log.warning("coordination_not_given_up")
        finally:
            self._is_closed = True
            for task in self._background:
                task.cancel()
            try:
                # The group does not get the body's error, because the group would wrap the error.
                await self._tasks.__aexit__(None, None, None)
            except* MetadataClosedError:
                pass  # the store was closed during background work
            finally:
                await self._events.aclose()

    async def _follow(self, events: AsyncIterator[SessionEvent]) -> None:
        try:
            async for event in events:
                match event:
                    case SessionEvent.CONNECTION_LOST:
                        self._is_connected = False
                    case SessionEvent.RECONNECTED:
                        self._is_connected = True
                    case SessionEvent.SESSION_LOST:
                        self._has_session = False
                        self._epoch += 1
                    case SessionEvent.SESSION_REESTABLISHED:
                        self._is_connected = self._has_session = True
                        self._epoch += 1
                for listener in list(self._listeners):
                    listener(event)
        except MetadataClosedError:
            self._has_session = False
            for listener in list(self._listeners):
                listener(SessionEvent.SESSION_LOST)
