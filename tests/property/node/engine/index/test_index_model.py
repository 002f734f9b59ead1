"""The index against dictionaries: slots, counts, live bytes, dead files, rows and the mark.

Every commit writes, overwrites or deletes; afterwards each number that the index derives from slot
transitions must be what a dictionary of slots says.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bookie.env import open_lmdb
from bookie.ids import MAX_ID
from bookie.node.engine.files import SealedFile
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import LedgerIndexRow, Mark
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, slot_of
from bookie.node.engine.index.entry_index import (
    TABLES,
    CheckpointChange,
    CommitResult,
    Index,
    LedgerChange,
)
from bookie.node.engine.memtable import LocationTable
from bookie.node.engine.window import Window

NONCE = bytes(16)
SPAN = 300
BASES = (0, MAX_ID - SPAN + 1)

Slot = tuple[int, int, int]

id_lists = st.one_of(
    st.tuples(st.integers(0, SPAN - 1), st.integers(1, 150)).map(
        lambda item: list(range(item[0], min(sum(item), SPAN)))
    ),
    st.sets(st.integers(0, SPAN - 1), min_size=1, max_size=20).map(sorted),
)


@dataclass
class LedgerModel:
    """The stored state of one ledger."""

    base: int
    slots: dict[int, Slot] = field(default_factory=dict)
    row: LedgerIndexRow = field(default_factory=LedgerIndexRow)


class IndexModel(RuleBasedStateMachine):
    """Checkpoints of up to three ledgers into up to a handful of files."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.index = Index(open_lmdb(self.directory.name, 2**24, TABLES))
        self.ledgers = {i: LedgerModel(BASES[i % 2]) for i in (1, 2, 3)}
        self.deleted: set[int] = set()
        self.file = 1
        self.offset = 4096
        self.sequence = 0
        self.sealed: dict[int, int] = {}
        self.removed: set[int] = set()
        self.dead: tuple[int, ...] = ()

    def teardown(self) -> None:
        """Give the files back."""
        self.index.close()
        self.directory.cleanup()

    def table(self, base: int, ids: list[int], size: int) -> LocationTable:
        """Entries of `size` bytes, one after the other in the current file."""
        offsets = self.offset + size * np.arange(len(ids), dtype=np.int64)
        self.offset += size * len(ids)
        return LocationTable(
            np.array([base + i for i in ids], np.int64),
            np.full(len(ids), self.file, np.uint32),
            offsets.astype(np.uint32),
            np.full(len(ids), size, np.uint32),
        )

    def commit(self, changes: list[LedgerChange], sealed: list[SealedFile]) -> CommitResult:
        """Commit, and check what the transaction reports."""
        self.sequence += 1
        removed = [number for number in self.dead if number not in self.removed]
        committed = self.index.commit(
            CheckpointChange(
                mark=Mark(self.file, self.offset, self.sequence, NONCE),
                ledgers=changes,
                sealed=sealed,
                removed_files=removed,
            )
        )
        self.removed.update(removed)
        for change in changes:
            slots = self.ledgers[change.ledger_id].slots
            size = sum(slot[2] for slot in slots.values())
            assert committed.counts[change.ledger_id] == (len(slots), size)
        live = self.live()
        expected = [n for n in self.sealed if not live.get(n) and n not in self.removed]
        assert list(committed.dead_files) == sorted(expected)
        assert not committed.deletions_left
        self.dead = committed.dead_files
        return committed

    def live(self) -> dict[int, int]:
        """File → bytes that slots point to."""
        live: dict[int, int] = {}
        for ledger in self.ledgers.values():
            for file, _, size in ledger.slots.values():
                live[file] = live.get(file, 0) + size
        return live

    @rule(
        ids=st.dictionaries(st.sampled_from([1, 2, 3]), id_lists, min_size=1),
        size=st.integers(32, 500),
        fenced=st.booleans(),
    )
    def checkpoint(self, ids: dict[int, list[int]], size: int, fenced: bool) -> None:
        """Slots of several ledgers, new ones and overwritten ones."""
        changes = []
        for ledger_id, relative in ids.items():
            ledger = self.ledgers[ledger_id]
            table = self.table(ledger.base, relative, size)
            if ledger_id in self.deleted:
                # Entries that were accepted before the deletion and not yet indexed.
                changes.append(LedgerChange(ledger_id, ledger.row, table))
                continue
            rows = zip(relative, table.offsets.tolist(), strict=True)
            ledger.slots |= {i: (self.file, offset, size) for i, offset in rows}
            ledger.row = LedgerIndexRow(
                fenced=fenced,
                key_digest=b"k",
                first_entry_id=ledger.base + min(ledger.slots),
                last_entry_id=ledger.base + max(ledger.slots),
            )
            changes.append(LedgerChange(ledger_id, ledger.row, table))
        self.commit(changes, [])

    @rule()
    def roll(self) -> None:
        """The file takes nothing more; the next one begins."""
        self.sealed[self.file] = self.offset
        sealed = SealedFile(self.file, FileKind.JOURNAL, self.offset)
        self.file, self.offset = self.file + 1, 4096
        self.commit([], [sealed])

    @rule(ledger_id=st.sampled_from([1, 2, 3]))
    def delete(self, ledger_id: int) -> None:
        """All slots of a ledger go, its row stays."""
        ledger = self.ledgers[ledger_id]
        self.deleted.add(ledger_id)
        ledger.slots.clear()
        ledger.row = LedgerIndexRow(
            deleted_at_ms=17, key_digest=b"k", last_entry_id=ledger.row.last_entry_id
        )
        self.commit([LedgerChange(ledger_id, ledger.row)], [])

    @rule(ledger_id=st.sampled_from([1, 2, 3]), first=st.integers(0, SPAN - 1), data=st.data())
    def look(self, ledger_id: int, first: int, data: st.DataObject) -> None:
        """A window shows the slots in it and nothing else."""
        ledger = self.ledgers[ledger_id]
        count = data.draw(st.integers(1, SPAN - first))
        window = Window(ledger.base + first, count)
        first_page, last_page = window.first // SLOTS_PER_PAGE, window.last // SLOTS_PER_PAGE
        pages = self.index.pages(ledger_id, first_page, last_page)
        window.fill(first_page, pages)
        columns = zip(
            window.files.tolist(), window.offsets.tolist(), window.sizes.tolist(), strict=True
        )
        nothing = (0, 0, 0)
        assert list(columns) == [ledger.slots.get(first + i, nothing) for i in range(count)]
        for i in (0, count - 1):
            entry_id = ledger.base + first + i
            page = pages[entry_id // SLOTS_PER_PAGE - first_page]
            assert slot_of(page, entry_id) == ledger.slots.get(first + i)

    @rule(ledger_id=st.sampled_from([1, 2, 3]), first=st.integers(0, SPAN - 1), data=st.data())
    def list_ids(self, ledger_id: int, first: int, data: st.DataObject) -> None:
        """The listing of a range is complete."""
        ledger = self.ledgers[ledger_id]
        last = data.draw(st.integers(first, SPAN - 1))
        ids, following = self.index.entry_ids(ledger_id, ledger.base + first, ledger.base + last)
        assert ids.tolist() == [ledger.base + i for i in sorted(ledger.slots) if first <= i <= last]
        assert following > ledger.base + last

    @invariant()
    def live_bytes_are_those_of_the_slots(self) -> None:
        """The counts that decide about unlinking a file are exact after every commit."""
        files = self.index.files()
        live = self.live()
        assert {n: row.live_bytes for n, row in files.items() if row.live_bytes} == live
        assert not self.removed & files.keys()

    @invariant()
    def rows_and_pages_validate(self) -> None:
        """The walk of a boot finds nothing wrong, and rows say what was committed."""
        self.index.verify_pages()
        for ledger_id, ledger in self.ledgers.items():
            row = self.index.ledger(ledger_id)
            if row is None:
                assert not ledger.slots
                continue
            assert (row.fenced, row.deleted_at_ms) == (ledger.row.fenced, ledger.row.deleted_at_ms)
            assert row.entries == len(ledger.slots)
            assert row.payload_bytes == sum(slot[2] for slot in ledger.slots.values())

    @invariant()
    def the_mark_is_the_last_one(self) -> None:
        """It moves with every commit."""
        mark = self.index.mark()
        assert (mark.sequence if mark else 0) == self.sequence


TestIndex = IndexModel.TestCase
