"""A memtable against a dictionary: whatever is accepted, written, refused or folded, and read.

Batches overlap, leave gaps and come in any order. The newest copy of an id must win in every window
and in the table of the checkpoint. This holds in every stage of a run: in memory, written, folded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bookie.entry.batch import EntryBatch
from bookie.ids import MAX_ID
from bookie.node.engine import memtable as memtable_module
from bookie.node.engine.memtable import (
    FOLD_RUNS,
    LocationTable,
    Memtable,
    Run,
    merge_tables,
    table_of_runs,
)
from bookie.node.engine.window import Window

LEDGER = 7
SPAN = 200
FAR = MAX_ID - SPAN + 1
"""The same ids at the upper end, where 64-bit numbers wrap."""

Places = dict[int, tuple[int, int, int]]
"""Id → file, offset, size."""

starts = st.integers(0, SPAN - 1)
id_sets = st.one_of(
    st.tuples(starts, st.integers(1, 90)).map(
        lambda item: list(range(item[0], min(sum(item), SPAN)))
    ),
    st.tuples(starts, st.integers(2, 5), st.integers(1, 20)).map(
        lambda item: list(range(item[0], SPAN, item[1]))[: item[2]]
    ),
    st.sets(starts, min_size=1, max_size=12).map(sorted),
)


def entries(ids: Iterable[int], base: int, salt: int) -> EntryBatch:
    """A batch whose packets differ from each other, and from other salts in content and size."""
    ids = [entry_id + base for entry_id in ids]
    packet_size = 33 + salt % 7
    packets = [entry_id.to_bytes(8) + bytes([salt % 256]) * (packet_size - 8) for entry_id in ids]
    known = np.array(ids, np.int64)
    steps = known[1:] - known[:-1]
    return EntryBatch(
        LEDGER,
        ids[0],
        None if (steps == 1).all() else steps,
        np.full(len(ids), packet_size, np.int64),
        b"".join(packets),
    )


def locate(window: Window, entry_id: int) -> tuple[int, bytes | tuple[int, int]] | None:
    """The file and (offset, size) of an id, or 0 and its bytes in memory; None if it is absent."""
    where = entry_id - window.first
    file, offset, size = (
        int(column[where]) for column in (window.files, window.offsets, window.sizes)
    )
    if not size:
        return None
    if file < 0:
        return 0, bytes(window.memory[-file - 1][offset : offset + size])
    return file, (offset, size)


def lone(memtable: Memtable, entry_id: int) -> tuple[int, bytes | tuple[int, int]] | None:
    """The answer of `locate`, for one id and without a window."""
    place = memtable.location(LEDGER, entry_id)
    if place is None:
        return None
    if place.payload is not None:
        return 0, bytes(place.payload[place.offset : place.offset + place.size])
    return place.file, (place.offset, place.size)


class MemtableModel(RuleBasedStateMachine):
    """Accepts in any order, writes in order, refuses now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.base = 0
        self.memtable = Memtable()
        self.waiting: deque[tuple[Run, EntryBatch]] = deque()
        self.copies: dict[int, list[tuple[Run, bytes]]] = {}
        self.places: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Run and id → where that copy was written."""
        self.salt = 0
        self.file, self.offset = 1, 4096

    @initialize(base=st.sampled_from([0, FAR]))
    def place(self, base: int) -> None:
        """At the lower or at the upper end of the ids."""
        self.base = base

    @rule(ids=id_sets)
    def accept(self, ids: list[int]) -> None:
        """A batch is readable from memory at once."""
        self.salt += 1
        accepted = entries(ids, self.base, self.salt)
        run = Run(accepted)
        self.memtable.append(LEDGER, run)
        self.waiting.append((run, accepted))
        packets = [bytes(packet) for packet in accepted.packets()]
        for entry_id, packet in zip(ids, packets, strict=True):
            self.copies.setdefault(entry_id, []).append((run, packet))

    @rule(first=starts, count=st.integers(30, 100))
    def accept_one_by_one(self, first: int, count: int) -> None:
        """Lone appends, as many as it takes to fold them."""
        for entry_id in range(first, min(first + count, SPAN)):
            self.accept([entry_id])

    @precondition(lambda self: bool(self.waiting))
    @rule(count=st.integers(1, 200))
    def write(self, count: int) -> None:
        """The oldest batches were written, which leaves their places and drops their bytes."""
        for _ in range(min(count, len(self.waiting))):
            run, accepted = self.waiting.popleft()
            self.memtable.ledgers[LEDGER].written(run, self.file, self.offset)
            offset = self.offset
            for entry_id, size in zip(
                accepted.entry_ids().tolist(), accepted.sizes.tolist(), strict=True
            ):
                self.places[(id(run), entry_id - self.base)] = self.file, offset, size
                offset += size
            self.offset = offset + 13

    @precondition(lambda self: bool(self.waiting))
    @rule()
    def refuse(self) -> None:
        """The oldest batch found no room: it is gone, what it covered is visible again."""
        run, _ = self.waiting.popleft()
        self.memtable.ledgers[LEDGER].refused(run)
        for entry_id in list(self.copies):
            kept = [item for item in self.copies[entry_id] if item[0] is not run]
            if kept:
                self.copies[entry_id] = kept
            else:
                del self.copies[entry_id]

    @rule()
    def next_file(self) -> None:
        """The journal rolls."""
        self.file += 1
        self.offset = 4096

    def expected(self, entry_id: int) -> tuple[int, bytes | tuple[int, int]] | None:
        """The right answer of a window about an id."""
        if entry_id not in self.copies:
            return None
        run, packet = self.copies[entry_id][-1]
        place = self.places.get((id(run), entry_id))
        return (0, packet) if place is None else (place[0], place[1:])

    @rule(first=starts, count=st.integers(1, SPAN))
    def look(self, first: int, count: int) -> None:
        """A window shows the newest copy of each id and nothing else."""
        window = Window(first + self.base, min(count, SPAN - first))
        self.memtable.overlay(LEDGER, window)
        for entry_id in range(first, min(first + count, SPAN)):
            expected = self.expected(entry_id)
            assert locate(window, entry_id + self.base) == expected, entry_id
            assert lone(self.memtable, entry_id + self.base) == expected, entry_id

    @rule()
    def list_ids(self) -> None:
        """The listing names each id once, ascending."""
        runs = self.memtable.ledgers.get(LEDGER)
        found = [] if runs is None else runs.entry_ids().tolist()
        assert found == [entry_id + self.base for entry_id in sorted(self.copies)]

    def teardown(self) -> None:
        """Once all is written, the checkpoint's table says the same."""
        if self.waiting:
            self.write(len(self.waiting))
        table = self.memtable.table_of(LEDGER)
        found: Places = {
            entry_id - self.base: (file, offset, size)
            for entry_id, file, offset, size in zip(
                table.ids.tolist(),
                table.files.tolist(),
                table.offsets.tolist(),
                table.sizes.tolist(),
                strict=True,
            )
        }
        assert list(found) == sorted(self.copies)
        for entry_id, place in found.items():
            assert self.expected(entry_id) == (place[0], place[1:])


TestMemtable = MemtableModel.TestCase


@given(st.lists(st.tuples(id_sets, st.integers(1, 3)), min_size=1, max_size=8))
def test_of_an_id_in_several_tables_the_last_one_wins(
    parts: list[tuple[list[int], int]],
) -> None:
    """Merging is a dictionary update."""
    expected: Places = {}
    tables = []
    for number, (ids, salt) in enumerate(parts, 1):
        run = Run(entries(ids, 0, salt))
        run.file, run.offset, run.payload = number, 4096, None
        table = table_of_runs([run])
        tables.append(table)
        rows = zip(ids, table.offsets.tolist(), table.sizes.tolist(), strict=True)
        expected |= {entry_id: (number, offset, size) for entry_id, offset, size in rows}
    merged = merge_tables(tables)
    assert merged.ids.tolist() == sorted(expected)
    rows = zip(merged.files.tolist(), merged.offsets.tolist(), merged.sizes.tolist(), strict=True)
    assert list(rows) == [expected[entry_id] for entry_id in sorted(expected)]


@given(st.integers(1, 9), st.data())
def test_a_stripe_is_the_ids_of_its_residues(modulus: int, data: st.DataObject) -> None:
    """A reader of a stripe wants exactly the ids that the formula names."""
    residue = data.draw(st.integers(0, modulus - 1))
    count = data.draw(st.integers(1, modulus))
    first = data.draw(st.sampled_from([0, 5, FAR]))
    window = Window(first, 40)
    wanted = [i for i in range(first, first + 40) if (i - residue) % modulus < count]
    assert window.wanted(modulus, residue, count).tolist() == wanted


@given(id_sets, st.integers(0, 3))
def test_extents_are_the_packets_in_order(ids: list[int], gap: int) -> None:
    """Joined in order, the runs of adjacent bytes are the wanted packets and nothing else."""
    accepted = entries(ids, 0, 1)
    run = Run(accepted)
    memtable = Memtable()
    memtable.append(LEDGER, run)
    window = Window(0, SPAN)
    memtable.overlay(LEDGER, window)
    wanted = np.array([i for i in ids if gap == 0 or i % (gap + 1) == 0], np.int64)
    if not len(wanted):
        return
    extents = window.extents(wanted)
    packets = dict(zip(ids, accepted.packets(), strict=True))
    joined = b"".join(
        bytes(window.memory[-extent.file - 1][extent.offset : extent.offset + extent.length])
        for extent in extents
    )
    assert joined == b"".join(packets[entry_id] for entry_id in wanted.tolist())
    assert sum(extent.packets for extent in extents) == len(wanted)


def test_many_small_runs_become_few_tables() -> None:
    """A million appends must become few objects, so that a look-up stays cheap."""
    memtable = Memtable()
    for entry_id in range(40 * FOLD_RUNS + 5):
        run = Run(entries([entry_id], 0, 1))
        memtable.append(LEDGER, run).written(run, 1, 4096 + 100 * entry_id)
    runs = memtable.ledgers[LEDGER]
    assert len(runs._runs) == 5
    assert len(runs._tables) <= 8


@given(
    st.sets(st.integers(0, 2000), max_size=300).map(sorted),
    st.integers(64, 150),
    st.sampled_from([0, FAR // 64 * 64 - 4096]),
)
def test_parts_of_a_table_end_with_a_page(ids: list[int], most: int, base: int) -> None:
    """Together they are the table. Each page is in one part, and the parts are of similar size."""
    table = LocationTable(
        np.array(ids, np.int64) + base,
        np.arange(len(ids), dtype=np.uint32),
        np.arange(len(ids), dtype=np.uint32) * 2,
        np.arange(len(ids), dtype=np.uint32) * 3,
    )
    before, memtable_module.PART_ENTRIES = memtable_module.PART_ENTRIES, most
    try:
        parts = list(table.parts(64))
    finally:
        memtable_module.PART_ENTRIES = before
    assert all(0 < len(part.ids) <= most for part in parts)
    for name in ("ids", "files", "offsets", "sizes"):
        together = [value for part in parts for value in getattr(part, name).tolist()]
        assert together == getattr(table, name).tolist()
    pages = [page for part in parts for page in set((part.ids // 64).tolist())]
    assert len(pages) == len(set(pages))
