"""Updates the index slots of entries that moved to another file.

A compaction copies entries, then updates their slots in the index. Between the copy and the update,
a recovery add or a deletion may change a slot. So a compaction updates only slots that still point
to the old place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bookie.env import ReadTransaction, WriteTransaction
from bookie.node.engine.format.arrays import U32, Ids, distinct
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, decode_pages, encode_pages, page_key


@dataclass(frozen=True, slots=True)
class MovedEntries:
    """Entries of one ledger with their old and new places, ascending by id, each id once."""

    ledger_id: int
    ids: Ids
    old_files: U32
    old_offsets: U32
    sizes: U32
    new_offsets: U32


@dataclass(frozen=True, slots=True)
class Relocation:
    """All entries that were copied from older files into one new log."""

    number: int
    path: str
    size_bytes: int
    moved: Sequence[MovedEntries]
    deleted: Sequence[int] = ()
    """Ledgers for which the log has a DELETED record."""

    def parts(self, entries_max: int) -> Iterator[Relocation]:
        """Split the relocation; each part except the last has at least `entries_max` entries."""
        part: list[MovedEntries] = []
        entries, deleted = 0, self.deleted
        for item in self.moved:
            part.append(item)
            entries += len(item.ids)
            if entries >= entries_max:
                yield replace(self, moved=part, deleted=deleted)
                # Only the first part contains the ids in `deleted`.
                part, entries, deleted = [], 0, ()
        if part or not self.moved:
            yield replace(self, moved=part, deleted=deleted)


@dataclass(frozen=True, slots=True)
class FoundSlots:
    """The slots of some entry ids of one ledger, and the pages that contain these slots.

    The caller may change `slots`; `present` is True for each id that has a page.
    """

    numbers: Ids
    slots: U32
    """Array of shape (pages, 64, 3)."""
    at: Ids
    """Position of each id's page in `numbers`; any valid position if the page is missing."""
    where: Ids
    """The position of each id's slot in its page: 0 to 63."""
    present: npt.NDArray[np.bool_]

    def points_at(self, files: U32 | int, offsets: U32 | Ids, sizes: U32) -> npt.NDArray[np.bool_]:
        """Return a flag for each id: True if the id is stored at exactly the given place."""
        current = self.slots[self.at, self.where]
        same: npt.NDArray[np.bool_] = (
            (current[:, 0] == files) & (current[:, 1] == offsets) & (current[:, 2] == sizes)
        )
        return same & self.present


def find_slots(txn: ReadTransaction, ledger_id: int, ids: Ids) -> FoundSlots | None:
    """Find the slots of `ids`, given in any order; None if no page of these ids exists.

    Raises:
        ChecksumError: a page is damaged; the caller may not conclude that an entry is missing.
    """
    page_of = ids // SLOTS_PER_PAGE
    wanted = distinct(page_of)
    first, last = int(wanted[0]), int(wanted[-1])
    if last - first < 2 * len(wanted):
        start, stop = page_key(ledger_id, first), page_key(ledger_id, last + 1)
        pairs = txn.range("locations", start, stop, last - first + 1)
    else:
        keys = [page_key(ledger_id, number) for number in wanted.tolist()]
        values = [txn.get("locations", key) for key in keys]
        pairs = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
    if not pairs:
        return None
    numbers, slots = decode_pages(pairs)
    at = np.minimum(np.searchsorted(numbers, page_of), len(numbers) - 1)
    where = ids - page_of * SLOTS_PER_PAGE
    return FoundSlots(numbers, slots.copy(), at, where, numbers[at] == page_of)


def move_slots(
    txn: WriteTransaction, entries: MovedEntries, number: int
) -> tuple[npt.NDArray[np.bool_], int]:
    """Point the slots of `entries` to file `number`, if they still point to the old places.

    Returns:
        a flag for each entry, True if its slot was changed; and the number of written pages.

    Raises:
        ChecksumError: a page is damaged; no page was written.
    """
    found = find_slots(txn, entries.ledger_id, entries.ids)
    if found is None:
        return np.zeros(len(entries.ids), np.bool_), 0
    moved = found.points_at(entries.old_files, entries.old_offsets, entries.sizes)
    at, where = found.at[moved], found.where[moved]
    found.slots[at, where, 0] = number
    found.slots[at, where, 1] = entries.new_offsets[moved]
    changed = distinct(at)
    pages = encode_pages(entries.ledger_id, found.numbers[changed], found.slots[changed])
    txn.put_many("locations", pages)
    return moved, len(pages)
