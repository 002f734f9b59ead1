"""Writes the slots of many ledgers into the index at once.

A checkpoint of ten thousand ledgers has few entries of each ledger, so the work per ledger
dominates. This module turns the tables of hundreds of ledgers into one array of pages. Only the
reads and writes of the store work page by page.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bookie.env import WriteTransaction
from bookie.node.engine.format.arrays import U32, Ids
from bookie.node.engine.format.pages import (
    COLUMNS,
    SLOTS_PER_PAGE,
    decode_pages,
    encode_pages,
    page_key,
)
from bookie.node.engine.memtable import PART_ENTRIES, LocationTable, concatenated


class SlotWriter:
    """Writes slots in one transaction, and counts by how much each file's live bytes change."""

    def __init__(self, txn: WriteTransaction) -> None:
        self._txn = txn
        self.pages = 0
        self.live_delta: dict[int, int] = {}
        """Maps a file number to the change of the live bytes in that file."""

    def put(
        self, ledger_ids: Ids, last_entry_ids: Ids, tables: Sequence[LocationTable]
    ) -> tuple[Ids, Ids]:
        """Write the table of each ledger; return each ledger's gain in entries and in bytes.

        The ledger ids must be in ascending order. `last_entry_ids` holds, for each ledger, the
        highest entry id in the index: the ledger has no page above the page of this id.

        Raises:
            ChecksumError: a page that had to be changed is damaged.
        """
        entries = np.zeros(len(ledger_ids), np.int64)
        sizes = np.zeros(len(ledger_ids), np.int64)
        # For the id -1 (no entry), the division gives page -1.
        last_pages = last_entry_ids // SLOTS_PER_PAGE
        parts: list[tuple[int, LocationTable]] = []
        room = PART_ENTRIES
        for position, table in enumerate(tables):
            # With many ledgers, most tables are small; each small table is one part.
            small = 0 < len(table.ids) <= room
            for part in (table,) if small else table.parts(SLOTS_PER_PAGE):
                parts.append((position, part))
                room -= len(part.ids)
                if room <= 0:
                    self._put(ledger_ids, last_pages, parts, entries, sizes)
                    parts, room = [], PART_ENTRIES
        if parts:
            self._put(ledger_ids, last_pages, parts, entries, sizes)
        return entries, sizes

    def _put(
        self,
        ledger_ids: Ids,
        last_pages: Ids,
        parts: list[tuple[int, LocationTable]],
        entries: Ids,
        sizes: Ids,
    ) -> None:
        """Write `parts` (pairs: ledger position, table); add the gains to `entries` and `sizes`."""
        positions = np.array([position for position, _ in parts], np.int64)
        lengths = np.array([len(table.ids) for _, table in parts], np.int64)
        begins = np.cumsum(lengths) - lengths
        table = concatenated([table for _, table in parts])
        page_of = table.ids // SLOTS_PER_PAGE
        differs = page_of[1:] != page_of[:-1]
        # Each part begins a new page, even if the part before ends with the same page number.
        differs[begins[1:] - 1] = True
        first = np.concatenate(([0], np.flatnonzero(differs) + 1))
        numbers = page_of[first]
        owners = positions[np.searchsorted(begins, first, "right") - 1]
        slots = np.zeros((len(first), SLOTS_PER_PAGE, COLUMNS), np.uint32)
        replaces = self._fetch(slots, ledger_ids[owners], numbers, numbers <= last_pages[owners])
        # In `rows`, the slots of the page at position i begin at i * SLOTS_PER_PAGE.
        shifts = (np.arange(len(first)) - numbers) * SLOTS_PER_PAGE
        where = table.ids + np.repeat(shifts, np.diff(first, append=len(page_of)))
        rows = slots.reshape(-1, COLUMNS)
        before = rows[where] if replaces else rows[:0]
        rows[where, 0] = table.files
        rows[where, 1] = table.offsets
        rows[where, 2] = table.sizes
        self._txn.put_many("locations", encode_pages(ledger_ids[owners], numbers, slots))
        self.pages += len(first)
        self.count_live(table.files, table.sizes, 1)
        np.add.at(entries, positions, lengths)
        np.add.at(sizes, positions, np.add.reduceat(table.sizes, begins, dtype=np.int64))
        replaced = np.flatnonzero(before[:, 2])
        if len(replaced):
            before = before[replaced]
            owners = positions[np.searchsorted(begins, replaced, "right") - 1]
            self.count_live(before[:, 0], before[:, 2], -1)
            np.subtract.at(entries, owners, 1)
            np.subtract.at(sizes, owners, before[:, 2].astype(np.int64))

    def _fetch(
        self, slots: U32, ledger_ids: Ids, numbers: Ids, may_exist: npt.NDArray[np.bool_]
    ) -> bool:
        """Fill `slots` from the pages that already exist; return True if at least one exists."""
        at = np.flatnonzero(may_exist)
        keys = list(map(page_key, ledger_ids[at].tolist(), numbers[at].tolist()))
        pages = self._txn.get_many("locations", keys)
        found = [
            (index, (key, page))
            for index, key, page in zip(at.tolist(), keys, pages, strict=True)
            if page is not None
        ]
        if found:
            slots[[index for index, _ in found]] = decode_pages([pair for _, pair in found])[1]
        return bool(found)

    def count_live(self, files: U32, sizes: U32, sign: int) -> None:
        """Add the sizes of slots to their files' live bytes; with `sign` -1, subtract them."""
        if not len(files):
            return
        if bool((files == files[0]).all()):
            numbers, totals = [int(files[0])], [int(sizes.sum(dtype=np.int64))]
        else:
            unique, inverse = np.unique(files, return_inverse=True)
            numbers, totals = unique.tolist(), np.bincount(inverse, weights=sizes).tolist()
        for number, total in zip(numbers, totals, strict=True):
            self.live_delta[number] = self.live_delta.get(number, 0) + sign * int(total)
