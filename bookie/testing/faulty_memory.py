"""The metadata store in memory, with simulated faults of servers and networks.

====================== ===========================================================================
``expire_session``     the server ends the session at once
``disconnect``         no request or event passes until ``reconnect``; the session is doubtful at
                       once, lost after 5/6 of its timeout, and ended by the server after 6/6
``latency_seconds``    the duration of each request
``lost_requests``      the number of next writes that get lost before they are executed
``lost_replies``       the number of next writes that are executed, but whose replies get lost
``hold_watches``       events arrive only after ``release_watches``, as from a lagging follower
====================== ===========================================================================

The store runs only in the caller's event loop, so that it also works in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookie.env import Clock, SystemClock
from bookie.errors import MetadataUnavailableError
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.model import Commit, Operation, Stat
from bookie.metadata.session import (
    Announce,
    Answered,
    Disconnected,
    Expired,
    MonitorEvent,
    Renewed,
    SessionMachine,
    SessionState,
    Tick,
)


class FaultyMemoryStore(MemoryStore):
    """A session with the store in memory, with methods that disturb the session.

    Args:
        name: the name of the store; equal names mean the same store.
        session_timeout_seconds: the time from `disconnect` until the server ends the session.
        clock: measures the session timeout, and gives the times of records. A test that sets the
            clock must call `let_time_pass` afterwards.
    """

    def __init__(
        self, name: str, *, session_timeout_seconds: float = 30.0, clock: Clock | None = None
    ) -> None:
        super().__init__(name, session_timeout_seconds=session_timeout_seconds)
        self.latency_seconds = 0.0
        self.lost_requests = 0
        self.lost_replies = 0
        self._clock = clock or SystemClock()
        if clock is not None:
            self._tree.clock = clock
        self._outage: SessionMachine | None = None
        """The state machine of the session while the connection is cut; otherwise None."""
        self._server_deadline = float("inf")
        """The time at which the server ends the session; infinite unless disconnected."""
        self._alarm: asyncio.TimerHandle | None = None
        self._held: list[Commit] | None = None

    async def __aexit__(self, *_: object) -> None:
        self._set_alarm(None)
        await super().__aexit__(None, None, None)

    @property
    def is_session_certain(self) -> bool:
        return super().is_session_certain and self._outage is None

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if self.lost_requests > 0:
            self.lost_requests -= 1
            raise MetadataUnavailableError("the metadata store does not answer")
        stats = await super().transaction(operations)
        if self.lost_replies > 0:
            self.lost_replies -= 1
            raise MetadataUnavailableError("the metadata store does not answer any more")
        return stats

    def expire_session(self) -> None:
        """End the session as a server does: delete its ephemeral records; then begin a new session.

        After `disconnect`, the store reports the end only at `reconnect`, when the new session
        begins.
        """
        with self._tree.lock:
            self._tree.end_session(self._session)
        if self._outage is None:
            self._outage = self._new_machine()
            self._come_back()

    def disconnect(self) -> None:
        """Cut the connection: until `reconnect`, operations fail and watches report nothing."""
        if self._outage is not None:
            return
        self._server_deadline = self._clock.monotonic() + self.session_timeout_seconds
        self._outage = self._new_machine()
        self._step(Disconnected())

    def reconnect(self) -> None:
        """Restore the connection; watches read the current state, and a new session may begin."""
        if self._outage is None:
            return
        self._step(Tick())
        self._end_overdue_sessions()
        self._watches.resync()
        self._come_back()

    def let_time_pass(self) -> None:
        """End sessions whose timeout has passed, and tick the state machine of the outage."""
        self._end_overdue_sessions()
        if self._outage is not None:
            self._step(Tick())

    def hold_watches(self) -> None:
        """Keep watch events until `release_watches` delivers these events in order."""
        self._held = [] if self._held is None else self._held

    def release_watches(self) -> None:
        held, self._held = self._held or [], None
        for commit in held:
            self.deliver(commit)

    def deliver(self, commit: Commit) -> None:
        """Pass a commit to the watches, unless the connection is cut or events are held."""
        if self._outage is not None:
            return
        if self._held is not None:
            self._held.append(commit)
        else:
            super().deliver(commit)

    async def _reach(self) -> None:
        """Wait for the duration of a request, then raise an error if the connection is cut."""
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        await super()._reach()
        if self._outage is not None:
            raise MetadataUnavailableError("the metadata store does not answer")
        self._end_overdue_sessions()

    def _end_overdue_sessions(self) -> None:
        """End the sessions of disconnected clients whose timeout has passed, as a server does."""
        with self._tree.lock:
            for store in list(self._tree.stores):
                if isinstance(store, FaultyMemoryStore) and store._is_overdue():
                    self._tree.end_session(store._session)

    def _is_overdue(self) -> bool:
        return self._clock.monotonic() >= self._server_deadline

    def _new_machine(self) -> SessionMachine:
        return SessionMachine(self.session_timeout_seconds, self._clock.monotonic(), lambda: 0.0)

    def _come_back(self) -> None:
        """End the outage; replace the session if the server has ended it."""
        assert self._outage is not None
        self._server_deadline = float("inf")
        with self._tree.lock:
            is_alive = self._session in self._tree.alive
            if not is_alive and self._outage.state is not SessionState.LOST:
                self._step(Expired())
            if not is_alive:
                self._session = self._tree.begin_session()
        now = self._clock.monotonic()
        is_lost = self._outage.state is SessionState.LOST
        self._step(Renewed(now) if is_lost else Answered(now))
        self._outage = None
        self._set_alarm(None)

    def _step(self, event: MonitorEvent) -> None:
        """Pass `event` to the outage's state machine, and set the timer for its next tick."""
        machine = self._outage
        assert machine is not None
        now = self._clock.monotonic()
        for effect in machine.step(event, now):
            if isinstance(effect, Announce):
                self._session_watches.announce(effect.event)
        deadline = machine.deadline
        self._set_alarm(None if deadline is None else max(0.0, deadline - now))

    def _set_alarm(self, seconds: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if seconds is not None and self._loop is not None:
            self._alarm = self._loop.call_later(seconds, self.let_time_pass)
