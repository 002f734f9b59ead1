"""Removes the entries of a ledger from the index; the ledger keeps its row, key and fence.

A deletion of a ledger is final: its journal record makes the bookie refuse every later add, even
after a replay. But copies that were reclaimed, because no metadata named this bookie for them, may
have to be stored again. So the removal of such copies writes nothing into the journal and keeps the
row; only slots are removed. Later adds to the ledger are handled like adds to any other ledger. The
ledger stays fenced, because a fenced writer may still send entries.

**Removed entries stay removed.** A replay begins at the mark. The caller ensures that all entries
of the ledger are before the mark. A compaction moves only entries to which a slot points. A rebuild
of a lost index reads whole files, and may restore removed entries until compaction has freed their
bytes. Restored entries are intact copies of a closed ledger. No metadata names this bookie for
these entries, so the bookie reclaims them again.

After a removal, a flag in the row says that entries were removed (`LedgerIndexRow.reclaimed`). For
a ledger with this flag, the bookie never says that an entry does not exist. If the metadata names
this bookie for removed entries again, the integrity check puts the ledger in limbo. A rebuild of a
lost index loses the flag `reclaimed`, because no record contains it. After the rebuild, only the
ledgers whose metadata names the bookie at that time enter limbo. If the metadata store is restored
from an older state after the rebuild, the bookie may deny removed entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookie.env import WriteTransaction
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.format.index_rows import LedgerIndexRow, encode_ledger_row, ledger_key
from bookie.node.engine.format.pages import decode_pages, page_key
from bookie.node.engine.index.deleted_ledgers import PAGES_DELETED_MAX, row_of
from bookie.node.engine.index.slot_writer import SlotWriter


@dataclass(frozen=True, slots=True)
class RemovedEntries:
    """The result of one transaction: the ledger's new row, and the removed entries and bytes."""

    row: LedgerIndexRow
    entries: int
    size_bytes: int
    is_whole: bool
    """True if the index has no entry of the ledger left."""


def remove_entries(txn: WriteTransaction, slots: SlotWriter, ledger_id: int) -> RemovedEntries:
    """Remove up to `PAGES_DELETED_MAX` pages of a ledger, and update the counts in its row.

    Raises:
        CorruptionError: the row or a page is damaged.
    """
    row = row_of(txn, ledger_id)
    if row is None or row.deleted_at_ms is not None:
        return RemovedEntries(row or LedgerIndexRow(), 0, 0, is_whole=True)
    start, stop = page_key(ledger_id, 0), page_key(ledger_id, MAX_ID)
    pairs = txn.range("locations", start, stop, PAGES_DELETED_MAX)
    entries = size_bytes = 0
    if pairs:
        used = decode_pages(pairs)[1].reshape(-1, 3)
        used = used[used[:, 2] > 0]
        entries, size_bytes = len(used), int(used[:, 2].sum(dtype="int64"))
        slots.count_live(used[:, 0], used[:, 2], -1)
        for key, _ in pairs:
            txn.delete("locations", key)
    is_whole = len(pairs) < PAGES_DELETED_MAX
    new = replace(
        row,
        entries=0 if is_whole else row.entries - entries,
        payload_bytes=0 if is_whole else row.payload_bytes - size_bytes,
        first_entry_id=NO_ENTRY if is_whole else row.first_entry_id,
        last_entry_id=NO_ENTRY if is_whole else row.last_entry_id,
        reclaimed=True,
    )
    txn.put("ledgers", ledger_key(ledger_id), encode_ledger_row(ledger_id, new))
    return RemovedEntries(new, entries, size_bytes, is_whole)
