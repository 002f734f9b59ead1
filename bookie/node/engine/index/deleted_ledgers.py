"""Removes deleted ledgers from the index: first their pages, then their rows.

**Pages.** The ``meta`` table has a record for each deleted ledger that still has pages. The name of
the record contains the ledger id. A damaged name could lead to the removal of another ledger's
pages. Therefore the value of the record is a CRC32C of its name; a record of an older version has
an empty value. Also, pages are removed only if the ledger's row says that the ledger was deleted;
the row has its own checksum. The row and the record are written in one transaction, and the row is
never removed before the record.

**Rows.** A row that says "deleted" makes the bookie refuse late adds, and keeps a replay from
restoring the ledger. The row names the lowest and highest journal, and the lowest and highest log,
that may hold entries of the ledger. The row may be removed if all these conditions are true:

- all pages of the ledger are removed;
- the named files are gone, so a replay or a rebuild finds no entry of the ledger;
- the ledger's highest journal has a lower number than a journal that the caller names. File numbers
  only increase, so they measure time without a wall clock.

A log that repeats the DELETED record also counts as a file that may hold entries. Without this
rule, a rebuild after the removal of the row would apply the deletion to a later ledger with the
same id. A row of an older version names no files; the first call of `forget` for the row adds the
newest journal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bookie.entry.checksum import crc32c
from bookie.env import ReadTransaction, WriteTransaction
from bookie.errors import ChecksumError, CorruptionError
from bookie.ids import MAX_ID
from bookie.node.engine.format.arrays import distinct
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import (
    NOT_KNOWN,
    FileRow,
    HeldIn,
    LedgerIndexRow,
    decode_ledger_row,
    encode_ledger_row,
    is_row,
    ledger_key,
    ledger_keys_above,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import decode_pages, page_key
from bookie.node.engine.index.slot_writer import SlotWriter

META_DELETING = b"deleting/"
"""The prefix of the ``meta`` names of deleted ledgers with pages; the ledger id follows it."""

PAGES_DELETED_MAX = 256
"""The largest number of pages of deleted ledgers that one transaction removes.

The removal of a page blocks the Python interpreter for at least 10 µs, so concurrent adds wait.
"""

DELETIONS_PER_COMMIT = 64
"""The largest number of deleted ledgers that one transaction handles."""

_END = META_DELETING + b"\xff" * 9


def note_deletion(txn: WriteTransaction, ledger_id: int) -> None:
    """Record that this transaction or later transactions must remove the pages of a ledger."""
    name = META_DELETING + ledger_key(ledger_id)
    txn.put("meta", name, crc32c(name).to_bytes(4, "little"))


def deletions(txn: ReadTransaction, count_max: int) -> list[tuple[bytes, bytes]]:
    """Return the ``meta`` names and values of deleted ledgers with pages, damaged names included.

    The search begins before the prefix, because a truncated name sorts before all complete names.
    """
    return txn.range("meta", META_DELETING[:2], _END, count_max)


def deleted_ledger(txn: ReadTransaction, name: bytes, value: bytes) -> int:
    """Check that a ledger was deleted, and return its id, so that its pages can be removed.

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
    """Check the keys of all deleted ledgers that have pages; raises as `deleted_ledger` does."""
    for name, value in deletions(txn, 2**31):
        deleted_ledger(txn, name, value)


def row_of(txn: ReadTransaction, ledger_id: int) -> LedgerIndexRow | None:
    """Return the row of a ledger, which may say that the ledger was deleted.

    Raises:
        CorruptionError: the row or its key is damaged, or a ledger with pages has no row. The
            caller must not treat such a ledger as new: this would lose its entries and its fence.
    """
    key = ledger_key(ledger_id)
    data = txn.get("ledgers", key)
    if data is None:
        # If a bit of its key is flipped, the row is not found, but it is next to its proper place.
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
    """Remove some pages of deleted ledgers; return these ledgers, and True if more may be left.

    The files to which the removed pages pointed are added to the ledgers' rows. `files` contains
    the row of each file, which shows the file's kind.

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


@dataclass(frozen=True, slots=True)
class Limits:
    """The existing files and the journal number that decide which rows may be removed."""

    journals: Sequence[int]
    """The numbers of all journals, ascending; `logs` has the numbers of all entry logs."""
    logs: Sequence[int]
    before_journal: int

    @classmethod
    def of(cls, files: Mapping[int, FileRow], before_journal: int) -> Limits:
        numbers = sorted(files)
        return cls(
            [number for number in numbers if files[number].kind == FileKind.JOURNAL],
            [number for number in numbers if files[number].kind != FileKind.JOURNAL],
            before_journal,
        )

    def let_go(self, row: LedgerIndexRow) -> bool:
        held = row.held_in
        return (
            row.deleted_at_ms is not None
            and 0 < held.journals[1] < self.before_journal
            and not _has_any(self.journals, held.journals)
            and not _has_any(self.logs, held.logs)
        )


def _has_any(numbers: Sequence[int], span: tuple[int, int]) -> bool:
    at = bisect_left(numbers, span[0])
    return at < len(numbers) and numbers[at] <= span[1]


def held_in(numbers: Iterable[int], files: Mapping[int, FileRow | None]) -> HeldIn:
    """Return the lowest and highest journal, and the lowest and highest log, in `numbers`.

    A file without a row counts as a journal.
    """
    journals, logs = (0, 0), (0, 0)
    for number in numbers:
        row = files.get(number)
        if row is None or row.kind == FileKind.JOURNAL:
            journals = _join(journals, (number, number))
        else:
            logs = _join(logs, (number, number))
    return HeldIn(journals, logs)


def joined(known: HeldIn, more: HeldIn) -> HeldIn:
    """Return the file ranges that cover `known` and `more`; `NOT_KNOWN` if `known` is unknown."""
    if known == NOT_KNOWN:
        return NOT_KNOWN
    return HeldIn(*map(_join, known, more))


def _join(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    if not one[1] or not other[1]:
        return max(one, other)
    return min(one[0], other[0]), max(one[1], other[1])


def note_held(txn: WriteTransaction, ledger_id: int, more: HeldIn) -> None:
    """Add files to the row of a ledger if the ledger was deleted; otherwise change nothing."""
    data = txn.get("ledgers", ledger_key(ledger_id))
    row = LedgerIndexRow() if data is None else decode_ledger_row(ledger_id, data)
    if row.deleted_at_ms is not None:
        _put(txn, ledger_id, replace(row, held_in=joined(row.held_in, more)))


def find_due(
    txn: ReadTransaction, after: int, count_max: int, limits: Limits
) -> tuple[list[int], int]:
    """Find deleted ledgers for `forget`: their rows are removable, or name no files.

    Examines up to `count_max` rows of ledgers above `after`.

    Returns:
        the ledgers, and the `after` of the next call: `MAX_ID` if no rows are left.
    """
    pairs = txn.range("ledgers", ledger_keys_above(after), b"\xff" * 9, count_max)
    found = []
    for key, data in pairs:
        ledger_id = parse_ledger_key(key)
        row = decode_ledger_row(ledger_id, data)
        unknown = row.deleted_at_ms is not None and row.held_in == NOT_KNOWN
        if unknown or limits.let_go(row):
            found.append(ledger_id)
    return found, parse_ledger_key(pairs[-1][0]) if len(pairs) == count_max else MAX_ID


def forget(
    txn: WriteTransaction, ledger_ids: Iterable[int], limits: Limits, newest_journal: int
) -> int:
    """Remove the removable rows of these ledgers; return the number of removed rows.

    A row that names no files gets `newest_journal` as its file, and is not removed.
    """
    gone = 0
    for ledger_id in ledger_ids:
        data = txn.get("ledgers", ledger_key(ledger_id))
        row = LedgerIndexRow() if data is None else decode_ledger_row(ledger_id, data)
        if row.deleted_at_ms is not None and row.held_in == NOT_KNOWN:
            held = HeldIn((newest_journal, newest_journal))
            _put(txn, ledger_id, replace(row, held_in=held))
        elif limits.let_go(row) and not txn.range(
            "locations", page_key(ledger_id, 0), page_key(ledger_id + 1, 0), 1
        ):
            gone += txn.delete("ledgers", ledger_key(ledger_id))
    return gone


def _put(txn: WriteTransaction, ledger_id: int, row: LedgerIndexRow) -> None:
    txn.put("ledgers", ledger_key(ledger_id), encode_ledger_row(ledger_id, row))
