"""Locks that many may share as readers, or one has as the writer.

Readers and writers stand in one line, so neither starves: a reader waits for the last writer before
it, a writer for whoever is just before it. When a writer is done, the readers behind it come in
together, up to the next writer. Everything else is as with every `lock`; so is the advice to guard
what is protected: writers by their token, which is greater than that of all who were before them.
"""

from __future__ import annotations

from bookie.formats.claim import ClaimMode
from bookie.metadata.coordination.lock import Lock
from bookie.metadata.coordination.locks import LockManager
from bookie.metadata.coordination.participant import Participant


class ReadWriteLocks:
    """The shared locks of one participant; they are released when it closes."""

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
        """Share the lock if no writer has or wants it; raises what `try_acquire` does."""
        return await self._locks.try_acquire(path, content, mode=ClaimMode.SHARED)

    async def try_write(self, path: str, content: bytes = b"") -> Lock:
        """Have the lock alone if nobody has or wants it; raises what `try_acquire` does."""
        return await self._locks.try_acquire(path, content)
