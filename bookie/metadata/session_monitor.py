"""The session monitor runs the state machine of a session in the store's event loop.

Each session of a backend has one monitor. The monitor reads the clock, and gives the state machine
a tick at each deadline. The backend supplies the functions that prove and renew the session, and
reports the events of its connection by `tell`. The monitor hands the session's events to the
backend in order. `tell` announces these events before it returns. So consumers learn that the
session is lost before they can see any consequence of the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from bookie.env import boot_time_seconds, jitter
from bookie.errors import BookieError, SessionLostError, UnauthorizedError
from bookie.metadata.session import (
    Announce,
    Answered,
    AuthFailed,
    Closed,
    Expired,
    MonitorEvent,
    Probe,
    ProbeFailed,
    Renewed,
    SessionEvent,
    SessionMachine,
    SessionState,
    Tick,
)


class SessionMonitor:
    """Watches one session while the context is open; when it is left, no event is announced.

    Args:
        timeout_seconds: the session timeout that the server granted.
        probe: returns when the session has proved to be alive, the watches of a new connection are
            set, and the store is usable. Raises SessionLostError if the session ended,
            UnauthorizedError if the server refuses our credentials, and any other BookieError if
            the server does not answer. The next call of `probe` or `renew` cancels a call that has
            not returned.
        renew: returns when the old session continues or a new one has begun, and the store is
            usable. Raises the errors of `probe`. Called only while the session is lost. A cancelled
            call may have begun a session.
        announce: takes each event of the session; `announce` must not raise or call `tell`.
        begun_at: the time by `clock` when the request that began the session was sent; None means
            now.
        clock: returns seconds, which also pass while the machine is suspended.
        jitter: returns random numbers in [0, 1), which vary the pauses between attempts.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        probe: Callable[[], Awaitable[object]],
        renew: Callable[[], Awaitable[object]],
        announce: Callable[[SessionEvent], None],
        begun_at: float | None = None,
        clock: Callable[[], float] = boot_time_seconds,
        jitter: Callable[[], float] = jitter,
    ) -> None:
        self._probe = probe
        self._renew = renew
        self._announce = announce
        self._clock = clock
        begun_at = clock() if begun_at is None else begun_at
        self._machine = SessionMachine(timeout_seconds, begun_at, jitter)
        self._deadline = self._machine.deadline
        self._tasks = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def state(self) -> SessionState:
        """The current state of the session, even if the process was paused until this call."""
        if self._deadline is not None and self._clock() >= self._deadline:
            # Before the deadline, a tick would change nothing, and would only wake the task
            # `_keep`.
            self.tell(Tick())
        return self._machine.state

    def tell(self, event: MonitorEvent) -> None:
        """Hand an event of the connection, or a request's answer, to the state machine."""
        effects = self._machine.step(event, self._clock())
        self._deadline = self._machine.deadline
        for effect in effects:
            match effect:
                case Announce(session_event):
                    self._announce(session_event)
                case Probe(sent_at, renew):
                    self._ask(sent_at, renew=renew)
        self._changed.set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._keeper = self._tasks.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._machine.step(Closed(), self._clock())
        self._deadline = None
        for task in (self._keeper, self._asking):
            if task is not None:
                task.cancel()
        # The group does not get the body's error, because the group would wrap the error.
        await self._tasks.__aexit__(None, None, None)

    async def _keep(self) -> None:
        """Give the session's state machine a tick at each of its deadlines."""
        while True:
            self._changed.clear()
            deadline = self._deadline
            pause = None if deadline is None else max(0.0, deadline - self._clock())
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                self.tell(Tick())

    def _ask(self, sent_at: float, *, renew: bool) -> None:
        if self._asking is not None and self._asking is not asyncio.current_task():
            self._asking.cancel()
        if self._keeper is not None:
            self._asking = self._tasks.create_task(self._prove(sent_at, renew=renew))

    async def _prove(self, sent_at: float, *, renew: bool) -> None:
        try:
            await (self._renew() if renew else self._probe())
        except SessionLostError:
            self.tell(Expired(sent_at))
        except UnauthorizedError:
            self.tell(AuthFailed(sent_at))
        except BookieError:
            self.tell(ProbeFailed(sent_at))
        else:
            self.tell(Renewed(sent_at) if renew else Answered(sent_at))
