"""Ledgers whose pages are on their way out of the index: a name of ``meta`` for each of them.

The name holds the ledger's key, and what it names loses its pages, so a damaged name must not be
believed. Its value is a CRC32C of the name (empty in what an older version wrote), and pages go
only if the row of the ledger, which has a checksum of its own, says that it was deleted. The row
says so for as long as there is such a name: one transaction writes both, and nobody makes the
ledger anew before the name is gone.
"""

from __future__ import annotations

from bookie.env import ReadTransaction, WriteTransaction
from bookie.errors import ChecksumError, CorruptionError
from bookie.formats.checksum import crc32c
from bookie.formats.index_rows import (
    LedgerIndexRow,
    decode_ledger_row,
    is_row,
    ledger_key,
    parse_ledger_key,
)
from bookie.formats.pages import decode_pages, page_key
from bookie.ids import MAX_ID
from bookie.storage.slot_writer import SlotWriter

META_DELETING = b"deleting/"
"""The names of deleted ledgers with pages left begin with it, the key of the ledger follows."""

PAGES_DELETED_MAX = 256
"""Pages of deleted ledgers that one transaction removes.

Each costs the interpreter 10 µs and more, and adds that go on meanwhile wait for it.
"""

DELETIONS_PER_COMMIT = 64
"""Deleted ledgers that one transaction looks at."""

_END = META_DELETING + b"\xff" * 9


def note_deletion(txn: WriteTransaction, ledger_id: int) -> None:
    """Have the pages of a ledger removed, by this transaction or later ones."""
    name = META_DELETING + ledger_key(ledger_id)
    txn.put("meta", name, crc32c(name).to_bytes(4, "little"))


def deletions(txn: ReadTransaction, count_max: int) -> list[tuple[bytes, bytes]]:
    """Names and values of deleted ledgers with pages left, and whatever is left of such a name.

    A name that was cut stands before all that are whole.
    """
    return txn.range("meta", META_DELETING[:2], _END, count_max)


def deleted_ledger(txn: ReadTransaction, name: bytes, value: bytes) -> int:
    """The ledger whose pages are to go, as `deletions` tells it.

    Raises:
        CorruptionError: it is not sure that this ledger was deleted.
    """
    ledger_id = parse_ledger_key(name[len(META_DELETING) :])
    if value and value != crc32c(name).to_bytes(4, "little"):
        raise ChecksumError(f"the deletion of ledger {ledger_id} in the index is damaged")
    data = txn.get("ledgers", ledger_key(ledger_id))
    if data is None or decode_ledger_row(ledger_id, data).deleted_at_ms is None:
        raise CorruptionError(
            f"the pages of ledger {ledger_id} are to go, whose row does not say that it was deleted"
        )
    return ledger_id


def check_deletions(txn: ReadTransaction) -> None:
    """Check every name; raises like `deleted_ledger`."""
    for name, value in deletions(txn, 2**31):
        deleted_ledger(txn, name, value)


def row_since(txn: ReadTransaction, ledger_id: int, deleted_after_ms: int) -> LedgerIndexRow | None:
    """The row of a ledger, unless it was deleted earlier than that and has no pages left.

    Raises:
        CorruptionError: the row is damaged, or its key is, or there is none of a ledger that has
            pages: taken for a new one, it would deny its entries, forget its fence, and write over
            its pages.
    """
    key = ledger_key(ledger_id)
    data = txn.get("ledgers", key)
    if data is None:
        # A bit that flipped in its key hides a row, which stands beside its place then.
        for near, value in txn.around("ledgers", key):
            if is_row(key, value):
                raise ChecksumError(f"the row of ledger {ledger_id} has the key {near.hex()}")
    row = None if data is None else decode_ledger_row(ledger_id, data)
    if row is not None and (row.deleted_at_ms is None or row.deleted_at_ms >= deleted_after_ms):
        return row
    if row is not None and txn.get("meta", META_DELETING + key) is not None:
        return row
    if txn.range("locations", page_key(ledger_id, 0), page_key(ledger_id + 1, 0), 1):
        raise CorruptionError(f"ledger {ledger_id} has pages in the index, but no row")
    return None


def delete_pages(txn: WriteTransaction, slots: SlotWriter) -> bool:
    """Remove pages of deleted ledgers, a bounded number; whether some are left.

    Raises:
        CorruptionError: a name or a page is damaged, or a ledger was not deleted.
    """
    budget = PAGES_DELETED_MAX
    pending = deletions(txn, DELETIONS_PER_COMMIT)
    for name, value in pending:
        ledger_id = deleted_ledger(txn, name, value)
        start, stop = page_key(ledger_id, 0), page_key(ledger_id, MAX_ID)
        pairs = txn.range("locations", start, stop, budget)
        if pairs:
            used = decode_pages(pairs)[1].reshape(-1, 3)
            used = used[used[:, 2] > 0]
            slots.count_live(used[:, 0], used[:, 2], -1)
            for key, _ in pairs:
                txn.delete("locations", key)
            budget -= len(pairs)
            if budget <= 0:
                return True
        txn.delete("meta", name)
    return len(pending) == DELETIONS_PER_COMMIT
