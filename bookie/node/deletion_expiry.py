"""Removes the row of a deleted ledger from the index when the deletion is old enough.

Each row of a deleted ledger costs time in every round of the garbage collector. But if a row is
removed too early, a late writer can store entries of the ledger again. Wall clocks may be wrong.
Therefore only the time between complete rounds of the collector counts (the observed time):

1. When a period begins, the bookie records the observed time and the newest journal file's number.
2. After `deleted_ledger_retention_seconds`, rows of ledgers that were deleted before the period
   began are removed. Before the removal, the ledger must be absent from the metadata store, and all
   files with its entries must be gone (`node/engine/index/deleted_ledgers.py`).
3. After the removal of all expired rows, the next period begins.

After the row is removed, a late add creates the ledger again. The collector then deletes this
ledger, like every ledger that is absent from the metadata store.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from contextlib import suppress

from bookie.errors import DiskFullError
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.durable_values import DurableValues
from bookie.node.engine.engine import Engine

_NAME = b"period"
_PERIOD = struct.Struct("<dI")
"""The record of a period: the observed seconds and the newest journal file at its beginning."""

ROWS_PER_ROUND = 100_000
"""A round ends its search after about this many expired rows, to limit the memory for ids."""

ROWS_AT_ONCE = 1000
"""The largest number of rows that one index transaction reads or removes."""


class DeletionExpiry:
    """Finds and removes the expired rows of deleted ledgers, period by period."""

    def __init__(self, engine: Engine, values: DurableValues) -> None:
        self._engine = engine
        self._values = values
        self._since: float | None = None
        self._before_file = 0
        self._after = NO_ENTRY
        self._following = NO_ENTRY

    async def load(self) -> None:
        """Load the current period; without a valid record, the next `find_due` begins a period."""
        note = (await self._values.read()).get(_NAME)
        if note is not None and len(note) == _PERIOD.size:
            self._since, self._before_file = _PERIOD.unpack(note)

    async def find_due(self, observed_seconds: float) -> list[int]:
        """Return the ids of deleted ledgers whose rows have expired.

        The caller must not remove the rows of ledgers that the metadata store still lists.
        """
        since = self._since
        if since is None or observed_seconds < since:
            with suppress(DiskFullError):
                await self._begin(observed_seconds)
            return []
        if observed_seconds - since < self._engine.deletion_retention_seconds:
            return []
        due: list[int] = []
        after = self._after
        while after < MAX_ID and len(due) < ROWS_PER_ROUND:
            found, after = await self._engine.find_forgettable(
                after, ROWS_AT_ONCE, self._before_file
            )
            due += found
        self._following = after
        return due

    async def forget(self, ledger_ids: Collection[int], observed_seconds: float) -> int:
        """Remove the rows of `ledger_ids`, and return the number of removed rows.

        The caller has checked that the metadata store lists none of these ledgers. If the device is
        full, a later round removes the remaining rows.

        Raises:
            StorageFailedError: the index failed; the process must end.
        """
        following, self._following = self._following, NO_ENTRY
        gone, ids = 0, sorted(ledger_ids)
        with suppress(DiskFullError):
            for start in range(0, len(ids), ROWS_AT_ONCE):
                some = ids[start : start + ROWS_AT_ONCE]
                gone += await self._engine.forget_deleted(some, self._before_file)
            self._after = max(self._after, following)
            if self._after == MAX_ID:
                await self._begin(observed_seconds)
        return gone

    async def _begin(self, observed_seconds: float) -> None:
        newest = self._engine.newest_journal
        await self._values.write({_NAME: _PERIOD.pack(observed_seconds, newest)})
        self._since, self._before_file, self._after = observed_seconds, newest, NO_ENTRY
