"""An election: one leader among candidates, who wait in a queue.

**Leadership is advisory**, like every lock. So guard each effect of the leader by the leader's
token, or by a check of the replaced record's version (see `lock`).

========= ======================================================================================
state     meaning
========= ======================================================================================
NO_LEADER this candidate does not take part in the election
FOLLOWING this candidate waits in the queue behind another candidate
LEADING   this candidate is first in the queue, and its session is certain
UNKNOWN   the session is in doubt, so this candidate or another candidate may lead
========= ======================================================================================

The state becomes UNKNOWN at the first doubt about the session, before the session is lost. A leader
that has lost its claim makes a new claim at the end of the queue. `close` deletes only the claim of
this candidate, even if another candidate leads by then.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from bookie.coordination.claim import Claim, ClaimMode
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.locks import Holder, LockManager
from bookie.coordination.participant import Participant
from bookie.coordination.wait_queue import WaitQueue
from bookie.env.checked import checked
from bookie.errors import (
    BadVersionError,
    BookieError,
    LockLostError,
    MetadataClosedError,
    NoSuchKeyError,
)
from bookie.metadata.session import SessionEvent
from bookie.telemetry import event_log

_log = event_log(__name__)


class LeaderState(enum.Enum):
    """The state of a candidate; the module's docstring has a table of the states."""

    NO_LEADER = "no leader"
    FOLLOWING = "following"
    LEADING = "leading"
    UNKNOWN = "unknown"


class Election:
    """One candidate in one election: an async context manager; at its end, the candidate resigns.

    Args:
        participant: the participant of this process; when it closes, the candidate resigns.
        path: the key of the election.
        owner: the candidate's name, which other processes can read.
        on_change: called with each new state, in order; it must not raise.
    """

    @checked
    def __init__(
        self,
        participant: Participant,
        path: str,
        *,
        owner: str = "",
        on_change: Callable[[LeaderState], object] = lambda _: None,
    ) -> None:
        self._participant = participant
        self._queue = WaitQueue(participant, path)
        self._owner = owner
        self._on_change = on_change
        self._state = LeaderState.NO_LEADER
        self._value = b""
        self._lock: Lock | None = None
        self._standing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        """Set when the candidate has lost its current lock."""

    @property
    def state(self) -> LeaderState:
        """The state of the candidate, computed from session events and the clock.

        If the clock shows that the session may have ended, the state is UNKNOWN even before an
        event says so.
        """
        is_known = self._state in (LeaderState.FOLLOWING, LeaderState.LEADING)
        if is_known and not self._participant.is_certain:
            return LeaderState.UNKNOWN
        return self._state

    @property
    def token(self) -> int:
        """The leader's fencing token; see `Lock.token`.

        Raises:
            LockLostError: the state of this candidate is not LEADING.
        """
        return self.lock.token

    @property
    def lock(self) -> Lock:
        """The leader's lock; its `Lock.check` guards the leader's writes to the store.

        Raises:
            LockLostError: the state of this candidate is not LEADING.
        """
        if self._lock is None or self.state is not LeaderState.LEADING:
            raise LockLostError(f"not the leader of {self._queue.path}")
        return self._lock

    @checked
    async def elect(self, value: bytes = b"", *, take_over: bool = False) -> LeaderState:
        """Join the election, and wait until the candidate leads or follows; return its state.

        The candidate takes part until `close`. An outage of the store does not end the wait. With
        `take_over`, the candidate deletes the claim of a leader that has the same non-empty owner
        name; this candidate then leads if no other candidate waits. If the candidate already takes
        part, `value` and `take_over` are ignored.

        Raises:
            MetadataClosedError: the election or the store was closed during the wait.
        """
        if self._standing is None:
            self._value = value
            self._participant.on_close(self.close)
            self._standing = self._participant.spawn(self._stand(take_over=take_over))
        while self._state in (LeaderState.NO_LEADER, LeaderState.UNKNOWN):
            if self._standing is None or self._standing.done():
                raise MetadataClosedError(f"the election of {self._queue.path} was closed")
            await self.wait_for_change()
        return self._state

    async def leader(self) -> Holder | None:
        """Read the leader from the store; return None if there is no leader."""
        return await LockManager(self._participant).read(self._queue.path)

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    @checked
    async def wait_for(self, state: LeaderState) -> None:
        while self._state is not state:
            await self.wait_for_change()

    async def close(self) -> None:
        """Resign as leader, or leave the queue; `elect` may be called again after `close`."""
        self._participant.forget_closer(self.close)
        standing, self._standing = self._standing, None
        lock, self._lock = self._lock, None
        if standing is not None:
            standing.cancel()
        # Change the state first, because the caller may be cancelled at the next await.
        self._turn(LeaderState.NO_LEADER)
        if lock is not None:
            await lock.release()
            await lock.give_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- taking part

    def _turn(self, state: LeaderState) -> None:
        if self._state is state:
            return
        self._state = state
        _log.info("election_changed", path=self._queue.path, state=state.value)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_change(state)

    async def _stand(self, *, take_over: bool) -> None:
        attempt = 0
        self._participant.on_session(self._on_session)
        try:
            while True:
                try:
                    await self._stand_once(take_over=take_over)
                    attempt = 0
                except MetadataClosedError:
                    raise
                except BookieError as error:
                    _log.warning("election_interrupted", path=self._queue.path, reason=str(error))
                    await self._participant.pause(attempt)
                    attempt += 1
                take_over = False
        except MetadataClosedError:
            self._turn(LeaderState.UNKNOWN)
        finally:
            self._participant.forget(self._on_session)

    async def _stand_once(self, *, take_over: bool) -> None:
        """Wait in the queue, then lead; return when the claim is lost."""
        self._over.clear()
        claim = Claim("", ClaimMode.EXCLUSIVE, self._owner, self._value)
        lock = self._lock = Lock(self._participant, self._queue, claim, self._on_lock)
        try:
            await self._queue.clear_leftovers()
            if take_over:
                await self._take_over(lock)
            if not lock.is_held:
                await lock.wait_to_hold(self._follow)
            await self._over.wait()
        except BaseException:
            if self._lock is lock:
                self._lock = None
            lock.give_up_soon()
            raise

    async def _take_over(self, lock: Lock) -> None:
        first = await self._queue.first()
        same = first is not None and first.claim is not None and first.claim.owner == self._owner
        if first is not None and same and self._owner:
            with suppress(BadVersionError, NoSuchKeyError):
                await lock.try_to_hold(first.record)

    def _follow(self) -> None:
        certain = self._participant.is_certain_by_events
        self._turn(LeaderState.FOLLOWING if certain else LeaderState.UNKNOWN)

    def _on_lock(self, state: LockState) -> None:
        match state:
            case LockState.HELD:
                self._turn(LeaderState.LEADING)
            case LockState.UNCERTAIN:
                self._turn(LeaderState.UNKNOWN)
            case LockState.LOST:
                self._turn(LeaderState.UNKNOWN)
                self._over.set()
            case LockState.RELEASED:
                pass

    def _on_session(self, event: SessionEvent) -> None:
        """Update the state of a follower; `_on_lock` updates the state of a leader."""
        if event in (SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST):
            if self._state is LeaderState.FOLLOWING:
                self._turn(LeaderState.UNKNOWN)
            return
        is_waiting = self._lock is not None and self._lock.is_waiting
        if (
            event is SessionEvent.RECONNECTED
            and self._participant.is_certain_by_events
            and is_waiting
        ):
            # If the session was lost, it is not certain yet at this event. Then the lock makes a
            # new claim, and `_follow` sets the state.
            self._turn(LeaderState.FOLLOWING)
