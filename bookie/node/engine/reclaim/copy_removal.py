"""Removes all entries of a ledger, step by step, between checkpoints; the ledger stays known.

Every step is one index transaction (`index/reclaimed_entries.py`). Right before each step, in the
same turn of the event loop, a function of the caller decides whether the step is allowed. For
example, the function can check that the caller's lease is still valid. A transaction that has begun
cannot be stopped. Therefore a concurrent listing of the ledger's entries waits for the end of the
transaction.

After a crash between two steps, only a part of the entries is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bookie.env import Clock
from bookie.node.engine.checkpoint import PAUSE_SECONDS_MAX, Checkpointer
from bookie.node.engine.ledger_state import LocalLedger


@dataclass(frozen=True, slots=True)
class CopyRemoved:
    """The number of removed entries of the ledger, and the bytes of their packets."""

    entries: int
    size_bytes: int
    is_whole: bool
    """False if some entries may be left, because a step of the removal was not allowed."""


class CopyRemoval:
    """Removes the copies of one ledger at a time."""

    def __init__(
        self,
        clock: Clock,
        load: Callable[[int], Awaitable[LocalLedger]],
        checkpoint: Callable[[], Awaitable[None]],
        checkpointer: Checkpointer,
        failing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._clock = clock
        self._load = load
        self._checkpoint = checkpoint
        self._checkpointer = checkpointer
        self._failing = failing

    async def run(self, ledger_id: int, key: bytes, may_go: Callable[[], bool]) -> CopyRemoved:
        """Remove the entries of a ledger; each step is durable when it ends.

        Recovery adds may store entries again at any time. If this bookie knows no key of the
        ledger, or knows that the ledger was deleted, this method removes no entries.

        Args:
            ledger_id: the id of the ledger.
            key: the key of the ledger. The entries of another ledger with this id, but another key,
                are not removed.
            may_go: the check right before each step; False ends the removal.

        Raises:
            CorruptionError: the ledger's row is damaged.
            DiskFullError: the index has no room; some entries may be gone.
            StorageFailedError: the index failed; the process must end.
        """
        state = await self._load(ledger_id)
        entries = size_bytes = 0
        is_whole = False
        state.users += 1
        try:
            if self._checkpointer.is_dirty(ledger_id):
                await self._checkpoint()
            while not is_whole and state.key_digest is not None and state.accepts_key(key):
                began = self._clock.monotonic()
                with self._failing():
                    step = await self._checkpointer.remove_entries(state, may_go)
                if step is None:
                    break
                entries, size_bytes = entries + step.entries, size_bytes + step.size_bytes
                is_whole = step.is_whole
                if not is_whole:
                    pause = self._clock.monotonic() - began
                    await asyncio.sleep(min(pause, PAUSE_SECONDS_MAX))
        finally:
            state.users -= 1
        return CopyRemoved(entries, size_bytes, is_whole)
