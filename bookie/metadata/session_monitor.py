"""The watch over a session: the session machine with a clock, in the event loop of its store.

A backend embeds one. It says how its session is proven and renewed, passes on what its connection
reports, and gets the session's events in order. `tell` announces events at once, in the caller's
turn of the loop. So the event of a lost session comes before any effect of the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from bookie.env import boot_time_seconds, jitter
from bookie.errors import BookieError, SessionLostError, UnauthorizedError
from bookie.protocol.session import (
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
    """Watches one session from entering the context to leaving it; leaving announces nothing.

    Args:
        timeout_seconds: the session timeout that the server granted.
        probe: returns when the session is proven and the store is usable: what a reconnected store
            owes its watches is done by then. Raises SessionLostError if the session ended,
            UnauthorizedError if the server does not accept who we are, any other BookieError if it
            does not answer. Cancelled when it takes a third of the timeout.
        renew: returns when there is a session, the old one or a new one, and the store is usable;
            raises as `probe` does. Called only while the session is lost, so what it does need not
            be undone when it is cancelled.
        announce: takes each event of the session; neither raises nor tells anything back.
        begun_at: by `clock`, when the request that began the session was sent; None is now.
        clock: seconds that run on while the machine is suspended.
        jitter: numbers in [0, 1).
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
        """As of now: reading it notices a pause of the process."""
        if self._deadline is not None and self._clock() >= self._deadline:
            # Before it, time alone changes nothing; and every tick wakes the keeper.
            self.tell(Tick())
        return self._machine.state

    def now(self) -> float:
        """The clock by which `Answered.sent_at` and its like are meant, in seconds."""
        return self._clock()

    def tell(self, event: MonitorEvent) -> None:
        """Let the machine take what the connection, or the answer to any request, says."""
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
        # The body's own error passes by the group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _keep(self) -> None:
        """Owe the machine its ticks."""
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
