"""Exclusive locks, and locks that readers can share; waiting processes form a queue.

The docstring of the module `lock` describes the limits of a lock's protection.

Source: for all but the queue, the distributed locks of Apache Pulsar's coordination service.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bookie.coordination.claim import Claim, ClaimMode
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.participant import Participant
from bookie.coordination.wait_queue import Contender, WaitQueue
from bookie.env.checked import checked
from bookie.errors import BadVersionError, LockBusyError, NoSuchKeyError, OperationTimeoutError


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner name and the content that the holder of a lock wrote into its claim."""

    owner: str
    content: bytes


class LockManager:
    """Acquires locks for one participant, and releases them when the participant closes.

    Args:
        participant: the participant that holds the locks.
        owner: the holder's name, which other processes can read.
    """

    @checked
    def __init__(self, participant: Participant, *, owner: str = "") -> None:
        self._participant = participant
        self._owner = owner
        self._locks: list[Lock] = []

    @checked
    async def try_acquire(
        self,
        path: str,
        content: bytes = b"",
        *,
        mode: ClaimMode = ClaimMode.EXCLUSIVE,
        take_over: bool = False,
    ) -> Lock:
        """Acquire the lock `path` without waiting.

        With `take_over`, this call deletes the claim of a holder that has the same non-empty owner
        name. If a third process already waits for the lock, that process gets the lock, and this
        call raises LockBusyError. Use `take_over` only if no two processes have the same owner
        name: then the replaced holder is an earlier run of this process.

        Raises:
            LockBusyError: another process holds the lock, or waits for it.
            MetadataUnavailableError: the store did not answer; this process does not hold the lock.
            SessionLostError: the session ended.
        """
        queue, lock = self._new_lock(path, content, mode)
        blocker = await queue.blocker(None, mode)
        instead_of = None
        if blocker is not None:
            first = await queue.first()
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

    @checked
    async def acquire(
        self,
        path: str,
        content: bytes = b"",
        *,
        mode: ClaimMode = ClaimMode.EXCLUSIVE,
        timeout_seconds: float | None = None,
    ) -> Lock:
        """Acquire the lock `path`; wait in the queue up to `timeout_seconds` (None: no limit).

        The wait continues during an outage of the store. If the claim ended with a lost session,
        the wait continues with a new claim at the end of the queue.

        Raises:
            OperationTimeoutError: the lock was not acquired within `timeout_seconds`.
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

    @checked
    async def read(self, path: str) -> Holder | None:
        """Read the holder of a lock from the store; return None if no process holds the lock.

        If several readers share the lock, the result is the reader that is first in the queue.
        """
        first = await WaitQueue(self._participant, path).first()
        if first is None:
            return None
        return (
            Holder("", b"")
            if first.claim is None
            else Holder(first.claim.owner, first.claim.content)
        )

    @checked
    async def list(self, path: str) -> list[str]:
        """Return the names of the locks directly below `path` that have a holder.

        On ZooKeeper, the result may also contain a lock whose last holder died.
        """
        return await self._participant.store.get_children(path)

    @property
    def held(self) -> tuple[Lock, ...]:
        """The locks of this manager whose state is HELD or UNCERTAIN."""
        self._locks = [
            lock for lock in self._locks if lock.state in (LockState.HELD, LockState.UNCERTAIN)
        ]
        return tuple(self._locks)

    def _new_lock(self, path: str, content: bytes, mode: ClaimMode) -> tuple[WaitQueue, Lock]:
        queue = WaitQueue(self._participant, path)
        return queue, Lock(self._participant, queue, Claim("", mode, self._owner, content))

    def _keep(self, lock: Lock) -> Lock:
        self._locks = [*self.held, lock]
        return lock

    def _may_replace(self, first: Contender, *, take_over: bool) -> bool:
        if first.claim is None:
            return False
        if self._participant.is_leftover(first.claim.guid):
            return True
        return take_over and self._owner != "" and first.claim.owner == self._owner

    @staticmethod
    def _busy(path: str) -> LockBusyError:
        return LockBusyError(f"another process holds the lock {path}")


class ReadWriteLocks:
    """Acquires read-write locks: many readers can share a lock, or one writer holds it alone.

    Readers and writers wait in one queue, so neither kind can starve the other. A reader waits for
    the last writer before it in the queue. A writer waits for the claim directly before it. When a
    writer releases the lock, all readers between it and the next writer in the queue get the lock
    together. These locks are advisory, too: guard effects by the writer's token, which is greater
    than the tokens of all earlier claims. The locks are released when the participant closes.
    """

    @checked
    def __init__(self, participant: Participant, *, owner: str = "") -> None:
        self._locks = LockManager(participant, owner=owner)

    async def read(
        self, path: str, content: bytes = b"", *, timeout_seconds: float | None = None
    ) -> Lock:
        """Acquire the lock `path` as a reader, which shares the lock with other readers.

        Raises the errors of `LockManager.acquire`.
        """
        return await self._locks.acquire(
            path, content, mode=ClaimMode.SHARED, timeout_seconds=timeout_seconds
        )

    async def write(
        self, path: str, content: bytes = b"", *, timeout_seconds: float | None = None
    ) -> Lock:
        """Acquire the lock `path` as a writer, which holds the lock alone.

        Raises the errors of `LockManager.acquire`.
        """
        return await self._locks.acquire(path, content, timeout_seconds=timeout_seconds)

    async def try_read(self, path: str, content: bytes = b"") -> Lock:
        """Acquire the lock as a reader without waiting; no writer may be in the queue.

        Raises the errors of `LockManager.try_acquire`.
        """
        return await self._locks.try_acquire(path, content, mode=ClaimMode.SHARED)

    async def try_write(self, path: str, content: bytes = b"") -> Lock:
        """Acquire the lock as a writer without waiting; the queue must be empty.

        Raises the errors of `LockManager.try_acquire`.
        """
        return await self._locks.try_acquire(path, content)
