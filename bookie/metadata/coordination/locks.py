"""Locks: one holder at a time, and a line of those who wait.

What a lock is good for, and what not, stands in `lock`.

Source: the distributed locks of Apache Pulsar's coordination service, but for the line.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bookie.errors import (
    BadVersionError,
    LockBusyError,
    NoSuchKeyError,
    OperationTimeoutError,
)
from bookie.formats.claim import Claim, ClaimMode
from bookie.metadata.coordination.line import Line, Standing
from bookie.metadata.coordination.lock import Lock, LockState
from bookie.metadata.coordination.participant import Participant


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as others see it."""

    owner: str
    content: bytes


class LockManager:
    """The locks of one participant; they are released when it closes.

    Args:
        participant: whose they are.
        owner: a name for who holds them, for others to read.
    """

    def __init__(self, participant: Participant, *, owner: str = "") -> None:
        self._participant = participant
        self._owner = owner
        self._locks: list[Lock] = []
        participant.on_close(self.release_all)

    async def try_acquire(
        self,
        path: str,
        content: bytes = b"",
        *,
        mode: ClaimMode = ClaimMode.EXCLUSIVE,
        take_over: bool = False,
    ) -> Lock:
        """Acquire the lock `path` if it is free now.

        With `take_over` a lock whose holder has the same (not empty) owner is taken from it: an
        earlier life of this process, if the owner names nothing else. That one loses the lock.

        Raises:
            LockBusyError: somebody else holds it, or waits for it.
            MetadataUnavailableError: the store did not answer; nothing is held.
            SessionLostError: the session ended.
        """
        line, lock = self._new_lock(path, content, mode)
        blocker = await line.blocker(None, mode)
        instead_of = None
        if blocker is not None:
            first = await line.first()
            if first is not None and not self._may_replace(first, take_over=take_over):
                raise self._busy(path)
            instead_of = None if first is None else first.record
        try:
            if not await lock.try_to_hold(instead_of):
                raise self._busy(path)
        except (BadVersionError, NoSuchKeyError) as error:
            raise self._busy(path) from error
        except BaseException:
            lock.give_up_soon()
            raise
        return self._keep(lock)

    async def acquire(
        self,
        path: str,
        content: bytes = b"",
        *,
        mode: ClaimMode = ClaimMode.EXCLUSIVE,
        timeout_seconds: float | None = None,
    ) -> Lock:
        """Acquire the lock `path`, waiting in line for it, for as long as it takes if None.

        It goes on waiting through outages. A lost session costs the place in line.

        Raises:
            OperationTimeoutError: it was not our turn in time.
        """
        _, lock = self._new_lock(path, content, mode)
        try:
            async with asyncio.timeout(timeout_seconds):
                await lock.wait_to_hold()
        except TimeoutError as error:
            lock.give_up_soon()
            raise OperationTimeoutError(
                f"the lock {path} was not free within {timeout_seconds} seconds"
            ) from error
        except BaseException:
            lock.give_up_soon()
            raise
        return self._keep(lock)

    async def read(self, path: str) -> Holder | None:
        """Who holds the lock, or nobody; of a shared lock, the first who does."""
        first = await Line(self._participant, path).first()
        if first is None:
            return None
        return (
            Holder("", b"")
            if first.claim is None
            else Holder(first.claim.owner, first.claim.content)
        )

    async def list(self, path: str) -> list[str]:
        """The names of the locks one level below `path` that are held or waited for."""
        return await self._participant.store.get_children(path)

    @property
    def held(self) -> tuple[Lock, ...]:
        """The locks that are held, for certain or not."""
        self._locks = [
            lock for lock in self._locks if lock.state in (LockState.HELD, LockState.UNCERTAIN)
        ]
        return tuple(self._locks)

    async def release_all(self) -> None:
        """Release every lock of this manager."""
        for lock in self.held:
            await lock.release()

    def _new_lock(self, path: str, content: bytes, mode: ClaimMode) -> tuple[Line, Lock]:
        line = Line(self._participant, path)
        return line, Lock(self._participant, line, Claim("", mode, self._owner, content))

    def _keep(self, lock: Lock) -> Lock:
        self._locks = [*self.held, lock]
        return lock

    def _may_replace(self, first: Standing, *, take_over: bool) -> bool:
        if first.claim is None:
            return False
        if self._participant.is_leftover(first.claim.guid):
            return True
        return take_over and self._owner != "" and first.claim.owner == self._owner

    @staticmethod
    def _busy(path: str) -> LockBusyError:
        return LockBusyError(f"somebody else holds the lock {path}")
