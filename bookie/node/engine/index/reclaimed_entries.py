"""Removes the entries of a ledger from the index; the ledger itself stays, with key and fence.

A deletion of a ledger is final: its record in the journal refuses every later add, and a replay
does not restore the ledger. Copies that were reclaimed may have to come back. So nothing is written
into the journal, and the row stays: only slots go. Later adds find an ordinary ledger. The fence
stays, because a writer that was fenced out may still send entries.

**Stale entries do not come back.** A replay begins at the mark. The caller sees to it that all
entries of the ledger lie before the mark. A compaction moves only entries to which a slot points.
A rebuild of a lost index reads whole files, and may find entries again until compaction has freed
their bytes. These are intact copies of a closed ledger: nobody asks for them, and they are
reclaimed once more.

The row says from now on that entries were removed (`LedgerIndexRow.reclaimed`), and the bookie does
not deny entries of this ledger any more. If metadata names them again, the integrity check puts the
ledger in limbo. A rebuild of a lost index loses the flag, which is in no record. The rebuild puts
those ledgers in limbo that name the bookie then. If the metadata store goes back after that, the
bookie may deny removed entries.
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
    """The work of one transaction: the row of the ledger now, and what went."""

    row: LedgerIndexRow
    entries: int
    size_bytes: int
    is_whole: bool
    """True if no entry of the ledger is left in the index."""


def remove_entries(txn: WriteTransaction, slots: SlotWriter, ledger_id: int) -> RemovedEntries:
    """Remove up to `PAGES_DELETED_MAX` pages of a ledger, and count them out of its row.

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
