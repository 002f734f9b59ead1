"""Locks that many readers share, or one writer has alone.

Readers and writers wait in one queue, so neither starves. A reader waits for the last writer before
it; a writer waits for the claim just before it. When a writer is done, the readers behind it enter
together, up to the next writer. The advice of `lock` holds here, too: guard effects by the writer's
token, which is greater than that of all claims before it.
"""

from __future__ import annotations

from bookie.coordination.claim import ClaimMode
from bookie.coordination.lock import Lock
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.env.checked import checked


class ReadWriteLocks:
    """The shared locks of one participant; they are released when it closes."""

    @checked
    def __init__(self, participant: Participant, *, owner: str = "") -> None:
        self._locks = LockManager(participant, owner=owner)

    async def read(
        self, path: str, content: bytes = b"", *, timeout_seconds: float | None = None
    ) -> Lock:
        """Share the lock `path` with other readers; raises what `LockManager.acquire` does."""
        return await self._locks.acquire(
            path, content, mode=ClaimMode.SHARED, timeout_seconds=timeout_seconds
        )

    async def write(
        self, path: str, content: bytes = b"", *, timeout_seconds: float | None = None
    ) -> Lock:
        """Have the lock `path` alone; raises what `LockManager.acquire` does."""
        return await self._locks.acquire(path, content, timeout_seconds=timeout_seconds)

    async def try_read(self, path: str, content: bytes = b"") -> Lock:
        """Share the lock if no writer is in the queue; raises what `try_acquire` does."""
        return await self._locks.try_acquire(path, content, mode=ClaimMode.SHARED)

    async def try_write(self, path: str, content: bytes = b"") -> Lock:
        """Have the lock alone if the queue is empty; raises what `try_acquire` does."""
        return await self._locks.try_acquire(path, content)
