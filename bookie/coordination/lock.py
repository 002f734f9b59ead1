"""A lock that was acquired: its state, and the fencing token that shuts out former holders.

**A lock is advisory.** A holder that was paused learns late that its session has ended and that
another process holds the lock. Besides, requests of the old holder may still be on their way. So
guard the data that the lock protects: send `Lock.token` with every request. The receiver must
refuse every token that is lower than a token that it received earlier. If the protected data is in
the same store, put `Lock.check` into the transaction that writes the data.

============ =====================================================================================
state        meaning
============ =====================================================================================
HELD         no other claim blocks the lock's claim, and the session is certain
UNCERTAIN    the session or the claim is in doubt: begin no work that needs the lock
RELEASED     the holder has released the lock
LOST         another process holds the lock, or may have held it; this state is final
============ =====================================================================================

After an outage the lock becomes HELD again if its session survived. If the session was lost, but
the claim's record still exists, the new session takes over the record, and the token stays the
same. If the claim was lost, the lock is claimed again, with a greater token. But if another claim
blocks the new claim, the lock is LOST, and the event `lost` is set.

Source: for all but the queue, the distributed locks of Apache Pulsar's coordination service.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Self

from bookie.coordination.claim import Claim, encode_claim
from bookie.coordination.participant import Participant
from bookie.coordination.wait_queue import ClaimLostError, Ticket, WaitQueue, is_gone, with_stat
from bookie.env.checked import checked
from bookie.errors import (
    BadVersionError,
    BookieError,
    LockLostError,
    MetadataClosedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.metadata.model import Change, Check, Record
from bookie.metadata.session import SessionEvent
from bookie.telemetry import event_log

_log = event_log(__name__)


class LockState(enum.Enum):
    """The state of a lock; the module's docstring has a table of the states."""

    HELD = "held"
    UNCERTAIN = "uncertain"
    RELEASED = "released"
    LOST = "lost"


class Lock:
    """An acquired lock: an async context manager, which releases the lock on exit."""

    def __init__(
        self,
        participant: Participant,
        queue: WaitQueue,
        claim: Claim,
        on_change: Callable[[LockState], object] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._participant = participant
        self._store = participant.store
        self._queue = queue
        self._claim = claim
        self._ticket: Ticket | None = None
        self._token = 0
        self.is_waiting = False
        """True while the claim waits in the queue."""
        self._state = LockState.UNCERTAIN
        self._doubt = asyncio.Event()
        """Set when the claim must be checked, or when a waiting claim must read the queue again."""
        self._serial = asyncio.Lock()
        """Permits one operation on the claim at a time, so that no task renews a deleted claim."""
        self._watch = AsyncExitStack()
        self._follower: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        """Set when the state becomes LOST, but not when the holder releases the lock."""

    @property
    def path(self) -> str:
        return self._queue.path

    @property
    def content(self) -> bytes:
        """The content that this holder wrote last into its claim."""
        return self._claim.content

    @property
    def state(self) -> LockState:
        """The state of the lock, computed from session events and the clock.

        If the clock shows that the session may have ended, the state is UNCERTAIN even before an
        event says so.
        """
        if self._state is LockState.HELD and not self._participant.is_certain:
            return LockState.UNCERTAIN
        return self._state

    @property
    def is_held(self) -> bool:
        """True if the state is HELD, so that the holder may begin new work.

        Each effect of the work must still be guarded by `token` or `check`.
        """
        return self.state is LockState.HELD

    @property
    def token(self) -> int:
        """The fencing token of this lock: a number greater than the tokens of all earlier holders.

        The token changes when the lock is claimed again, so read it again for every request.
        """
        return self._token

    def check(self) -> Check:
        """Return a condition for a transaction in the same store: the lock's claim is unchanged.

        Raises:
            LockLostError: the lock was released or lost.
        """
        return Check(self._current().key, self._current().version)

    @checked
    async def update(self, content: bytes) -> None:
        """Replace the content of the claim.

        The token stays the same, unless the claim was deleted, so that this call must make a new
        claim.

        Raises:
            LockLostError: this lock is no longer held.
            MetadataUnavailableError: the store did not answer; the content may or may not have been
                replaced.
        """
        async with self._serial:
            self._current()
            self._claim = Claim(self._claim.guid, self._claim.mode, self._claim.owner, content)
            while True:
                ticket = self._current()
                try:
                    stat = await self._store.put(
                        ticket.key, encode_claim(self._claim), version=ticket.version
                    )
                except (BadVersionError, NoSuchKeyError):
                    # Another process, or an unanswered write of this process, changed the claim.
                    await self._revalidate()
                    if self._is_written(await self._store.get(self._current().key)):
                        return
                else:
                    self._ticket = with_stat(ticket, stat)
                    return

    async def release(self) -> None:
        """Release the lock; do nothing if the lock is already lost or released.

        If the store does not answer, a background task deletes the claim when the store answers.
        """
        if self._state in (LockState.RELEASED, LockState.LOST):
            return
        self._turn(LockState.RELEASED)
        # A second call of `release` does nothing. So this first call must finish the release, even
        # if its caller is cancelled.
        await self._participant.finish(self._let_go())

    async def _let_go(self) -> None:
        self._doubt.set()
        async with self._serial:
            # After `_stop`, no other task changes the claim.
            await self._stop()
            ticket, self._ticket = self._ticket, None
            if ticket is not None:
                await self._queue.leave(ticket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    # ---- acquiring

    async def try_to_hold(self, instead_of: Record | None = None) -> bool:
        """Claim the lock and return True; if the claim is blocked, delete it and return False."""
        await self._enter(instead_of)
        try:
            if await self._queue.blocker(self._ticket, self._claim.mode) is not None:
                await self.give_up()
                return False
        except ClaimLostError:
            await self.give_up()
            return False
        self._hold()
        return True

    async def wait_to_hold(self, in_line: Callable[[], object] = lambda: None) -> None:
        """Claim the lock, and wait until no other claim blocks it.

        The wait continues after an outage of the store or a lost session. `in_line` is called each
        time that the queue was read and another claim still blocks this claim.
        """
        self._participant.on_session(self._wake)
        self.is_waiting = True
        attempt = 0
        while True:
            try:
                if self._ticket is None:
                    await self._enter()
                assert self._ticket is not None
                await self._queue.wait_turn(self._ticket, self._claim.mode, self._doubt, in_line)
                break
            except ClaimLostError:
                await self._leave()
            except (MetadataUnavailableError, SessionLostError):
                await self._participant.pause(attempt)
                attempt += 1
        self._participant.forget(self._wake)
        self._hold()

    async def give_up(self) -> None:
        """Delete the claim of a lock that is not held."""
        self._participant.forget(self._wake)
        await self._leave()

    async def _leave(self) -> None:
        await self._stop()
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            await self._queue.leave(ticket)

    def give_up_soon(self) -> None:
        """Run `give_up` in the background, because the caller was cancelled or failed."""
        self._participant.spawn_if_open(self.give_up())

    def _wake(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            self._doubt.set()

    async def _enter(self, instead_of: Record | None = None) -> None:
        claim = self._claim
        guid = self._participant.new_guid()
        self._claim = Claim(guid, claim.mode, claim.owner, claim.content)
        try:
            ticket = await self._queue.enter(self._claim, instead_of=instead_of)
        except BaseException:
            self._participant.abandon(guid)
            raise
        try:
            await self._watch_claim(ticket.key)
        except BaseException:
            # Delete the new claim: without a watch, the holder would not notice that its claim was
            # deleted.
            self._participant.spawn_if_open(self._queue.leave(ticket))
            raise
        if self._ticket is not None:
            self._participant.abandon(self._ticket.guid)
        self._ticket = ticket
        self._token = ticket.token

    async def _watch_claim(self, key: str) -> None:
        if self._follower is not None:
            self._follower.cancel()
        await self._watch.aclose()
        self._watch = AsyncExitStack()
        changes = await self._watch.enter_async_context(self._store.watch(key))
        self._follower = self._participant.spawn(self._follow(changes))

    # ---- holding

    def _hold(self) -> None:
        self.is_waiting = False
        self._participant.on_session(self._on_session)
        self._participant.on_close(self.release)
        self._settle()
        self._participant.spawn(self._keep())

    def _settle(self) -> None:
        """Set the state of an existing claim: HELD if the session is certain, else UNCERTAIN."""
        certain = self._participant.is_certain_by_events
        self._turn(LockState.HELD if certain else LockState.UNCERTAIN)

    def _turn(self, state: LockState) -> None:
        if self._state is not state:
            self._state = state
            self._on_change(state)

    def _current(self) -> Ticket:
        if self._ticket is None or self._state in (LockState.RELEASED, LockState.LOST):
            raise LockLostError(f"the lock {self.path} is not held any more")
        return self._ticket

    def _on_session(self, event: SessionEvent) -> None:
        if self._state not in (LockState.HELD, LockState.UNCERTAIN):
            return
        match event:
            case SessionEvent.CONNECTION_LOST | SessionEvent.SESSION_LOST:
                self._turn(LockState.UNCERTAIN)
            case SessionEvent.RECONNECTED:
                if self._serial.locked():
                    self._doubt.set()
                elif not self._doubt.is_set():
                    self._settle()
            case SessionEvent.SESSION_REESTABLISHED:
                self._turn(LockState.UNCERTAIN)
                self._doubt.set()

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        try:
            async for change in changes:
                if is_gone(change):
                    if self._state is LockState.HELD:
                        self._turn(LockState.UNCERTAIN)
                    self._doubt.set()
        except MetadataClosedError:
            self._doubt.set()

    async def _keep(self) -> None:
        """Check the claim each time that `_doubt` is set, until the lock is released or lost.

        Each lock has one task that runs this method.
        """
        attempt = 0
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            async with self._serial:
                if self._state not in (LockState.HELD, LockState.UNCERTAIN):
                    return
                try:
                    await self._revalidate()
                    attempt = 0
                    continue
                except (LockLostError, MetadataClosedError):
                    return
                except BookieError:
                    self._turn(LockState.UNCERTAIN)
                    self._doubt.set()
            await self._participant.pause(attempt)
            attempt += 1

    async def _revalidate(self) -> None:
        """Check that the claim exists; if the claim is gone, claim the lock again.

        Raises:
            LockLostError: another claim blocks the new claim, or the new claim was deleted. The
                lock is then LOST.
        """
        ticket = self._current()
        await self._store.sync()
        record = await self._store.get(ticket.key)
        if record is None:
            await self._claim_anew()
        elif record.created_by_self:
            self._ticket = with_stat(ticket, record.stat)
        else:
            # The record belongs to the store's former session, and is deleted when that session
            # ends, soon. If the new session takes over the record first, the claim keeps its place
            # in the queue.
            try:
                stat = await self._store.put(
                    ticket.key, encode_claim(self._claim), version=record.version, ephemeral=True
                )
            except (BadVersionError, NoSuchKeyError):
                await self._claim_anew()
            else:
                self._ticket = with_stat(ticket, stat)
        if self._state in (LockState.HELD, LockState.UNCERTAIN):
            self._settle()

    async def _claim_anew(self) -> None:
        try:
            if await self._queue.blocker(None, self._claim.mode) is None:
                await self._enter()
                if await self._queue.blocker(self._ticket, self._claim.mode) is None:
                    return
        except ClaimLostError:
            pass  # another process deleted the new claim on purpose, so do not claim the lock again
        self._lose()
        raise LockLostError(f"the lock {self.path} is not held any more")

    def _lose(self) -> None:
        if self._state is LockState.RELEASED:
            return  # `_let_go` waits for `_serial`, and then leaves the queue
        self._turn(LockState.LOST)
        _log.warning("lock_lost", path=self.path)
        self.lost.set()
        self._participant.spawn(self.give_up())

    def _is_written(self, record: Record | None) -> bool:
        return record is not None and record.value == encode_claim(self._claim)

    async def _stop(self) -> None:
        self._participant.forget(self._on_session)
        self._participant.forget_closer(self.release)
        if self._follower is not None:
            self._follower.cancel()
        self._doubt.set()  # makes `_keep` end
        await self._watch.aclose()
