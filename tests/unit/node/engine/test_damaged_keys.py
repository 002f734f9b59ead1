"""A bit of a key of the index flips on the device while the engine serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from bookie.errors import CorruptionError
from bookie.ids import MAX_ID, Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.index_rows import file_key, ledger_key
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, page_key
from bookie.node.engine.index.entry_index import TABLES, Index
from bookie.node.engine.reader import ReadResult
from tests.unit.node.engine.machine import Machine, add, fence

BEFORE, LEDGER, BEHIND, FENCED = (0x123456789ABCDE00 + n for n in range(4))
"""Ids whose bytes stand nowhere in the file but in keys."""
PAGES = 2
BITS = range(8 * 8)


@contextmanager
def flipped(index: Path, key: bytes, bit: int) -> Iterator[None]:
    """One bit of a key is the other way round, wherever it stands in the file."""
    before = index.read_bytes()
    flipped_key = bytearray(key)
    flipped_key[bit // 8] ^= 1 << bit % 8
    after = before.replace(key, bytes(flipped_key))
    assert after != before
    with index.open("r+b") as file:
        try:
            file.write(after)
            file.flush()
            yield
        finally:
            file.seek(0)
            file.write(before)


async def indexed(machine: Machine, engine: Engine) -> Path:
    """Two pages of each of some ledgers, and nothing of them in memory; the file of the index."""
    for ledger_id in (BEFORE, LEDGER, BEHIND):
        await add(engine, ledger_id, range(PAGES * SLOTS_PER_PAGE))
    await fence(engine, LEDGER)
    await fence(engine, FENCED)
    await engine.checkpoint()
    return machine.root / "ledgers" / "index" / "data.mdb"


async def denied(engine: Engine, ledger_id: int) -> list[int]:
    """Ids that a range read or a listing of the ledger denies, or a read of one entry."""
    state = await engine.load(ledger_id)
    absent = []
    for entry_id in range(0, PAGES * SLOTS_PER_PAGE, SLOTS_PER_PAGE - 1):
        found = engine.read_one(state, entry_id)
        result = found if isinstance(found, ReadResult) else await found
        if result.stopped_by is Status.NO_SUCH_ENTRY:
            absent.append(entry_id)
        result = await engine.read(state, entry_id, 400, entries_max=400, bytes_max=2**20)
        if result.batch is None and result.stopped_by is Status.NO_SUCH_ENTRY:
            absent.append(entry_id)
    listed = 0
    try:
        async for firsts, lasts in engine.entry_ranges(state, 0, MAX_ID):
            listed += int((lasts - firsts + 1).sum())
    except CorruptionError:
        return absent
    return absent if listed == PAGES * SLOTS_PER_PAGE else [*absent, -listed]


@pytest.mark.parametrize("page", range(PAGES))
async def test_no_entry_is_denied(machine: Machine, engine: Engine, page: int) -> None:
    """For any bit of a page's key: errors, and findings of the scrubber, but no denial."""
    index = await indexed(machine, engine)
    for bit in range(2 * len(BITS)):
        with flipped(index, page_key(LEDGER, page), bit):
            for ledger_id in (BEFORE, LEDGER, BEHIND):
                assert await denied(engine, ledger_id) == [], bit
    with flipped(index, page_key(LEDGER, page), 66):
        await engine.scrubber.scrub()
        assert engine.scrubber.findings


@pytest.mark.parametrize("ledger_id", [LEDGER, FENCED])
async def test_no_fence_is_forgotten(machine: Machine, engine: Engine, ledger_id: int) -> None:
    """Of a ledger with entries, or of one that has nothing but its fence."""
    index = await indexed(machine, engine)
    for bit in BITS:
        with flipped(index, ledger_key(ledger_id), bit):
            engine._states._states.clear()
            engine._states.begin(MAX_ID)
            try:
                state = await engine.load(ledger_id)
            except CorruptionError:
                continue
            assert state.fenced, bit
    with flipped(index, ledger_key(ledger_id), 3):
        await engine.scrubber.scrub()
        assert engine.scrubber.findings


async def test_a_lost_row_of_the_journal_that_the_mark_stands_in(
    machine: Machine, engine: Engine
) -> None:
    """The file counts for nothing then, and would go at the next checkpoint with all it has."""
    await add(engine, LEDGER, range(10))
    await engine.checkpoint()
    killed = machine.killed("kill")
    index = Index(open_lmdb(str(killed.root / "ledgers" / "index"), 1 << 30, TABLES))
    mark = index.mark()
    assert mark is not None
    with index.store.write() as txn:
        assert txn.delete("files", file_key(mark.file_number))
    index.close()
    async with killed.engine() as after:
        assert after.report.rebuilt
        await after.checkpoint()
        for entry_id in range(10):
            found = await after.read(
                await after.load(LEDGER), entry_id, entry_id, entries_max=1, bytes_max=99
            )
            assert found.batch is not None
