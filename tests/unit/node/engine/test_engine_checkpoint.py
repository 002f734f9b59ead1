"""The checkpoint: what it moves into the index, when, and what it leaves if it is interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.errors import CorruptionError, DiskFullError
from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.files import read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.index.entry_index import META_MARK
from bookie.node.engine.scan import blocks
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import (
    KEY,
    KIB,
    Machine,
    Snapshots,
    add,
    assert_holds,
    batch,
    evict,
    fence,
    ids_of,
    read,
    start_add,
    stored_ids,
    until,
)

OK = Status.OK


def has_changes(engine: Engine) -> bool:
    return engine._checkpointer.has_changes


def mark_of(engine: Engine) -> Mark:
    mark = engine._booted.index.mark()
    assert mark is not None
    return mark


async def test_the_mark_is_the_end_of_the_barrier_and_only_moves_on(machine: Machine) -> None:
    """Through checkpoints with and without entries, rolls and starts."""
    marks: list[Mark] = []
    for round_ in range(3):
        async with machine.engine() as engine:
            marks.append(mark_of(engine))
            for part in range(4):
                first = 40 * round_ + 10 * part
                await add(engine, 7, range(first, first + 10), size=40 * KIB)
                await engine.checkpoint()
                marks.append(mark_of(engine))
                assert marks[-1].offset == engine._booted.writer.current.end
                await engine.checkpoint()
                marks.append(mark_of(engine))
    assert marks == sorted(marks, key=lambda mark: (mark.file_number, mark.offset))
    assert len({mark.file_number for mark in marks}) > 3


async def test_removing_pages_beside_a_checkpoint_leaves_the_mark(
    machine: Machine, engine: Engine
) -> None:
    """It waits for the checkpoint, and takes the mark that stands there afterwards."""
    await add(engine, 7, range(10))
    before = mark_of(engine)
    gate = machine.store.gate = Hold("commit", "")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(gate.wait_reached)
        tasks.create_task(engine._checkpointer.delete_pages())
        await asyncio.sleep(0)
        machine.store.gate = None
        gate.release()
    assert mark_of(engine).offset == engine._booted.writer.current.end > before.offset


async def test_no_page_is_removed_in_an_index_that_lost_its_mark(machine: Machine) -> None:
    """The next start makes the index again."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        await engine.checkpoint()
        with engine._booted.index.store.write() as txn:
            txn.delete("meta", META_MARK)
        with pytest.raises(CorruptionError, match="lost its mark"):
            await engine._checkpointer.delete_pages()
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        assert engine.report.rebuilt
        assert await stored_ids(engine, 7) == list(range(10))


async def test_a_checkpoint_leaves_nothing_to_replay(machine: Machine, engine: Engine) -> None:
    """Everything accepted before it is in the index; what came after is replayed."""
    await add(engine, 7, range(100))
    await engine.checkpoint()
    await add(engine, 7, range(100, 103))
    async with machine.killed("kill").engine() as after:
        assert (after.report.blocks, after.report.entries) == (1, 3)
        assert ids_of(await read(after, 7, 0, 200)) == list(range(103))


async def test_a_changed_row_alone_is_worth_a_checkpoint(machine: Machine, engine: Engine) -> None:
    """Otherwise the mark would pass a fence that no entry followed."""
    await engine.checkpoint()
    assert not has_changes(engine)
    await fence(engine, 7)
    assert has_changes(engine)
    await engine.checkpoint()
    assert not has_changes(engine)
    row = engine._booted.index.ledger(7)
    assert row is not None
    assert row.fenced


async def test_rows_ahead_of_the_mark_do_no_harm(machine: Machine, engine: Engine) -> None:
    """Bounds and counts come out right when a replay follows entries the row already knew."""
    await add(engine, 7, range(10))
    gate = machine.store.gate = Hold("commit", "")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(gate.wait_reached)
        # The row was captured; entries and a fence come behind the mark.
        await add(engine, 7, range(10, 20))
        await fence(engine, 7)
        gate.release()
    machine.store.gate = None
    assert_holds(await read(engine, 7, 0, 19), batch(7, range(20)))
    async with machine.killed("kill").engine() as after:
        assert_holds(await read(after, 7, 0, 19), batch(7, range(20)))
        row = after._booted.index.ledger(7)
        assert row is not None
        assert (row.entries, row.fenced, row.last_entry_id) == (20, True, 19)


async def test_entries_are_readable_at_every_moment_of_a_checkpoint(
    machine: Machine, engine: Engine
) -> None:
    """In the old memtable, in both, in the index; listings miss nothing either."""
    await add(engine, 7, range(10))
    gate = machine.store.gate = Hold("commit", "")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(gate.wait_reached)
        await add(engine, 7, range(10, 20))
        assert_holds(await read(engine, 7, 0, 19), batch(7, range(20)))
        assert await stored_ids(engine, 7) == list(range(20))
        assert (await add(engine, 7, range(20))).status is OK, "both memtables are compared"
        assert (await add(engine, 7, [3], salt=1)).status is Status.CONFLICT
        gate.release()
        while not running.done():
            assert ids_of(await read(engine, 7, 0, 19)) == list(range(20))
            await asyncio.sleep(0)
    machine.store.gate = None
    assert_holds(await read(engine, 7, 0, 19), batch(7, range(20)))


async def test_a_ledger_is_listed_at_every_moment_of_a_checkpoint(
    machine: Machine, engine: Engine
) -> None:
    """Also when it moves from memory into the index while the index is being read."""
    await add(engine, 7, [0])
    gate = machine.store.gate = Hold("commit", "")
    commit, listing = engine.checkpoint(), engine.ledgers(-1, 10)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(commit)
        await asyncio.to_thread(gate.wait_reached)
        # The index is looked at before the commit, the rest of the listing comes after it.
        step = listing.send(None)
        await asyncio.wrap_future(step) if not asyncio.isfuture(step) else await asyncio.wait(
            [step]
        )
        gate.release()
        await running
    machine.store.gate = None
    with pytest.raises(StopIteration) as result:
        listing.send(None)
    page, _ = result.value.value
    assert [item.ledger_id for item in page] == [7]


@pytest.mark.parametrize("stage", ["barrier", "commit"])
async def test_an_engine_stops_in_order_behind_a_cancelled_checkpoint(
    machine: Machine, stage: str
) -> None:
    """The last checkpoint finishes the immutable memtable and takes the current one."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        if stage == "barrier":
            await add(engine, 7, [10], deferred_sync=True)
            hold = machine.disk.hold("fdatasync", ".journal")
        else:
            hold = machine.store.gate = Hold("commit", "")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.checkpoint())
            await asyncio.to_thread(hold.wait_reached)
            waiter = await start_add(engine, batch(7, range(11, 20)))
            running.cancel()
        hold.release()
        machine.store.gate = None
        assert (await waiter).status is OK
        killed = machine.killed("kill")
    expected = [i for i in range(20) if i != 10 or stage == "barrier"]
    for after in (killed, machine):
        async with after.engine() as engine:
            assert engine.report.corrupt == ()
            assert await stored_ids(engine, 7) == expected
            assert ids_of(await read(engine, 7, 11, 19)) == list(range(11, 20))
            if after is machine:
                assert engine.report.clean
                assert engine.report.entries == 0, "nothing was left for replay"


async def test_a_cancelled_checkpoint_is_finished_by_the_next(
    machine: Machine, engine: Engine
) -> None:
    """With the mark of its own barrier: what came after it is not below the mark."""
    await add(engine, 7, range(10), deferred_sync=True)
    hold = machine.disk.hold("fdatasync", ".journal")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(hold.wait_reached)
        running.cancel()
    later = await start_add(engine, batch(7, range(10, 15)))
    hold.release()
    assert (await later).status is OK
    await engine.checkpoint()
    async with machine.killed("kill").engine() as after:
        assert await stored_ids(after, 7) == list(range(15))
        assert after.report.entries == 5


async def test_many_entries_bring_a_checkpoint_by_themselves(machine: Machine) -> None:
    """So does much data; neither waits for the clock."""
    committed = asyncio.Event()
    machine.failpoints = Snapshots(
        lambda name: committed.set() if name == "checkpoint.after_commit" else None
    )
    machine.changes = {"checkpoint_entries": 50}
    async with machine.engine() as engine:
        await add(engine, 7, range(60))
        await committed.wait()
    committed.clear()
    machine.changes = {"checkpoint_journal_bytes": 256 * KIB}
    async with machine.engine() as engine:
        await add(engine, 8, range(5), size=60 * KIB)
        await committed.wait()


async def test_time_brings_a_checkpoint_and_a_vouching_block(machine: Machine) -> None:
    """An idle engine vouches for its last block and brings its index up to date."""
    committed = asyncio.Event()
    machine.failpoints = Snapshots(
        lambda name: committed.set() if name == "checkpoint.after_commit" else None
    )
    machine.changes = {"checkpoint_interval_seconds": 0.02, "idle_marker_seconds": 0.01}
    async with machine.engine() as engine:
        await add(engine, 7, [0])
        await committed.wait()
        await until(lambda: engine._has_marker)


async def die(machine: Machine, engine: Engine) -> Path:
    """A checkpoint after which the first journal file has nothing but entries of a dead ledger."""
    for first in range(0, 30, 5):
        await add(engine, 7, range(first, first + 5), size=40 * KIB)
    await add(engine, 8, [0])
    await engine.checkpoint()
    await engine.delete(await engine.load(7), machine.clock.now_ms())
    return machine.journals()[0]


async def test_a_stopped_engine_has_vouched_for_its_last_block(machine: Machine) -> None:
    """Also if its last checkpoint found no room: then the journal is all there is."""
    async with machine.engine() as engine:
        await add(engine, 7, range(3))
        machine.store.errors.append(DiskFullError("full"))
    file = machine.disk.open(str(machine.journals()[0]))
    *_, data, vouching = blocks(file, read_header(file), FILE_HEADER_SIZE_BYTES, 0)
    assert vouching.header.record_count == 0
    assert vouching.header.durable_upto == data.end
    async with machine.engine() as engine:
        assert await stored_ids(engine, 7) == [0, 1, 2]


async def test_dead_files_go_after_the_commit_and_their_rows_with_the_next(
    machine: Machine, engine: Engine
) -> None:
    """A file is unlinked only when a committed transaction says that nothing points into it."""
    first = await die(machine, engine)
    gate = machine.store.gate = Hold("commit", "")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(gate.wait_reached)
        assert first.exists()
        gate.release()
    assert not first.exists()
    row = engine._booted.index.files()[1]
    assert row.live_bytes == 0
    assert has_changes(engine)
    await engine.checkpoint()
    assert 1 not in engine._booted.index.files()
    assert not has_changes(engine)
    assert ids_of(await read(engine, 8, 0, 0)) == [0]
    async with machine.killed("kill").engine() as after:
        assert not after.report.corrupt
        assert ids_of(await read(after, 8, 0, 0)) == [0]


async def test_a_file_with_one_live_entry_stays(machine: Machine, engine: Engine) -> None:
    """However little of it is alive."""
    await add(engine, 9, [0])
    first = await die(machine, engine)
    await engine.checkpoint()
    await engine.checkpoint()
    assert first.exists()
    assert ids_of(await read(engine, 9, 0, 0)) == [0]


async def test_a_reader_that_holds_a_dead_file_finishes(machine: Machine, engine: Engine) -> None:
    """And its descriptor is closed afterwards, or the space would never come back."""
    first = await die(machine, engine)
    file = engine._booted.files.get(1)
    data = file.pread(4096, 0)
    await engine.checkpoint()
    assert file.pread(4096, 0) == data
    assert is_open(first)
    with pytest.raises(FileNotFoundError):
        engine._booted.files.get(1)
    del file
    assert not is_open(first)


def is_open(path: Path) -> bool:
    """True if this process has the file open, which may be unlinked."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(str(path)):
                return True
        except OSError:
            continue  # the descriptor of this very listing
    return False


async def test_fences_are_not_lost_when_their_row_is_read_again(
    machine: Machine, engine: Engine
) -> None:
    """A state that was evicted comes back from the index as it was."""
    await fence(engine, 7)
    await engine.checkpoint()
    evict(engine)
    assert (await add(engine, 7, [0], key=KEY)).status is Status.FENCED
