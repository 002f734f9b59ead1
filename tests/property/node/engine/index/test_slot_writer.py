"""Slots of many ledgers in one commit against a dictionary."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.env import open_lmdb
from bookie.node.engine import memtable
from bookie.node.engine.format.index_rows import LedgerIndexRow, Mark
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, slot_of
from bookie.node.engine.index import entry_index as index_module
from bookie.node.engine.index import slot_writer
from bookie.node.engine.index.entry_index import TABLES, CheckpointChange, Index, LedgerChange
from bookie.node.engine.memtable import LocationTable

MARK = Mark(9, 4096, 1, bytes(16))
IDS = st.one_of(
    st.sets(st.integers(0, 400), min_size=1, max_size=30),
    st.tuples(st.integers(0, 300), st.integers(1, 200)).map(lambda s: set(range(s[0], sum(s)))),
)
COMMITS = st.lists(st.dictionaries(st.integers(1, 12), IDS, max_size=8), min_size=1, max_size=3)


@given(commits=COMMITS, entries_at_once=st.integers(64, 300), ledgers_at_once=st.integers(1, 9))
def test_slots_live_bytes_and_counts_are_those_of_a_dictionary(
    commits: list[dict[int, set[int]]], entries_at_once: int, ledgers_at_once: int
) -> None:
    """For any size of a commit's step, and any pages that exist already."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(slot_writer, "PART_ENTRIES", entries_at_once)
        patch.setattr(memtable, "PART_ENTRIES", entries_at_once)
        patch.setattr(index_module, "LEDGERS_AT_ONCE", ledgers_at_once)
        index = Index(open_lmdb(directory, 2**24, TABLES))
        stored: dict[int, dict[int, tuple[int, int, int]]] = {}
        for number, commit in enumerate(commits):
            changes = []
            for ledger_id, ids in commit.items():
                slots = stored.setdefault(ledger_id, {})
                found = sorted(ids)
                files = [number + 1 + entry_id % 2 for entry_id in found]
                rows = [(f, 4096 + i, 10 + i % 7) for f, i in zip(files, found, strict=True)]
                slots.update(zip(found, rows, strict=True))
                columns = np.array(rows, np.uint32)
                table = LocationTable(
                    np.array(found, np.int64), columns[:, 0], columns[:, 1], columns[:, 2]
                )
                row = LedgerIndexRow(first_entry_id=min(slots), last_entry_id=max(slots))
                changes.append(LedgerChange(ledger_id, row, table))
            committed = index.commit(CheckpointChange(MARK, changes))
            assert committed.counts == {
                ledger_id: (
                    len(stored[ledger_id]),
                    sum(s for _, _, s in stored[ledger_id].values()),
                )
                for ledger_id in commit
            }
        live: dict[int, int] = {}
        for ledger_id, slots in stored.items():
            for file, _, size in slots.values():
                live[file] = live.get(file, 0) + size
            there = index.entry_ids(ledger_id, 0, 1000)[0].tolist()
            pages = index.pages(ledger_id, 0, 1000 // SLOTS_PER_PAGE)
            assert {
                entry_id: slot_of(pages[entry_id // SLOTS_PER_PAGE], entry_id) for entry_id in there
            } == slots
        assert {n: r.live_bytes for n, r in index.files().items() if r.live_bytes} == live
        index.close()
        # The sum over all pairs is right.
        Index(open_lmdb(directory, 2**24, TABLES)).close()
