"""Deleting a ledger: late adds are refused, slots and files go, no crash brings it back."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bookie.errors import DiskFullError
from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.index_rows import FileState
from bookie.node.engine.index.deleted_ledgers import PAGES_DELETED_MAX
from bookie.node.engine.index.relocation import MovedEntries, Relocation
from tests.unit.node.engine.machine import (
    KIB,
    Machine,
    Snapshots,
    add,
    batch,
    fence,
    ids_of,
    read,
    start_add,
    stored_ids,
)

OK, FENCED = Status.OK, Status.FENCED
RETENTION_MS = 7 * 86400 * 1000


async def delete(machine: Machine, engine: Engine, ledger_id: int) -> None:
    state = await engine.load(ledger_id)
    assert (await engine.delete(state, machine.clock.now_ms())).status is OK


async def live_bytes(engine: Engine) -> int:
    return sum(row.live_bytes for row in engine._booted.index.files().values())


async def test_a_deleted_ledger_takes_nothing_and_has_nothing(
    machine: Machine, engine: Engine
) -> None:
    """Plain adds and recovery adds are refused, as to a fenced ledger; it is not listed."""
    await add(engine, 7, range(10))
    await add(engine, 8, range(10))
    await delete(machine, engine, 7)
    for checkpointed in (False, True):
        for recovery in (False, True):
            assert (await add(engine, 7, [20], recovery=recovery)).status is FENCED
        page, _ = await engine.ledgers(-1, 10)
        assert [item.ledger_id for item in page] == [8]
        assert await stored_ids(engine, 8) == list(range(10))
        if not checkpointed:
            await engine.checkpoint()
    assert await stored_ids(engine, 7) == []
    assert await live_bytes(engine) == len(batch(8, range(10)).payload)


@pytest.mark.parametrize("moment", ["queued", "frozen", "indexed"])
async def test_a_deletion_survives_a_crash(machine: Machine, moment: str) -> None:
    """And entries that were on their way into the index do not come back."""
    async with machine.engine() as engine:
        await add(engine, 7, range(100))
        if moment == "indexed":
            await engine.checkpoint()
        await delete(machine, engine, 7)
        if moment == "frozen":
            await engine.checkpoint()
        after = machine.without_power("off")
    async with after.engine() as engine:
        assert (await add(engine, 7, [100])).status is FENCED
        await engine.checkpoint()
        assert await stored_ids(engine, 7) == []
        assert await live_bytes(engine) == 0


async def test_adds_in_flight_when_the_ledger_is_deleted_leave_nothing(
    machine: Machine, engine: Engine
) -> None:
    """They may be acknowledged; nobody asks for them any more."""
    await add(engine, 7, range(5))
    hold = machine.disk.hold("fdatasync", ".journal")
    waiter = await start_add(engine, batch(7, range(5, 10)))
    await asyncio.to_thread(hold.wait_reached)
    state = await engine.load(7)
    deleting = engine.delete(state, machine.clock.now_ms())
    hold.release()
    assert (await waiter).status is OK
    assert (await deleting).status is OK
    await engine.checkpoint()
    await engine.checkpoint()
    assert await live_bytes(engine) == 0
    assert engine._booted.index.verify_pages() == 0


async def test_files_of_deleted_ledgers_go(machine: Machine, engine: Engine) -> None:
    """Journals and the logs that a replay wrote; nothing else has to be rewritten for it."""
    for first in range(0, 60, 5):
        await add(engine, 7, range(first, first + 5), size=40 * KIB)
    await engine.checkpoint()
    killed = machine.killed("kill")
    async with killed.engine() as after:
        await add(after, 8, [0])
        await delete(killed, after, 7)
        for _ in range(3):
            await after.checkpoint()
        files = after._booted.index.files()
        assert [row.state for row in files.values()] == [FileState.OPEN]
        assert len(killed.journals()) == 1
        assert killed.log_files() == []
        assert ids_of(await read(after, 8, 0, 0)) == [0]


async def test_a_deleted_ledger_is_remembered_whatever_the_clock_says(machine: Machine) -> None:
    """Through restarts and crashes."""
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        await delete(machine, engine, 7)
    machine.clock.ahead_ms = 2 * RETENTION_MS
    async with machine.engine() as engine:
        assert (await add(engine, 7, [5])).status is FENCED
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        assert (await engine.load(7)).deleted


async def forget(engine: Engine, before_file: int = 1 << 31) -> int:
    """Forget all that may be forgotten; how many rows went."""
    due, _ = await engine.find_forgettable(-1, 100, before_file)
    return await engine.forget_deleted(due, before_file)


async def test_a_row_goes_when_no_file_may_hold_entries(machine: Machine) -> None:
    """These are pages, journals that a start replays, and logs that a rebuild reads."""
    async with machine.engine() as engine:
        await add(engine, 7, range(0, 64 * (PAGES_DELETED_MAX + 10), 64))
        await add(engine, 8, [0], size=KIB)
        await engine.checkpoint()
        await delete(machine, engine, 7)
        await engine.checkpoint()
        assert engine._checkpointer.more_to_do
        assert await forget(engine) == 0
        await engine.compactor.round()
        assert await forget(engine) == 0
        journal = engine.newest_journal
        for _ in range(3):
            await add(engine, 8, [engine.newest_journal], size=KIB)
            await engine.roll()
            await engine.checkpoint()
            await engine.compactor.round(force=True)
            await engine.checkpoint()
        assert await forget(engine, journal) == 0
        killed = machine.killed("before")
        assert await forget(engine) == 1
        assert await forget(engine) == 0
        after = machine.killed("after")
    for image, known in ((killed, True), (after, False)):
        async with image.engine() as engine:
            assert (await engine.load(7)).deleted == known
            assert await stored_ids(engine, 7) == []
            assert await stored_ids(engine, 8) != []
        index = image.root / "ledgers" / "index" / "data.mdb"
        index.unlink()
        async with image.engine() as engine:
            assert engine.report.rebuilt
            assert await stored_ids(engine, 7) == []


async def test_a_log_that_takes_entries_beside_the_deletion_keeps_the_row(
    machine: Machine, engine: Engine
) -> None:
    """The compaction collected them before, and its log has them though no page names it."""
    await add(engine, 7, range(5))
    await add(engine, 8, range(5))
    await engine.roll()
    await engine.checkpoint()
    index = engine._booted.index
    relocation = Relocation(
        90,
        str(machine.root / "ledgers" / "logs" / "00000090.log"),
        4096,
        [
            MovedEntries(
                7,
                np.arange(5),
                np.full(5, 1, np.uint32),
                np.arange(5, dtype=np.uint32),
                np.full(5, 40, np.uint32),
                np.arange(5, dtype=np.uint32),
            )
        ],
    )
    await delete(machine, engine, 7)
    await engine.checkpoint()
    index.relocate(relocation)
    (row,) = index.rows_of([7])
    assert row is not None
    assert row.held_in.logs == (90, 90)


async def test_a_fence_of_a_deleted_ledger_does_not_bring_it_back(
    machine: Machine, engine: Engine
) -> None:
    """It stays deleted, also behind a crash."""
    await add(engine, 7, [0])
    await delete(machine, engine, 7)
    await fence(engine, 7)
    async with machine.killed("kill").engine() as after:
        assert (await after.load(7)).deleted


async def test_pages_go_a_few_at_a_time_with_one_checkpoint(machine: Machine) -> None:
    """That one tells the index of the deletion; each transaction after it only removes pages."""
    points = Snapshots(lambda name: None)
    machine.failpoints = points
    async with machine.engine() as engine:
        await add(engine, 7, range(0, 64 * (3 * PAGES_DELETED_MAX + 10), 64))
        await add(engine, 8, [0])
        await engine.checkpoint()
        await delete(machine, engine, 7)
        points.seen.clear()
        before = machine.store.writes
        await engine.compactor.round()
        assert points.seen.count("checkpoint.after_swap") == 1
        assert machine.store.writes == before + 4
        index = engine._booted.index
        assert not index.is_deleting()
        assert index.entry_ids(7, 0, 1 << 20)[0].tolist() == []
        assert ids_of(await read(engine, 8, 0, 0)) == [0]


@pytest.mark.parametrize("by_checkpoint", [False, True])
async def test_pages_that_go_are_not_cached_any_more(
    machine: Machine, engine: Engine, by_checkpoint: bool
) -> None:
    """Though a read that began before the deletion found them after it."""
    cached = engine._booted.index.cached_pages
    last = 64 * (2 * PAGES_DELETED_MAX)
    await add(engine, 7, range(0, last + 1, 64))
    await engine.checkpoint()
    await delete(machine, engine, 7)
    await engine.checkpoint()
    found = await engine._reader.read(7, last, last, entries_max=1, bytes_max=1)
    assert ids_of(found) == [last]
    assert len(cached) == 1
    while engine._checkpointer.more_to_do:
        await (engine.checkpoint() if by_checkpoint else engine._checkpointer.delete_pages())
    assert len(cached) == 0


async def test_nothing_of_a_forgotten_ledger_is_left_in_memory(machine: Machine) -> None:
    """A new one of its id may have other digests."""
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        await engine.checkpoint()
        assert ids_of(await read(engine, 7, 0, 4)) == list(range(5))
        digests = engine._reader._sources.digests
        assert digests.known(7) is not None
        await delete(machine, engine, 7)
        for number in range(3):
            await add(engine, 8, [number], size=KIB)
            await engine.roll()
            await engine.checkpoint()
            await engine.compactor.round(force=True)
            await engine.checkpoint()
        # The log that repeats the deletion goes with the entries of the other ledger.
        await delete(machine, engine, 8)
        for _ in range(2):
            await engine.checkpoint()
            await engine.compactor.round(force=True)
        await engine._checkpointer.removal.finish()
        await engine._reader.read(7, 70, 70, entries_max=1, bytes_max=1)
        assert engine._booted.index.cached_pages.page(7, 1) is not None
        assert await forget(engine) == 2
        assert engine._booted.index.cached_pages.page(7, 1) is None
        assert digests.known(7) is None
        state = await engine.load(7)
        assert (state.exists, state.deleted) == (False, False)


async def test_a_full_index_deletes_later(machine: Machine, engine: Engine) -> None:
    """And the bookie takes no new entries until then."""
    await add(engine, 7, range(0, 64 * (PAGES_DELETED_MAX + 10), 64))
    await engine.checkpoint()
    await delete(machine, engine, 7)
    machine.store.errors.append(DiskFullError("full"))
    machine.store.passes = 1
    assert (await engine.compactor.round()).full
    assert engine.read_only_reasons
    assert engine._booted.index.is_deleting()
    await engine.device_has_room()
    assert not (await engine.compactor.round()).full
    assert not engine._booted.index.is_deleting()
