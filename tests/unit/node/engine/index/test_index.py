"""The index: what damage, a full device and bounded deletion do to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bookie.env import KeyValueStore, open_lmdb
from bookie.errors import ChecksumError, CorruptionError, DiskFullError, FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.files import SealedFile
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import (
    FileState,
    LedgerIndexRow,
    Mark,
    encode_ledger_row,
    file_key,
    ledger_key,
)
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.index import entry_index
from bookie.node.engine.index.deleted_ledgers import META_DELETING, PAGES_DELETED_MAX
from bookie.node.engine.index.entry_index import (
    INTEGRITY_IN_LIMBO,
    INTEGRITY_SOUND,
    INTEGRITY_SUSPECT,
    META_FORMAT,
    META_INTEGRITY,
    META_MARK,
    TABLES,
    CheckpointChange,
    Index,
    LedgerChange,
)
from bookie.node.engine.index.relocation import Relocation
from bookie.node.engine.memtable import LocationTable
from bookie.node.engine.window import Window
from tests.unit.node.engine.machine import FaultyStore, StoreFaults

NONCE = bytes(16)
DELETED = LedgerIndexRow(deleted_at_ms=1)


@pytest.fixture(name="faults")
def _faults() -> StoreFaults:
    return StoreFaults()


@pytest.fixture(name="store")
def _store(tmp_path: Path, faults: StoreFaults) -> Iterator[KeyValueStore]:
    real = open_lmdb(str(tmp_path), 2**28, TABLES)
    store = FaultyStore(real, faults, tmp_path / "data.mdb")
    yield store
    store.close()


@pytest.fixture(name="index")
def _index(store: KeyValueStore) -> Index:
    return Index(store)


def table(ids: list[int] | range, file: int = 1, size: int = 50) -> LocationTable:
    count = len(ids)
    return LocationTable(
        np.array(ids, np.int64),
        np.full(count, file, np.uint32),
        (4096 + size * np.arange(count, dtype=np.int64)).astype(np.uint32),
        np.full(count, size, np.uint32),
    )


def change(
    ledger_id: int, ids: list[int] | range, *, file: int = 1, offset: int = 5000
) -> CheckpointChange:
    row = LedgerIndexRow(first_entry_id=min(ids), last_entry_id=max(ids))
    ledgers = [LedgerChange(ledger_id, row, table(ids, file))]
    return CheckpointChange(Mark(file, offset, 1, NONCE), ledgers)


def damage(store: KeyValueStore, table_name: str, key: bytes) -> None:
    with store.write() as txn:
        value = bytearray(txn.get(table_name, key) or b"")
        assert value
        value[-1] ^= 1
        txn.put(table_name, key, bytes(value))


def test_a_damaged_page_is_an_error_and_never_an_absent_entry(
    index: Index, store: KeyValueStore
) -> None:
    """Nothing may be concluded from a page that fails its checksum."""
    index.commit(change(7, range(200)))
    damage(store, "locations", page_key(7, 1))
    for first in (0, 64, 100):
        with pytest.raises(ChecksumError):
            index.pages(7, first // 64, (first + 29) // 64 if first else 3)
    with pytest.raises(ChecksumError):
        index.entry_ids(7, 0, 199)
    with pytest.raises(ChecksumError):
        index.verify_pages()
    window = Window(0, 64)
    window.fill(0, index.pages(7, 0, 0))
    assert (window.sizes == 50).all(), "the other pages are as good as ever"


def test_a_page_that_lost_its_end_is_an_error(index: Index, store: KeyValueStore) -> None:
    """A page cut at a slot's end, or to no bytes, differs from one with fewer entries."""
    index.commit(change(7, range(64)))
    with store.write() as txn:
        whole = txn.get("locations", page_key(7, 0)) or b""
    for length in (len(whole) - 12, 4, 0):
        with store.write() as txn:
            txn.put("locations", page_key(7, 0), whole[:length])
        with pytest.raises(CorruptionError):
            index.pages(7, 0, 0)


def test_a_commit_over_a_damaged_page_changes_nothing(index: Index, store: KeyValueStore) -> None:
    """It is found before it is overwritten, and the whole transaction is void."""
    index.commit(change(7, range(70)))
    before = index.mark(), index.files(), index.ledger(7)
    damage(store, "locations", page_key(7, 1))
    with pytest.raises(CorruptionError):
        index.commit(change(7, range(66, 80), file=2))
    with pytest.raises(CorruptionError):
        index.commit(CheckpointChange(Mark(3, 5000, 2, NONCE), ledgers=[LedgerChange(7, DELETED)]))
    assert (index.mark(), index.files(), index.ledger(7)) == before


@pytest.mark.parametrize("mark", [Mark(2, 5000, 9, NONCE), Mark(3, 4096, 0, NONCE), None])
def test_the_mark_never_moves_back(index: Index, mark: Mark | None) -> None:
    """Such a commit fails and changes nothing, also under `python -O`."""
    index.commit(change(7, range(70), file=3))
    before = index.mark(), index.files(), index.ledger(7)
    with pytest.raises(CorruptionError, match="file 3, offset 5000"):
        index.commit(CheckpointChange(mark, change(7, range(80)).ledgers))
    assert (index.mark(), index.files(), index.ledger(7)) == before
    index.commit(CheckpointChange(before[0], change(7, range(80), file=3).ledgers))


def test_nothing_is_relocated_in_an_index_that_lost_its_mark(
    index: Index, store: KeyValueStore
) -> None:
    """Without a mark, files that replay still needs would count as dead."""
    index.commit(change(7, range(70)))
    with store.write() as txn:
        txn.delete("meta", META_MARK)
    before = index.files()
    with pytest.raises(CorruptionError, match="lost its mark"):
        index.relocate(Relocation(2, "2.log", 4096, []))
    assert index.files() == before


@pytest.mark.parametrize(
    ("table_name", "key"),
    [("ledgers", ledger_key(7)), ("files", file_key(1)), ("meta", META_MARK)],
)
def test_a_damaged_row_is_an_error(
    index: Index, store: KeyValueStore, table_name: str, key: bytes
) -> None:
    """Rows of ledgers, files and the mark carry checksums of their own."""
    index.commit(change(7, range(3)))
    damage(store, table_name, key)
    with pytest.raises(CorruptionError):
        index.mark() if key == META_MARK else index.verify_pages()
    # Rows of files are read once, at the start.
    with pytest.raises(CorruptionError):
        Index(store).commit(change(7, range(3), offset=6000))


def test_a_commit_decodes_no_row_of_a_file_again(
    index: Index, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows in memory equal the stored ones, also after a failed commit."""
    index.commit(change(7, range(3)))
    with monkeypatch.context() as patch:
        patch.setattr(entry_index, "decode_file_row", None)
        index.commit(change(7, range(90), file=2, offset=9000))
        faults.errors.append(DiskFullError("full"))
        with pytest.raises(DiskFullError):
            index.commit(change(7, range(95), file=3, offset=9000))
    assert index._all_files() == index.files()
    index.commit(
        CheckpointChange(Mark(4, 5000, 2, NONCE), sealed=[SealedFile(9, 1, 50)], removed_files=[2])
    )
    assert index._all_files() == index.files()


def test_nothing_of_a_failed_transaction_is_seen(index: Index, faults: StoreFaults) -> None:
    """A full device leaves the index as it was, and the same change succeeds later."""
    index.commit(change(7, range(3)))
    before = index.mark(), index.files(), index.ledger(7)
    faults.errors.append(DiskFullError("full"))
    with pytest.raises(DiskFullError):
        index.commit(change(7, range(90), offset=9000))
    assert (index.mark(), index.files(), index.ledger(7)) == before
    committed = index.commit(change(7, range(90), offset=9000))
    assert committed.counts == {7: (90, 4500)}


def test_the_same_commit_twice_counts_once(index: Index) -> None:
    """A checkpoint that was cancelled behind its commit commits again."""
    index.commit(change(7, range(90)))
    files = index.files()
    assert index.commit(change(7, range(90))).counts == {7: (90, 4500)}
    assert index.files() == files


def test_a_large_ledger_is_deleted_in_bounded_steps(index: Index) -> None:
    """Each transaction removes a bounded number of pages; the file dies with the last of them."""
    pages = 2 * PAGES_DELETED_MAX + 100
    index.commit(change(7, range(0, 64 * pages, 64)))
    index.commit(change(8, range(3), file=2))
    seal = [SealedFile(1, FileKind.JOURNAL, 5000)]
    deletion = [LedgerChange(7, dataclasses.replace(DELETED, last_entry_id=64 * pages))]
    mark = Mark(2, 9000, 1, NONCE)
    committed = index.commit(CheckpointChange(mark, deletion, seal))
    assert committed.counts == {7: (0, 0)}
    live = [index.files()[1].live_bytes]
    while committed.deletions_left:
        assert list(committed.dead_files) == []
        committed = index.commit(CheckpointChange(mark))
        live.append(index.files()[1].live_bytes)
    steps = [pages - PAGES_DELETED_MAX, pages - 2 * PAGES_DELETED_MAX, 0]
    assert live == [50 * count for count in steps]
    assert list(committed.dead_files) == [1]
    assert index.entry_ids(7, 0, MAX_ID)[0].tolist() == []
    assert index.entry_ids(8, 0, MAX_ID)[0].tolist() == [0, 1, 2]
    row = index.ledger(7)
    assert row is not None
    assert row.deleted_at_ms == 1
    index.commit(CheckpointChange(mark, removed_files=committed.dead_files))
    assert 1 not in index.files()


def test_more_deleted_ledgers_than_one_transaction_looks_at(index: Index) -> None:
    """The rest waits for later transactions and is not forgotten."""
    ids = range(10, 2510)
    row = LedgerIndexRow(first_entry_id=0, last_entry_id=0)
    changes = [LedgerChange(i, row, table([0])) for i in ids]
    index.commit(CheckpointChange(Mark(1, 5000, 1, NONCE), changes))
    mark = Mark(2, 5000, 2, NONCE)
    committed = index.commit(CheckpointChange(mark, [LedgerChange(i, DELETED) for i in ids]))
    while committed.deletions_left:
        committed = index.commit(CheckpointChange(mark))
    assert index.verify_pages() == 0
    assert index.files()[1].live_bytes == 0


@pytest.mark.parametrize("value", [b"", None], ids=["older", "newer"])
@pytest.mark.parametrize("named", [8, 9, 6], ids=["living", "deleted", "unknown"])
def test_a_deletion_that_names_another_ledger_removes_nothing(
    index: Index, store: KeyValueStore, named: int, value: bytes | None
) -> None:
    """Its key says whose pages go: a ledger that lives loses none by a key that was damaged."""
    for sequence, ledger_id in enumerate((7, 8, 9), 1):
        index.commit(change(ledger_id, range(64 * (PAGES_DELETED_MAX + 1)), offset=5000 + sequence))
    mark = Mark(1, 6000, 4, NONCE)
    assert index.commit(CheckpointChange(mark, [LedgerChange(9, DELETED)])).deletions_left
    while index.is_deleting():
        index.commit(CheckpointChange(mark))
    index.commit(CheckpointChange(mark, [LedgerChange(7, DELETED)]))
    with store.write() as txn:
        name = META_DELETING + ledger_key(7)
        written = txn.get("meta", name)
        assert written
        txn.delete("meta", name)
        txn.put("meta", META_DELETING + ledger_key(named), written if value is None else value)
    before = index.ledger(8), index.files()
    if (named, value) == (9, b""):
        # An older version's name has no checksum. All rows stay. The sum over all pairs tells the
        # next start that the named ledger is missing.
        index.commit(CheckpointChange(mark))
    else:
        with pytest.raises(CorruptionError):
            index.commit(CheckpointChange(mark))
        with pytest.raises(CorruptionError):
            index.verify_pages()
    assert (index.ledger(8), index.files()) == before
    assert len(index.entry_ids(8, 0, MAX_ID)[0]) == 64 * (PAGES_DELETED_MAX + 1)


def test_a_deletion_of_an_older_version_is_carried_out(index: Index, store: KeyValueStore) -> None:
    """Its name has no checksum beside it."""
    index.commit(change(7, range(64 * (PAGES_DELETED_MAX + 1))))
    mark = Mark(1, 6000, 4, NONCE)
    assert index.commit(CheckpointChange(mark, [LedgerChange(7, DELETED)])).deletions_left
    with store.write() as txn:
        txn.put("meta", META_DELETING + ledger_key(7), b"")
    assert index.verify_pages() == 1
    assert not index.commit(CheckpointChange(mark)).deletions_left
    assert not index.is_deleting()
    assert index.verify_pages() == 0


def test_a_file_dies_only_below_the_mark_and_sealed(index: Index) -> None:
    """An open file, or one that the mark has not left, may still get entries."""
    index.commit(change(7, range(3)))
    gone = [LedgerChange(7, DELETED)]
    assert index.commit(CheckpointChange(Mark(1, 5000, 1, NONCE), gone)).dead_files == ()
    sealed = [SealedFile(1, FileKind.JOURNAL, 6000)]
    at_the_mark = CheckpointChange(Mark(1, 6000, 1, NONCE), sealed=sealed)
    assert index.commit(at_the_mark).dead_files == ()
    assert index.files()[1].state is FileState.SEALED
    assert index.commit(CheckpointChange(Mark(2, 4096, 1, NONCE))).dead_files == (1,)


def test_ledgers_are_listed_in_pages(index: Index) -> None:
    """Ascending, from above an id, up to the largest id there is."""
    ids = [0, 1, 5, 2**40, MAX_ID]
    row = LedgerIndexRow(fenced=True)
    changes = [LedgerChange(i, row) for i in ids]
    index.commit(CheckpointChange(Mark(1, 5000, 1, NONCE), changes))
    assert [i for i, _ in index.ledgers(-1, 10)] == ids
    assert [i for i, _ in index.ledgers(-1, 2)] == [0, 1]
    assert [i for i, _ in index.ledgers(1, 2)] == [5, 2**40]
    assert index.ledgers(MAX_ID, 2) == []
    assert index.ledger_count() == 5


def test_a_ledger_with_pages_and_no_row_is_no_new_one(index: Index, store: KeyValueStore) -> None:
    """One that was deleted is known as long as its row is there."""
    for sequence, ledger_id in enumerate((6, 7, 8)):
        index.commit(change(ledger_id, range(100), offset=5000 + sequence))
    assert index.verify_pages() == 6
    with store.write() as txn:
        row = txn.get("ledgers", ledger_key(7)) or b""
        txn.delete("ledgers", ledger_key(7))
        txn.put("ledgers", ledger_key(6), encode_ledger_row(6, DELETED))
    with pytest.raises(CorruptionError, match="ledger 7 has pages"):
        index.rows_of([7])
    deleted, stored, unknown = index.rows_of([6, 8, 9])
    assert deleted == DELETED
    assert stored is not None
    assert unknown is None
    with pytest.raises(CorruptionError, match="ledger 7 has pages"):
        index.verify_pages()
    with store.write() as txn:
        # The row is of an unknown ledger, and only its own checksum is wrong.
        txn.put("ledgers", ledger_key(71), row)
    with pytest.raises(ChecksumError):
        index.ledger(71)


@pytest.mark.parametrize("value", [INTEGRITY_SUSPECT, INTEGRITY_IN_LIMBO])
def test_no_single_bit_ends_a_doubt(index: Index, store: KeyValueStore, value: bytes) -> None:
    """This holds for the flag and for its name, once the index has a mark."""
    index.commit(CheckpointChange(Mark(1, 5000, 1, NONCE), meta={META_INTEGRITY: value}))
    assert index.integrity() == value
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with store.write() as txn:
            txn.put("meta", META_INTEGRITY, bytes(damaged))
        assert index.integrity() == INTEGRITY_SUSPECT
    with store.write() as txn:
        txn.delete("meta", META_INTEGRITY)
    assert index.integrity() == INTEGRITY_SUSPECT


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(b"0", INTEGRITY_SOUND), (b"1", INTEGRITY_SUSPECT), (b"2", INTEGRITY_IN_LIMBO)],
)
def test_what_an_older_version_wrote_of_a_doubt_is_understood(
    index: Index, store: KeyValueStore, value: bytes, meaning: bytes
) -> None:
    """It was a digit."""
    index.commit(CheckpointChange(Mark(1, 5000, 1, NONCE), meta={META_INTEGRITY: value}))
    assert index.integrity() == meaning


def test_a_newer_format_refuses(index: Index, store: KeyValueStore) -> None:
    """An index of a later version is left as it is. An invalid version is damage."""
    assert not index.check_format()
    index.commit(change(7, range(3)))
    assert index.check_format()
    with store.write() as txn:
        txn.put("meta", META_FORMAT, b"2")
    with pytest.raises(FormatError, match="newer"):
        index.check_format()
    with store.write() as txn:
        txn.put("meta", META_FORMAT, b"\xff!")
    with pytest.raises(CorruptionError):
        index.check_format()


@pytest.mark.parametrize("damaged", [b"", b"\0", b"00"])
def test_a_flag_that_is_nonsense_is_suspicion(
    index: Index, store: KeyValueStore, damaged: bytes
) -> None:
    """An empty flag counts, too. Only a flag that was never written is harmless."""
    assert index.integrity() == INTEGRITY_SOUND
    with store.write() as txn:
        txn.put("meta", META_INTEGRITY, damaged)
    assert index.integrity() == INTEGRITY_SUSPECT
    assert index.needs_integrity_check()
