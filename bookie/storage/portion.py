"""What a boot has read from the files and not yet put into the index.

Entries are kept as columns, and sorted by ledger only when the portion is committed: a block of
lone appends to many ledgers costs no work per ledger until then. Nothing depends on the order of
an entry and a record of another type, so the two are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bookie.formats.index_rows import LedgerIndexRow
from bookie.formats.record_arrays import Ids, RecordArrays
from bookie.formats.records import (
    DeletedRecord,
    EntriesRecord,
    FenceRecord,
    LacRecord,
    LedgerRecord,
    LimboRecord,
    LinkRecord,
    Record,
)
from bookie.storage.index import LedgerChange
from bookie.storage.ledger_state import LedgerState
from bookie.storage.write_cache import EMPTY_TABLE, LocationTable, merge_tables

LEDGERS_MAX = 100_000
"""Ledgers after which a portion is full, however few entries it has."""


class Portion:
    """Ledgers and entries, in the order in which the files hold them."""

    def __init__(self, load_row: Callable[[int], LedgerIndexRow | None], entries_max: int) -> None:
        self._load_row = load_row
        self._entries_max = entries_max
        self.states: dict[int, LedgerState] = {}
        self.entries = 0
        self._ledger_ids: list[Ids] = []
        self._ids: list[Ids] = []
        self._lacs: list[Ids] = []
        self._files: list[npt.NDArray[np.uint32]] = []
        self._offsets: list[npt.NDArray[np.uint32]] = []
        self._sizes: list[npt.NDArray[np.uint32]] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to commit."""
        return self.entries >= self._entries_max or len(self.states) >= LEDGERS_MAX

    def take(self, records: RecordArrays, file: int, offsets: Ids) -> None:
        """Add the records of a body; the packets of its entries stand at `offsets` of `file`."""
        for record in records.others:
            self._apply(record)
        if not len(offsets):
            return
        self._ledger_ids.append(records.ledger_ids)
        self._ids.append(records.entry_ids)
        self._lacs.append(records.lacs)
        self._files.append(np.full(len(offsets), file, np.uint32))
        self._offsets.append(offsets.astype(np.uint32))
        self._sizes.append(records.sizes.astype(np.uint32))
        self.entries += len(offsets)

    def changes(self) -> list[LedgerChange]:
        """What the index has to learn; afterwards `states` know of the entries, too."""
        tables = self._tables()
        return [
            LedgerChange(ledger_id, state.row(), tables.get(ledger_id, EMPTY_TABLE))
            for ledger_id, state in self.states.items()
        ]

    def _tables(self) -> dict[int, LocationTable]:
        if not self._ids:
            return {}
        ledger_ids = np.concatenate(self._ledger_ids)
        lacs = np.concatenate(self._lacs)
        whole = LocationTable(
            np.concatenate(self._ids),
            np.concatenate(self._files),
            np.concatenate(self._offsets),
            np.concatenate(self._sizes),
        )
        if bool((ledger_ids[1:] < ledger_ids[:-1]).any()):
            # Stable: of an id that comes twice the last one wins.
            order = np.argsort(ledger_ids, kind="stable")
            ledger_ids, lacs, whole = ledger_ids[order], lacs[order], whole.at(order)
        starts = np.concatenate(([0], np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1))
        ends = np.append(starts[1:], len(ledger_ids))
        highest = np.maximum.reduceat(lacs, starts)
        tables = {}
        for ledger_id, start, end, lac in zip(
            ledger_ids[starts].tolist(),
            starts.tolist(),
            ends.tolist(),
            highest.tolist(),
            strict=True,
        ):
            table = merge_tables([whole.at(slice(start, end))])
            state = self._state(ledger_id)
            state.saw_entries(int(table.ids[0]), int(table.ids[-1]))
            state.max_lac = max(state.max_lac, lac)
            tables[ledger_id] = table
        return tables

    def _apply(self, record: Record) -> None:
        if isinstance(record, LinkRecord):
            # It says something about the file, not about its data.
            return
        assert not isinstance(record, EntriesRecord), "entries come as arrays"
        state = self._state(record.ledger_id)
        match record:
            case LedgerRecord() | FenceRecord():
                if state.key_digest is None:
                    state.key_digest = record.key
                if isinstance(record, FenceRecord):
                    state.fenced = state.fence_durable = True
            case LacRecord():
                state.take_lac(record.packet)
            case DeletedRecord():
                state.deleted_at_ms = record.deleted_at_ms
            case LimboRecord():
                state.limbo = record.in_limbo
                if record.in_limbo and record.fences:
                    state.fenced = state.fence_durable = True

    def _state(self, ledger_id: int) -> LedgerState:
        state = self.states.get(ledger_id)
        if state is None:
            # An unknown ledger is created, never skipped: skipping would lose its entries.
            state = LedgerState(ledger_id, self._load_row(ledger_id))
            state.exists = state.journaled = True
            self.states[ledger_id] = state
        return state
