"""Rows of deleted ledgers: which files may still hold entries, and when a row is removed.

A row that says "deleted" refuses late adds, and prevents a replay from restoring the ledger. It
names the lowest and highest journal, and the lowest and highest log, that may hold entries of the
ledger. It may be removed when

- all pages of the ledger are removed;
- these files are gone, so a replay or a rebuild finds no entry;
- its highest journal lies below one that the caller names. File numbers only rise, so they are a
  measure of time without a wall clock.

A log that repeats the deletion counts as well, because a rebuild would apply it to a later ledger
of the same id. A row of an older version names no files; the first look gives it the newest
journal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bookie.env import ReadTransaction, WriteTransaction
from bookie.ids import MAX_ID
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import (
    NOT_KNOWN,
    FileRow,
    HeldIn,
    LedgerIndexRow,
    decode_ledger_row,
    encode_ledger_row,
    ledger_key,
    ledger_keys_above,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import page_key


@dataclass(frozen=True, slots=True)
class Limits:
    """The facts that decide about rows."""

    journals: Sequence[int]
    """The numbers of all files of a kind, ascending."""
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
    """The spans of these files; files without a row count as journals."""
    journals, logs = (0, 0), (0, 0)
    for number in numbers:
        row = files.get(number)
        if row is None or row.kind == FileKind.JOURNAL:
            journals = _join(journals, (number, number))
        else:
            logs = _join(logs, (number, number))
    return HeldIn(journals, logs)


def joined(known: HeldIn, more: HeldIn) -> HeldIn:
    """The spans over both; unknown if one of them is."""
    if known == NOT_KNOWN:
        return NOT_KNOWN
    return HeldIn(*map(_join, known, more))


def _join(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    if not one[1] or not other[1]:
        return max(one, other)
    return min(one[0], other[0]), max(one[1], other[1])


def note_held(txn: WriteTransaction, ledger_id: int, more: HeldIn) -> None:
    """Have the row of a ledger name more files, if it was deleted."""
    data = txn.get("ledgers", ledger_key(ledger_id))
    row = LedgerIndexRow() if data is None else decode_ledger_row(ledger_id, data)
    if row.deleted_at_ms is not None:
        _put(txn, ledger_id, replace(row, held_in=joined(row.held_in, more)))


def find_due(
    txn: ReadTransaction, after: int, count_max: int, limits: Limits
) -> tuple[list[int], int]:
    """Ledgers above `after` whose rows may go, or name no files; and the id to go on from.

    Looks at up to `count_max` rows; the id is `MAX_ID` at the end.
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
    """Remove the rows of these ledgers that may go; returns how many went.

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
