"""Removes deleted ledgers from the index: first their pages, last their rows.

**Pages.** The ``meta`` table has a record for each deleted ledger that still has pages. The name of
the record holds the key of the ledger. A damaged name could lead to the removal of another ledger's
pages. So the value of the record is a CRC32C of its name (empty if an older version wrote it).
Also, pages are removed only if the ledger's row, which has its own checksum, says that the ledger
was deleted. One transaction writes the row and the record, and the row stays at least as long as
the record.

**Rows.** Because of a row that says "deleted", late adds are refused, and a replay does not restore
the ledger. The row names the lowest and highest journal, and the lowest and highest log, that may
hold entries of the ledger. The row may be removed when

- all pages of the ledger are removed;
- these files are gone, so a replay or a rebuild finds no entry;
- its highest journal lies below one that the caller names. File numbers only rise, so they are a
  measure of time without a wall clock.

A log that repeats the deletion counts as such a file, too. Otherwise a rebuild would apply the
deletion to a later ledger of the same id. A row of an older version names no files; the first look
at the row makes it name the newest journal.
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
"""The prefix of the ``meta`` names of deleted ledgers with pages; the ledger's key follows."""

PAGES_DELETED_MAX = 256
"""The most pages of deleted ledgers that one transaction removes.

The removal of a page takes at least 10 µs of the interpreter, which concurrent adds need.
"""

DELETIONS_PER_COMMIT = 64
"""The most deleted ledgers that one transaction handles."""

_END = META_DELETING + b"\xff" * 9


def note_deletion(txn: WriteTransaction, ledger_id: int) -> None:
    """Record that this transaction or later ones must remove the pages of a ledger."""
    name = META_DELETING + ledger_key(ledger_id)
    txn.put("meta", name, crc32c(name).to_bytes(4, "little"))


def deletions(txn: ReadTransaction, count_max: int) -> list[tuple[bytes, bytes]]:
    """Return the ``meta`` names and values of deleted ledgers with pages, also damaged names.

    A truncated name sorts before all complete names.
    """
    return txn.range("meta", META_DELETING[:2], _END, count_max)


def deleted_ledger(txn: ReadTransaction, name: bytes, value: bytes) -> int:
    """Return the ledger whose pages are to be removed, after a check that it was deleted.

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
    """Check the names of all deleted ledgers with pages; raises like `deleted_ledger`."""
    for name, value in deletions(txn, 2**31):
        deleted_ledger(txn, name, value)


def row_of(txn: ReadTransaction, ledger_id: int) -> LedgerIndexRow | None:
    """Return the row of a ledger, which may say that the ledger was deleted.

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
    """Remove some pages of deleted ledgers; return these ledgers, and True if pages are left.

    The rows of these ledgers then name the files that the removed pages pointed into. `files` tells
    the kinds of these files.

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
    """Return lowest and highest journal and log of `numbers`; files without a row are journals."""
    journals, logs = (0, 0), (0, 0)
    for number in numbers:
        row = files.get(number)
        if row is None or row.kind == FileKind.JOURNAL:
            journals = _join(journals, (number, number))
        else:
            logs = _join(logs, (number, number))
    return HeldIn(journals, logs)


def joined(known: HeldIn, more: HeldIn) -> HeldIn:
    """Return the ranges of file numbers that cover both; unknown if `known` is unknown."""
    if known == NOT_KNOWN:
        return NOT_KNOWN
    return HeldIn(*map(_join, known, more))


def _join(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    if not one[1] or not other[1]:
        return max(one, other)
    return min(one[0], other[0]), max(one[1], other[1])


def note_held(txn: WriteTransaction, ledger_id: int, more: HeldIn) -> None:
    """Make the row of a deleted ledger name more files; other rows stay as they are."""
    data = txn.get("ledgers", ledger_key(ledger_id))
    row = LedgerIndexRow() if data is None else decode_ledger_row(ledger_id, data)
    if row.deleted_at_ms is not None:
        _put(txn, ledger_id, replace(row, held_in=joined(row.held_in, more)))


def find_due(
    txn: ReadTransaction, after: int, count_max: int, limits: Limits
) -> tuple[list[int], int]:
    """Find ledgers whose rows may go or name no files; return them and the id to go on from.

    It looks at up to `count_max` rows of ledgers above `after`. The id to go on from is `MAX_ID` if
    no rows are left.
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
    """Remove the rows of these ledgers that may be removed; return how many were removed.

    A row that names no files names `newest_journal` from now on.
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
