"""The index: the place of each entry, the row of each ledger and file, and the journal mark.

The index can be rebuilt from the files. Each checkpoint changes the index in one write transaction,
which also moves the mark (`commit`).

==============  ===========================================================================
table           key → value
==============  ===========================================================================
``locations``   ledger id, page number (big endian) → page of up to 64 slots, with a CRC32C
``ledgers``     ledger id → `LedgerIndexRow`
``files``       file number → `FileRow`
``meta``        name → value, see the ``META_`` constants
==============  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bookie.env import KeyValueStore, ReadTransaction, WriteTransaction
from bookie.errors import CorruptionError, NewerFormatError
from bookie.ids import NO_ENTRY
from bookie.node.engine.files import SealedFile
from bookie.node.engine.format.arrays import Ids
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import (
    NOT_KNOWN,
    FileRow,
    FileState,
    HeldIn,
    LedgerIndexRow,
    Mark,
    decode_file_row,
    decode_ledger_row,
    decode_mark,
    encode_file_row,
    encode_ledger_row,
    encode_mark,
    file_key,
    ledger_key,
    ledger_keys_above,
    parse_file_key,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, decode_pages
from bookie.node.engine.hung_devices import CountedStore
from bookie.node.engine.index.cached_pages import CachedPages
from bookie.node.engine.index.deleted_ledgers import (
    Limits,
    check_deletions,
    delete_pages,
    deletions,
    find_due,
    forget,
    joined,
    note_deletion,
    note_held,
    row_of,
)
from bookie.node.engine.index.page_reads import look_up, stored_pages, verify_all_pages
from bookie.node.engine.index.reclaimed_entries import RemovedEntries, remove_entries
from bookie.node.engine.index.relocation import (
    FoundSlots,
    MovedEntries,
    Relocation,
    find_slots,
    move_slots,
)
from bookie.node.engine.index.slot_writer import SlotWriter
from bookie.node.engine.memtable import EMPTY_TABLE, LocationTable

TABLES = ("locations", "ledgers", "files", "meta")
INDEX_FORMAT_VERSION = 1

META_FORMAT = b"format"
META_MARK = b"mark"
META_BOOKIE = b"bookie_id"
META_INSTANCE = b"instance_id"
META_CLEAN = b"clean"
META_BOOT_ID = b"boot_id"
META_INTEGRITY = b"needs_integrity_check"
META_MISSING_FILES = b"missing_files"
"""Numbers of missing files that had live bytes; the bookie already knows of their loss."""

INTEGRITY_SOUND = b"sound"
INTEGRITY_SUSPECT = b"suspect"
"""Durable data is damaged or missing; some ledgers that may lack entries are not in limbo yet."""
INTEGRITY_IN_LIMBO = b"in limbo"
"""Each ledger that may lack entries is in limbo, or the damage makes the bookie deny no entry."""
_INTEGRITY_OF = {
    INTEGRITY_SOUND: INTEGRITY_SOUND,
    INTEGRITY_IN_LIMBO: INTEGRITY_IN_LIMBO,
    # Values of an older version; one flipped bit changes one value into the other.
    b"0": INTEGRITY_SOUND,
    b"2": INTEGRITY_IN_LIMBO,
}

LEDGERS_AT_ONCE = 1024
"""The number of ledgers whose slots a commit writes in one step."""

PAGES_PER_READ = 1024
PAGES_CLEARED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """The changes of one ledger in one checkpoint.

    `row` contains the ledger's flags and the bounds of its entry ids. The counts of `row` are
    ignored: the transaction computes them from the slots that it changes.
    """

    ledger_id: int
    row: LedgerIndexRow
    table: LocationTable = EMPTY_TABLE


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The results of an index transaction."""

    counts: dict[int, tuple[int, int]]
    """Maps a ledger id to the number of its entries in the index, and the number of their bytes."""
    dead_files: tuple[int, ...]
    """Numbers of the sealed files below the mark's file into which no slot points."""
    pages: int
    deletions_left: bool
    """True if a later transaction must remove more pages of deleted ledgers."""
    thinned: Sequence[int] = ()
    """Deleted ledgers whose pages this transaction removed."""


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """The content of one index transaction.

    A change without a mark is a batch of a rebuild. A start accepts the index only after the last
    batch, which writes the mark and the format.
    """

    mark: Mark | None
    ledgers: Sequence[LedgerChange] = ()
    sealed: Sequence[SealedFile] = ()
    removed_files: Sequence[int] = ()
    """Numbers of files that were unlinked; the transaction removes their rows."""
    meta: dict[bytes, bytes] = field(default_factory=dict)
    newest_journal: int = 0
    """The number of the journal in use when the rows were copied; 0 means the mark's file."""


class Index:
    """The four tables of the index; any thread may read, one thread at a time may write."""

    def __init__(self, store: KeyValueStore) -> None:
        self.store = self._store = CountedStore(store)
        self._files: dict[int, FileRow] | None = None
        """Cached rows of all files after the last commit, so that a commit need not decode them."""
        self.cached_pages = CachedPages()
        """The cache for the event loop, which never reads the key-value store itself."""

    def close(self) -> None:
        self._store.close()

    # --- reading -------------------------------------------------------------------------

    def mark(self) -> Mark | None:
        """The committed journal mark, or None in a new index."""
        with self._store.read() as txn:
            data = txn.get("meta", META_MARK)
        return None if data is None else decode_mark(data)

    def meta(self, name: bytes) -> bytes | None:
        with self._store.read() as txn:
            return txn.get("meta", name)

    def needs_integrity_check(self) -> bool:
        """True unless the stored verdict is "sound"; an unknown value means True."""
        return self.integrity() != INTEGRITY_SOUND

    def integrity(self) -> bytes:
        """The verdict about the durable data, an ``INTEGRITY_`` value.

        An unknown value counts as suspect, and so does a missing value in an index with a mark.
        """
        with self._store.read() as txn:
            value = txn.get("meta", META_INTEGRITY)
            if value is None and txn.get("meta", META_MARK) is None:
                return INTEGRITY_SOUND
        return _INTEGRITY_OF.get(value or b"", INTEGRITY_SUSPECT)

    def check_format(self) -> bool:
        """True if the index has content of this format; False if the index is new.

        Raises:
            FormatError: a newer version wrote the index.
            CorruptionError: the format is not a number.
        """
        data = self.meta(META_FORMAT)
        if data is None:
            return False
        if not data.isdigit():
            raise CorruptionError(f"the index has the unknown format {data!r}")
        version = int(data)
        if version > INDEX_FORMAT_VERSION:
            raise NewerFormatError(
                f"the index has format {version}, newer than {INDEX_FORMAT_VERSION} of this version"
            )
        return True

    def ledger(self, ledger_id: int) -> LedgerIndexRow | None:
        with self._store.read() as txn:
            data = txn.get("ledgers", ledger_key(ledger_id))
        return None if data is None else decode_ledger_row(ledger_id, data)

    def rows_of(self, ledger_ids: Sequence[int]) -> list[LedgerIndexRow | None]:
        """Return the row of each of these ledgers; raises like `row_of`."""
        with self._store.read() as txn:
            return [row_of(txn, ledger_id) for ledger_id in ledger_ids]

    def find_forgettable(
        self, after: int, count_max: int, before_file: int
    ) -> tuple[list[int], int]:
        """Find deleted ledgers above `after` for a call of `forget_deleted`; see `find_due`."""
        with self._store.read() as txn:
            return find_due(txn, after, count_max, Limits.of(_files(txn), before_file))

    def ledgers(self, after: int, count_max: int) -> list[tuple[int, LedgerIndexRow]]:
        """Return up to `count_max` rows of ledgers with ids above `after`, ascending."""
        with self._store.read() as txn:
            pairs = txn.range("ledgers", ledger_keys_above(after), b"\xff" * 9, count_max)
        found = ((parse_ledger_key(key), row) for key, row in pairs)
        return [(ledger_id, decode_ledger_row(ledger_id, row)) for ledger_id, row in found]

    def first_ledger_above(self, after: int) -> int | None:
        """Return the lowest ledger id above `after` that has a row, even a damaged row.

        Raises:
            FormatError: the key is damaged.
        """
        with self._store.read() as txn:
            pairs = txn.range("ledgers", ledger_keys_above(after), b"\xff" * 9, 1)
        return parse_ledger_key(pairs[0][0]) if pairs else None

    def ledger_count(self) -> int:
        with self._store.read() as txn:
            return txn.count("ledgers")

    def files(self) -> dict[int, FileRow]:
        with self._store.read() as txn:
            return _files(txn)

    def pages(self, ledger_id: int, first_page: int, last_page: int) -> list[bytes]:
        """Return the slots of the pages from `first_page` to `last_page`; see `look_up`.

        Raises:
            ChecksumError: a page is damaged; the caller may not conclude that an entry is missing.
        """
        with self._store.read() as txn:
            return look_up(txn, ledger_id, first_page, last_page)

    def must_have(self, ledger_id: int, entry_id: int) -> bool:
        """True if the ledger's row shows that the index must have the entry.

        The row shows this if its entry count equals the number of ids within its bounds. The caller
        did not find the entry, so True means that the entry's page was lost. If the ensemble of a
        ledger is larger than its write quorum, this bookie's entries have gaps, so the result is
        False.

        Raises:
            CorruptionError: the row of the ledger is damaged.
        """
        row = self.ledger(ledger_id)
        return (
            row is not None
            and row.first_entry_id <= entry_id <= row.last_entry_id
            # The id bounds in a row may be too wide, but never too narrow.
            and row.entries == row.last_entry_id - row.first_entry_id + 1
        )

    def entry_ids(self, ledger_id: int, first: int, last: int) -> tuple[Ids, int]:
        """Return stored ids from `first` on, and the first id that was not examined.

        A call reads at most `PAGES_PER_READ` pages. To get all ids, repeat the call with the
        returned id as `first`, until the returned id is above `last`.
        """
        with self._store.read() as txn:
            first_page, last_page = first // SLOTS_PER_PAGE, last // SLOTS_PER_PAGE
            pairs = stored_pages(txn, ledger_id, first_page, last_page, PAGES_PER_READ)
        if not pairs:
            return np.zeros(0, np.int64), last + 1
        numbers, slots = decode_pages(pairs)
        ids = (numbers[:, None] * SLOTS_PER_PAGE + np.arange(SLOTS_PER_PAGE)).reshape(-1)
        ids = ids[slots[:, :, 2].reshape(-1) > 0]
        ids = ids[(ids >= first) & (ids <= last)]
        done = len(pairs) < PAGES_PER_READ
        following = last + 1 if done else (int(numbers[-1]) + 1) * SLOTS_PER_PAGE
        return ids, following

    def is_deleting(self) -> bool:
        """True if the index still has pages of deleted ledgers."""
        with self._store.read() as txn:
            return bool(deletions(txn, 1))

    def slots(self, ledger_id: int, ids: Ids) -> FoundSlots | None:
        with self._store.read() as txn:
            return find_slots(txn, ledger_id, ids)

    def verify_pages(self) -> int:
        """Check all pages and rows, and the files to which pages point; return the page count.

        Raises:
            CorruptionError: the index is damaged and must be rebuilt.
        """
        pages = verify_all_pages(self._store, self.files())
        after = NO_ENTRY
        while rows := self.ledgers(after, PAGES_PER_READ):
            after = rows[-1][0]
        with self._store.read() as txn:
            check_deletions(txn)
        return pages

    # --- writing -------------------------------------------------------------------------

    def commit(self, change: CheckpointChange) -> CommitResult:
        """Apply `change` in one durable transaction.

        Raises:
            DiskFullError: there is no room; the caller may try the change again.
            OSError: the store failed and its state on disk is unknown; the process must end.
            CorruptionError: a page or row to change is damaged, or the mark would move back. The
                index is unchanged.
        """
        with self._store.write() as txn:
            before = txn.get("meta", META_MARK)
            _require_progress(before, change.mark)
            transaction = _Commit(txn, self._all_files(txn), _held_in(before, change))
            for sealed in change.sealed:
                transaction.seal(sealed)
            transaction.apply(sorted(change.ledgers, key=lambda item: item.ledger_id))
            files = self._all_files() | transaction.files
            thinned, deletions_left = delete_pages(txn, transaction.slots, files)
            for number in change.removed_files:
                transaction.files[number] = None
                txn.delete("files", file_key(number))
            for name, value in change.meta.items():
                txn.put("meta", name, value)
            transaction.write_files()
            dead: tuple[int, ...] = ()
            if change.mark is not None:
                txn.put("meta", META_FORMAT, str(INDEX_FORMAT_VERSION).encode())
                txn.put("meta", META_MARK, encode_mark(change.mark))
                dead = transaction.dead_files(change.mark)
        self._files_changed(transaction.files)
        return CommitResult(
            transaction.counts, dead, transaction.slots.pages, deletions_left, thinned
        )

    def clear(self) -> None:
        """Empty all tables for a rebuild; raises like `commit`.

        The first of several transactions removes the format, which makes the index invalid.
        """
        self._files = None
        with self._store.write() as txn:
            txn.delete("meta", META_FORMAT)
            txn.delete("meta", META_MARK)
        for name in TABLES:
            left = True
            while left:
                with self._store.write() as txn:
                    pairs = txn.range(name, b"", b"\xff" * 32, PAGES_CLEARED_MAX)
                    for key, _ in pairs:
                        txn.delete(name, key)
                left = len(pairs) == PAGES_CLEARED_MAX

    def forget_deleted(self, ledger_ids: Sequence[int], before_file: int) -> int:
        """Remove removable rows of these deleted ledgers, durably; return the number of rows.

        Raises like `commit`.
        """
        with self._store.write() as txn:
            at = _mark_in(txn).file_number
            limits = Limits.of(self._all_files(txn), min(before_file, at))
            return forget(txn, ledger_ids, limits, at)

    def relocate(self, change: Relocation, *, is_last: bool = True) -> CommitResult:
        """Register a log; point slots to the log if they still point to the entries' old places.

        The change is one durable transaction, which does not move the mark. Only the last
        transaction of a log reports dead files, because before that, the log itself may have no
        live bytes. Raises like `commit`.
        """
        with self._store.write() as txn:
            transaction = _Commit(txn, self._all_files(txn))
            mark = _mark_in(txn)
            transaction.seal(SealedFile(change.number, FileKind.ENTRY_LOG, change.size_bytes))
            for ledger_id in change.deleted:
                note_held(txn, ledger_id, HeldIn(logs=(change.number, change.number)))
            for entries in change.moved:
                transaction.move(entries, change.number)
            transaction.write_files()
            dead = transaction.dead_files(mark) if is_last else ()
        self._files_changed(transaction.files)
        return CommitResult({}, dead, transaction.slots.pages, deletions_left=False)

    def remove_entries(self, ledger_id: int) -> RemovedEntries:
        """Remove some entries of a ledger, but not the ledger, in one durable transaction.

        The mark does not move. Raises like `commit`.
        """
        with self._store.write() as txn:
            transaction = _Commit(txn, self._all_files(txn))
            removed = remove_entries(txn, transaction.slots, ledger_id)
            transaction.write_files()
        self._files_changed(transaction.files)
        return removed

    def put_meta(self, values: dict[bytes, bytes]) -> None:
        """Set values in the ``meta`` table, durably; raises like `commit`."""
        with self._store.write() as txn:
            for name, value in values.items():
                txn.put("meta", name, value)

    def _all_files(self, txn: ReadTransaction | None = None) -> dict[int, FileRow]:
        """Return the rows of all files after the last commit; the first call decodes the rows."""
        if self._files is None:
            self._files = {} if txn is None else _files(txn)
        return self._files

    def _files_changed(self, changed: dict[int, FileRow | None]) -> None:
        """Update the cached file rows after a commit; None means that the row was removed."""
        rows = self._all_files() | changed
        self._files = {number: row for number, row in rows.items() if row is not None}


class _Commit:
    """A write transaction in progress, which updates counts and live bytes when slots change."""

    def __init__(
        self, txn: WriteTransaction, files: dict[int, FileRow], held: HeldIn = NOT_KNOWN
    ) -> None:
        """`held` has the numbers of the files that may hold the entries of the change."""
        self._txn = txn
        self._held = held
        self._before = files
        self.files: dict[int, FileRow | None] = {}
        """Rows of files that this transaction changes; None means that the row is removed."""
        self.counts: dict[int, tuple[int, int]] = {}
        self.slots = SlotWriter(txn)

    def seal(self, sealed: SealedFile) -> None:
        row = self._file(sealed.number) or FileRow(sealed.kind, FileState.OPEN, 0, 0)
        self.files[sealed.number] = replace(
            row, kind=sealed.kind, state=FileState.SEALED, size_bytes=sealed.size_bytes
        )

    def apply(self, changes: Sequence[LedgerChange]) -> None:
        """Write the slots and rows of these ledgers, whose ids must be in ascending order."""
        for start in range(0, len(changes), LEDGERS_AT_ONCE):
            self._apply(changes[start : start + LEDGERS_AT_ONCE])

    def _apply(self, changes: Sequence[LedgerChange]) -> None:
        txn = self._txn
        keys = [ledger_key(change.ledger_id) for change in changes]
        old = []
        deleted: dict[int, HeldIn] = {}
        found = txn.get_many("ledgers", keys)
        for change, data in zip(changes, found, strict=True):
            row = LedgerIndexRow() if data is None else decode_ledger_row(change.ledger_id, data)
            if change.row.deleted_at_ms is not None:
                if row.entries:
                    note_deletion(txn, change.ledger_id)
                deleted[change.ledger_id] = (
                    self._held if row.deleted_at_ms is None else joined(row.held_in, self._held)
                )
                row = LedgerIndexRow()
            old.append(row)
        entries, sizes = self.slots.put(
            np.array([change.ledger_id for change in changes], np.int64),
            np.array([row.last_entry_id for row in old], np.int64),
            [EMPTY_TABLE if c.row.deleted_at_ms is not None else c.table for c in changes],
        )
        rows = []
        for key, change, row, more, larger in zip(
            keys, changes, old, entries.tolist(), sizes.tolist(), strict=True
        ):
            counts = row.entries + more, row.payload_bytes + larger
            self.counts[change.ledger_id] = counts
            new = change.row.counting(*counts)
            if change.ledger_id in deleted:
                new = replace(new, held_in=deleted[change.ledger_id])
            rows.append((key, encode_ledger_row(change.ledger_id, new)))
        txn.put_many("ledgers", rows)

    def move(self, entries: MovedEntries, number: int) -> None:
        moved, pages = move_slots(self._txn, entries, number)
        if not moved.all():
            # If the ledger was deleted after its entries were copied into the log, its row must
            # name the log.
            note_held(self._txn, entries.ledger_id, HeldIn(logs=(number, number)))
        sizes = entries.sizes[moved]
        self.slots.count_live(entries.old_files[moved], sizes, -1)
        self.slots.count_live(np.full(len(sizes), number, np.uint32), sizes, 1)
        self.slots.pages += pages

    def dead_files(self, mark: Mark) -> tuple[int, ...]:
        """Return the sealed files below the mark's file into which no slot points."""
        return tuple(
            number
            for number, row in sorted((self._before | self.files).items())
            if number < mark.file_number
            and row is not None
            and row.live_bytes == 0
            and row.state is FileState.SEALED
        )

    def write_files(self) -> None:
        for number, delta in self.slots.live_delta.items():
            row = self._file(number) or FileRow(FileKind.JOURNAL, FileState.OPEN, 0, 0)
            live = row.live_bytes + delta
            if live < 0:
                raise CorruptionError(f"file {number} would have {live} live bytes")
            self.files[number] = replace(row, live_bytes=live)
        for number, changed in sorted(self.files.items()):
            if changed is not None and self._before.get(number) != changed:
                self._txn.put("files", file_key(number), encode_file_row(number, changed))

    def _file(self, number: int) -> FileRow | None:
        return self.files[number] if number in self.files else self._before.get(number)


def _mark_in(txn: ReadTransaction) -> Mark:
    data = txn.get("meta", META_MARK)
    if data is None:
        raise CorruptionError("the index has lost its mark")
    return decode_mark(data)


def _files(txn: ReadTransaction) -> dict[int, FileRow]:
    # Start at the empty key, to find truncated keys as well.
    pairs = txn.range("files", b"", b"\xff" * 5, 2**31)
    found = ((parse_file_key(key), row) for key, row in pairs)
    return {number: decode_file_row(number, row) for number, row in found}


def _require_progress(before: bytes | None, mark: Mark | None) -> None:
    """Refuse a mark below the committed mark, because replay would start at the wrong place.

    Raises:
        CorruptionError: the new mark is below the committed mark.
    """
    if before is None:
        return
    number, offset = _position(decode_mark(before))
    if mark is None or _position(mark) < (number, offset):
        raise CorruptionError(
            f"the mark of the index is file {number}, offset {offset}, and would move back"
        )


def _held_in(before: bytes | None, change: CheckpointChange) -> HeldIn:
    """Return the files that may hold the entries of `change`; `NOT_KNOWN` in a rebuild."""
    if change.mark is None:
        return NOT_KNOWN
    low = 1 if before is None else decode_mark(before).file_number
    logs = [item.number for item in change.sealed if item.kind == FileKind.ENTRY_LOG]
    high = max(change.mark.file_number, change.newest_journal)
    return HeldIn((low, high), (min(logs), max(logs)) if logs else (0, 0))


def _position(mark: Mark) -> tuple[int, int]:
    return mark.file_number, mark.offset
