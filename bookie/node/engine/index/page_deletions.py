"""Deleted ledgers that still have pages in the index; each has a name in ``meta``.

The name holds the ledger's key. A damaged name could remove the pages of another ledger. So the
value is a CRC32C of the name (empty if an older version wrote it). Also, pages are removed only if
the ledger's row, which has its own checksum, says that the ledger was deleted. One transaction
writes row and name, and the row stays at least as long as the name.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie.entry.checksum import crc32c
from bookie.env import ReadTransaction, WriteTransaction
from bookie.errors import ChecksumError, CorruptionError
from bookie.ids import MAX_ID
from bookie.node.engine.format.arrays import distinct
from bookie.node.engine.format.index_rows import (
    FileRow,
    LedgerIndexRow,
    decode_ledger_row,
    is_row,
    ledger_key,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import decode_pages, page_key
from bookie.node.engine.index.slot_writer import SlotWriter
from bookie.node.engine.index.tombstones import held_in, note_held

META_DELETING = b"deleting/"
"""The names of deleted ledgers with pages left begin with it, the key of the ledger follows."""

PAGES_DELETED_MAX = 256
"""Pages of deleted ledgers that one transaction removes.

Each costs at least 10 µs of the interpreter, which concurrent adds need.
"""

DELETIONS_PER_COMMIT = 64
"""Deleted ledgers that one transaction looks at."""

_END = META_DELETING + b"\xff" * 9


def note_deletion(txn: WriteTransaction, ledger_id: int) -> None:
    """Have this transaction or later ones remove the pages of a ledger."""
    name = META_DELETING + ledger_key(ledger_id)
    txn.put("meta", name, crc32c(name).to_bytes(4, "little"))


def deletions(txn: ReadTransaction, count_max: int) -> list[tuple[bytes, bytes]]:
    """Names and values of deleted ledgers with pages left; also names that are damaged.

    A name that was cut sorts before all whole ones.
    """
    return txn.range("meta", META_DELETING[:2], _END, count_max)


def deleted_ledger(txn: ReadTransaction, name: bytes, value: bytes) -> int:
    """The ledger whose pages are to be removed.

    Raises:
        CorruptionError: there is no proof that this ledger was deleted.
    """
    ledger_id = parse_ledger_key(name[len(META_DELETING) :])
    if value and value != crc32c(name).to_bytes(4, "little"):
        raise ChecksumError(f"the deletion of ledger {ledger_id} in the index is damaged")
    data = txn.get("ledgers", ledger_key(ledger_id))
    if data is None or decode_ledger_row(ledger_id, data).deleted_at_ms is None:
        raise CorruptionError(
            f"the pages of ledger {ledger_id} are to be deleted, but its row says otherwise"
        )
    return ledger_id


def check_deletions(txn: ReadTransaction) -> None:
    """Check every name; raises like `deleted_ledger`."""
    for name, value in deletions(txn, 2**31):
        deleted_ledger(txn, name, value)


def row_of(txn: ReadTransaction, ledger_id: int) -> LedgerIndexRow | None:
    """The row of a ledger, which may say that it was deleted.

    Raises:
        CorruptionError: the row or its key is damaged, or a ledger with pages has no row. As a new
            ledger it would deny its entries, lose its fence and overwrite its pages.
    """
    key = ledger_key(ledger_id)
    data = txn.get("ledgers", key)
    if data is None:
        # A flipped bit in its key hides a row, which then stands beside its place.
        for near, value in txn.around("ledgers", key):
            if is_row(key, value):
                raise ChecksumError(f"the row of ledger {ledger_id} has the key {near.hex()}")
    if data is not None:
        return decode_ledger_row(ledger_id, data)
    if txn.range("locations", page_key(ledger_id, 0), page_key(ledger_id + 1, 0), 1):
        raise CorruptionError(f"ledger {ledger_id} has pages in the index, but no row")
    return None


def delete_pages(
    txn: WriteTransaction, slots: SlotWriter, files: Mapping[int, FileRow | None]
) -> tuple[list[int], bool]:
    """Remove some pages of deleted ledgers; returns their ledgers and whether pages are left.

    The rows of the ledgers name the files that the pages named; `files` tell their kinds.

    Raises:
        CorruptionError: a name or a page is damaged, or a ledger was not deleted.
    """
    budget = PAGES_DELETED_MAX
    pending = deletions(txn, DELETIONS_PER_COMMIT)
    thinned = []
    for name, value in pending:
        ledger_id = deleted_ledger(txn, name, value)
        start, stop = page_key(ledger_id, 0), page_key(ledger_id, MAX_ID)
        pairs = txn.range("locations", start, stop, budget)
        if pairs:
            thinned.append(ledger_id)
            used = decode_pages(pairs)[1].reshape(-1, 3)
            used = used[used[:, 2] > 0]
            slots.count_live(used[:, 0], used[:, 2], -1)
            for key, _ in pairs:
                txn.delete("locations", key)
            note_held(txn, ledger_id, held_in(distinct(used[:, 0]).tolist(), files))
            budget -= len(pairs)
            if budget <= 0:
                return thinned, True
        txn.delete("meta", name)
    return thinned, len(pending) == DELETIONS_PER_COMMIT
