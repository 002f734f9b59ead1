"""Gives the repair access to this bookie's copies, to remove copies that no metadata names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.engine import Engine
from bookie.node.engine.reclaim.copy_removal import CopyRemoved
from bookie.node.garbage import GarbageCollector

LEDGERS_PER_PAGE = 1000


class OwnCopies:
    """The part of a bookie's engine and garbage collector that a reclaim uses."""

    def __init__(self, engine: Engine, garbage: GarbageCollector) -> None:
        self._engine = engine
        self._garbage = garbage

    async def pages(self) -> AsyncIterator[list[int]]:
        """Yield the ids of ledgers with entries stored here, ascending, in pages.

        Entries that are only in the memtable do not count until a checkpoint moves the entries into
        the index.
        """
        after = NO_ENTRY
        while after < MAX_ID:
            page, after = await self._engine.ledgers(after, LEDGERS_PER_PAGE)
            yield [stored.ledger_id for stored in page if stored.row.entries]

    async def find_objection(self) -> str:
        """Return the reason to remove nothing now; see `GarbageCollector.find_objection`."""
        return await self._garbage.find_objection()

    async def known_end(self, ledger_id: int, last: int) -> int:
        """Return the highest id above `last` that is stored here or is the LAC known here.

        The result is at most `last` if there is no such id. A stored entry may never have been
        acknowledged.

        Raises:
            CorruptionError: the index is damaged.
            StorageFailedError: the index cannot be read; the process must end.
        """
        state = await self._engine.load(ledger_id)
        highest = state.max_lac
        async for _, lasts in self._engine.entry_ranges(state, last + 1, MAX_ID):
            highest = max(highest, int(lasts[-1]))
        return highest

    async def remove(self, ledger_id: int, key: bytes, may_go: Callable[[], bool]) -> CopyRemoved:
        """Remove the entries of a ledger durably, and free their bytes soon.

        See `CopyRemoval.run`.
        """
        removed = await self._engine.remove_copies(ledger_id, key, may_go)
        if removed.entries:
            self._engine.compact()
        return removed
