"""Compaction: what is alive moves, what is dead goes, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from bookie.entry.entry import pack_lac
from bookie.errors import DiskFullError, StorageFailedError
from bookie.ids import Status
from bookie.node.engine import checkpoint
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.index_rows import FileState
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.reclaim.compaction import SMALL_FILES_MIN, RoundReport
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import (
    DIGESTER,
    KEY,
    KIB,
    MIB,
    OTHER_KEY,
    Machine,
    Snapshots,
    add,
    assert_holds,
    batch,
    fence,
    ids_of,
    read,
    start_add,
    stored_ids,
)

OK, FENCED, IO_ERROR = Status.OK, Status.FENCED, Status.IO_ERROR


def index_of(engine: Engine) -> Index:
    return engine._booted.index


async def fill(engine: Engine, ledgers: range, ids: range, *, size: int = 4 * KIB) -> None:
    """Entries of several ledgers, mixed in the journal."""
    for entry_id in ids:
        for ledger_id in ledgers:
            assert (await add(engine, ledger_id, [entry_id], size=size)).status is OK


async def delete(machine: Machine, engine: Engine, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        state = await engine.load(ledger_id)
        assert (await engine.delete(state, machine.clock.now_ms())).status is OK


async def assert_all_there(
    engine: Engine, ledgers: range | list[int], ids: range, *, size: int = 4 * KIB
) -> None:
    for ledger_id in ledgers:
        assert_holds(
            await read(engine, ledger_id, ids[0], ids[-1]), batch(ledger_id, ids, size=size)
        )


async def half_dead(machine: Machine, engine: Engine) -> None:
    """Ten ledgers mixed in two journals; eight of them are deleted."""
    await fill(engine, range(1, 11), range(40))
    await delete(machine, engine, *range(3, 11))
    await engine.checkpoint()


async def test_what_is_alive_moves_and_the_old_files_go(machine: Machine, engine: Engine) -> None:
    """In order, in large records, and the disk holds little more than what lives."""
    await half_dead(machine, engine)
    report = await engine.compactor.round(force=True)
    assert report == RoundReport(
        files=2, moved_bytes=len(batch(1, range(40), size=4 * KIB).payload) * 2
    )
    await assert_all_there(engine, [1, 2], range(40))
    (log,) = machine.log_files()
    files = index_of(engine).files()
    assert files[int(log.stem)].state is FileState.SEALED
    assert files[int(log.stem)].live_bytes == report.moved_bytes
    assert log.stat().st_size < report.moved_bytes + 16 * KIB
    assert [path.stat().st_size for path in machine.journals()] == [MIB]
    window = [index_of(engine).slots(1, batch(1, [i]).entry_ids()) for i in range(40)]
    offsets = [int(found.slots[found.at[0], found.where[0], 1]) for found in window if found]
    assert offsets == sorted(offsets)
    await engine.checkpoint()
    assert set(index_of(engine).files()) <= {int(path.stem) for path in machine.log_files()} | {
        int(path.stem) for path in machine.journals()
    }


async def test_a_round_takes_only_what_is_worth_it(machine: Machine, engine: Engine) -> None:
    """Files with little garbage stay, and so does a log that is worth no rewrite."""
    await fill(engine, range(1, 11), range(60))
    await engine.checkpoint()
    before = machine.journals()
    assert (await engine.compactor.round()).files == 0
    await delete(machine, engine, 10)
    assert (await engine.compactor.round()).files == 0
    assert machine.journals() == before
    await delete(machine, engine, *range(3, 9))
    assert (await engine.compactor.round()).files == 2
    for _ in range(2):
        assert (await engine.compactor.round()).files == 0
    await assert_all_there(engine, [1, 2, 9], range(60))


async def test_small_logs_of_unclean_starts_are_merged(machine: Machine) -> None:
    """Each start leaves a log that is all alive; too many of them become one."""
    lives, before = SMALL_FILES_MIN + 4, machine
    for life in range(lives):
        async with before.engine() as engine:
            await add(engine, 7, [life], size=KIB)
            await fence(engine, 100 + life)
            killed = before.killed(f"life-{life}")
        before = killed
    async with before.engine() as engine:
        assert len(before.log_files()) > SMALL_FILES_MIN
        report = await engine.compactor.round()
        assert report.files > SMALL_FILES_MIN
        assert report.kept_files == 0
        assert len(before.log_files()) == 1
        assert (await engine.compactor.round()).files == 0
        assert await stored_ids(engine, 7) == list(range(lives))
        after = before.killed("after")
    (after.root / "ledgers" / "index" / "data.mdb").unlink()
    async with after.engine() as engine:
        assert engine.report.rebuilt
        assert await stored_ids(engine, 7) == list(range(lives))
        for life in range(lives):
            assert (await engine.load(100 + life)).fenced


async def test_a_few_small_files_are_left_alone(machine: Machine) -> None:
    """Merging them at each start would cost more than they do."""
    before = machine
    for life in range(SMALL_FILES_MIN - 2):
        async with before.engine() as engine:
            await add(engine, 7, [life], size=KIB)
            killed = before.killed(f"life-{life}")
        before = killed
    async with before.engine() as engine:
        assert (await engine.compactor.round()).files == 0


async def test_what_died_during_a_round_is_seen_by_the_next(
    machine: Machine, engine: Engine
) -> None:
    """Although nothing changes between the end of the one and the begin of the other."""
    await fill(engine, range(1, 11), range(60))
    await fill(engine, range(11, 16), range(120))
    await delete(machine, engine, *range(3, 11))
    await engine.checkpoint()
    gate = machine.disk.hold("rename", ".log")
    async with asyncio.TaskGroup() as tasks:
        round_ = tasks.create_task(engine.compactor.round())
        await asyncio.to_thread(gate.wait_reached)
        await delete(machine, engine, *range(12, 16))
        await engine.checkpoint()
        gate.release()
    assert round_.result().files > 0
    assert (await engine.compactor.round()).files > 0
    assert (await engine.compactor.round()).files == 0
    await assert_all_there(engine, [1, 2], range(60))
    await assert_all_there(engine, [11], range(120))


async def test_what_a_log_says_of_ledgers_is_no_garbage(machine: Machine, engine: Engine) -> None:
    """The next log would say it again, and be rewritten again."""
    names = range(1, 1501)
    for ledger_id in names:
        await add(engine, ledger_id, [0], size=20)
    await delete(machine, engine, *names[10:])
    await engine.roll()
    await engine.checkpoint()
    assert (await engine.compactor.round()).files == 1
    await engine.roll()
    await engine.checkpoint()
    (log,) = machine.log_files()
    assert log.stat().st_size > 64 * KIB
    for force in (False, True):
        assert (await engine.compactor.round(force=force)).files == 0
    await assert_all_there(engine, names[:10], range(1), size=20)


async def test_a_journal_over_its_budget_moves_to_the_ledgers(machine: Machine) -> None:
    """Even if all of it is alive: the journal's device is small."""
    machine.changes |= {"journal_bytes_max": 2 * MIB}
    async with machine.engine() as engine:
        await fill(engine, range(1, 5), range(300))
        await engine.checkpoint()
        assert len(machine.journals()) == 6
        report = await engine.compactor.round()
        assert report.files == 4
        assert len(machine.journals()) == 2
        assert len(machine.log_files()) == 1
        await assert_all_there(engine, range(1, 5), range(300))


async def test_a_slot_that_changed_meanwhile_is_not_moved(machine: Machine, engine: Engine) -> None:
    """A recovery add of the same entry between the scan and the commit wins."""
    await half_dead(machine, engine)
    gate = machine.disk.hold("rename", ".log")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.compactor.round(force=True))
        await asyncio.to_thread(gate.wait_reached)
        assert (await add(engine, 1, range(5), recovery=True, size=4 * KIB, salt=1)).status is OK
        await delete(machine, engine, 2)
        await engine.checkpoint()
        gate.release()
    assert_holds(await read(engine, 1, 0, 4), batch(1, range(5), size=4 * KIB, salt=1))
    assert_holds(await read(engine, 1, 5, 39), batch(1, range(5, 40), size=4 * KIB))
    assert await stored_ids(engine, 2) == []
    log = int(machine.log_files()[0].stem)
    live = len(batch(1, range(5, 40), size=4 * KIB).payload)
    assert index_of(engine).files()[log].live_bytes == live


class ReadersHold(Hold):
    """A gate for readers only; compaction reads as well."""

    def pass_through(self) -> None:
        """Stand before the gate if this is a read thread."""
        if threading.current_thread().name.startswith("bookie-read"):
            super().pass_through()


async def test_a_reader_that_looked_before_the_move_looks_again(
    machine: Machine, engine: Engine
) -> None:
    """It has read from the first file when the second one goes."""
    await half_dead(machine, engine)
    machine.disk.cold = True
    engine._files._open.clear()
    hold = ReadersHold("pread", "00000001.journal")
    machine.disk._holds.append(hold)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(engine, 1, 0, 39))
        await asyncio.to_thread(hold.wait_reached)
        await engine.compactor.round(force=True)
        assert len(machine.journals()) == 1
        hold.release()
    assert_holds(await reading, batch(1, range(40), size=4 * KIB))


async def test_everything_survives_a_restart_and_a_crash(machine: Machine) -> None:
    """Right after the round, before any other checkpoint."""
    async with machine.engine() as engine:
        await half_dead(machine, engine)
        await engine.compactor.round(force=True)
        off = machine.without_power("off")
        killed = machine.killed("kill")
    for after in (machine, off, killed):
        async with after.engine() as engine:
            assert engine.report.corrupt == ()
            await assert_all_there(engine, [1, 2], range(40))
            assert (await add(engine, 3, [99])).status is FENCED


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
async def test_a_crash_at_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, power: bool, parts: int
) -> None:
    """After a kill at any step the next process has every entry, and can compact."""
    monkeypatch.setattr(checkpoint, "RELOCATED_ENTRIES", 80 // parts)
    machine = Machine(tmp_path / "m")
    copies: dict[str, Machine] = {}

    def keep(name: str) -> None:
        if name.startswith("compaction."):
            again = sum(key.startswith(name) for key in copies)
            name = f"{name} {again}" if again else name
            copies[name] = machine.without_power(name) if power else machine.killed(name)

    machine.failpoints = Snapshots(keep)
    async with machine.engine() as engine:
        await half_dead(machine, engine)
        await engine.compactor.round(force=True)
    steps = ["before_write", "after_log_written", "after_log_renamed", "before_commit"]
    steps += ["after_commit", "before_unlink"]
    steps += ["before_commit 1", "after_commit 1"] if parts == 2 else []
    assert set(copies) == {f"compaction.{step}" for step in steps}
    for copy in copies.values():
        async with copy.engine() as engine:
            assert engine.report.corrupt == ()
            assert list(copy.logs.glob("*.tmp")) == []
            await assert_all_there(engine, [1, 2], range(40))
            await engine.checkpoint()
            await engine.compactor.round(force=True)
            await assert_all_there(engine, [1, 2], range(40))
            assert sum(row.live_bytes for row in index_of(engine).files().values()) == 2 * len(
                batch(1, range(40), size=4 * KIB).payload
            )


async def test_a_rebuilt_index_knows_what_the_old_files_said(machine: Machine) -> None:
    """Keys, fences, limbo, LACs and deletions outlive the journals that recorded them."""
    async with machine.engine() as engine:
        await fill(engine, range(1, 11), range(40))
        await fence(engine, 2)
        await engine.set_limbo(await engine.load(4), in_limbo=True)
        packet = pack_lac(1, 38, DIGESTER)
        engine.publish_lac(await engine.load(1), packet, KEY)
        await fence(engine, 77)
        await delete(machine, engine, 3, *range(5, 11))
        await engine.checkpoint()
        await engine.compactor.round(force=True)
        assert len(machine.journals()) == 1
        killed = machine.killed("kill")
    (killed.index / "data.mdb").unlink()
    async with killed.engine() as engine:
        assert engine.report.rebuilt
        await assert_all_there(engine, [1, 2, 4], range(40))
        assert (await add(engine, 2, [99])).status is FENCED
        assert (await add(engine, 77, [99])).status is FENCED
        assert (await add(engine, 3, [99])).status is FENCED
        assert (await add(engine, 1, [99], key=OTHER_KEY)).status is Status.UNAUTHORIZED
        assert (await engine.load(4)).limbo
        assert (await engine.load(1)).lac_packet == packet


async def test_a_rebuild_reads_a_log_where_its_entries_belong(machine: Machine) -> None:
    """A newer copy in a journal that is numbered below the log wins."""
    async with machine.engine() as engine:
        await half_dead(machine, engine)
        await engine.roll()
        await engine.checkpoint()
        # In the open journal, whose number the log's will be above.
        await add(engine, 1, range(5), recovery=True, size=4 * KIB, salt=1)
        engine.compactor.settings = engine.compactor.settings.model_copy(
            update={"compaction_live_share_minor": 1.0}
        )
        await engine.compactor.round()
        assert max(int(path.stem) for path in machine.log_files()) > max(
            int(path.stem) for path in machine.journals()
        )
        killed = machine.killed("kill")
    (killed.index / "data.mdb").unlink()
    async with killed.engine() as engine:
        assert engine.report.rebuilt
        assert_holds(await read(engine, 1, 0, 4), batch(1, range(5), size=4 * KIB, salt=1))
        assert_holds(await read(engine, 1, 5, 39), batch(1, range(5, 40), size=4 * KIB))


async def test_entries_out_of_order_come_out_sorted(machine: Machine, engine: Engine) -> None:
    """Recovery adds come in any order, also within a ledger's file."""
    for first in (30, 0, 20, 10):
        await add(engine, 1, range(first, first + 10, 2), recovery=True, size=KIB)
        await add(engine, 1, range(first + 1, first + 10, 2), recovery=True, size=KIB)
    await fill(engine, range(5, 8), range(20))
    await delete(machine, engine, 5, 6, 7)
    await engine.compactor.round(force=True)
    (log,) = machine.log_files()
    assert int(log.stem) in index_of(engine).files()
    machine.disk.calls.clear()
    machine.disk.cold = True
    assert_holds(await read(engine, 1, 0, 39), batch(1, range(40), size=KIB))
    assert [call.name for call in machine.disk.calls if call.name == "pread"] == ["pread"]


async def test_a_damaged_block_is_not_moved_and_not_forgotten(machine: Machine) -> None:
    """Its file stays, and its ids are unreadable instead of missing. It is reported once."""
    async with machine.engine() as engine:
        for entry_id in range(8):
            await add(engine, 1, [entry_id], size=4 * KIB)
        await fill(engine, range(5, 9), range(20))
        await delete(machine, engine, *range(5, 9))
        await engine.checkpoint()
        path = machine.journals()[0]
        data = bytearray(path.read_bytes())
        at = data.index(b"1/3/0:")
        data[at - 21] ^= 0xFF  # the entry's id, in its header
        path.write_bytes(data)
        for files in (1, 0):
            assert (await engine.compactor.round(force=True)).files == files
            assert path.exists()
            assert machine.metrics.compaction_kept_files_total._value.get() == 1
        for entry_id in range(8):
            result = await read(engine, 1, entry_id, entry_id)
            assert ids_of(result) == ([] if entry_id == 3 else [entry_id])
            assert result.stopped_by is (IO_ERROR if entry_id == 3 else OK)
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        assert (await read(engine, 1, 3, 3)).stopped_by is IO_ERROR
        assert ids_of(await read(engine, 1, 4, 7)) == [4, 5, 6, 7]


@pytest.mark.parametrize("call", ["create", "pwritev", "fdatasync"])
async def test_a_full_device_gives_up_cleanly(machine: Machine, engine: Engine, call: str) -> None:
    """No temporary is left, everything is where it was, and the next round does it."""
    await half_dead(machine, engine)
    machine.disk.fail(call, ".log.tmp", errno.ENOSPC, times=99)
    report = await engine.compactor.round(force=True)
    assert report.full
    assert list(machine.logs.iterdir()) == []
    await assert_all_there(engine, [1, 2], range(40))
    machine.disk.heal()
    report = await engine.compactor.round(force=True)
    assert report.moved_bytes
    assert not report.full
    await assert_all_there(engine, [1, 2], range(40))


async def test_a_file_that_does_not_fit_does_not_keep_others_waiting(
    machine: Machine, engine: Engine
) -> None:
    """If room is short, each file is tried.

    One that does not fit stays undamaged in the books.
    """
    await half_dead(machine, engine)
    await engine.roll()
    await fill(engine, range(11, 13), range(40))
    await delete(machine, engine, 12)
    await engine.roll()
    await engine.checkpoint()
    engine._turn_read_only("a device is full")
    # Once, and once more after the reserve is gone.
    machine.disk.fail("create", ".log.tmp", errno.ENOSPC, times=2)
    report = await engine.compactor.round(force=True)
    assert report.full
    assert report.moved_bytes
    assert not engine.compactor.kept
    await assert_all_there(engine, [1, 2, 11], range(40))
    machine.disk.heal()
    report = await engine.compactor.round(force=True)
    assert report.moved_bytes
    assert not report.full
    await assert_all_there(engine, [1, 2, 11], range(40))


async def test_a_full_index_gives_up_cleanly(machine: Machine, engine: Engine) -> None:
    """The published log goes again."""
    await half_dead(machine, engine)
    await engine.roll()
    await engine.checkpoint()
    machine.store.errors.append(DiskFullError("the index is full"))
    assert (await engine.compactor.round()).full
    assert machine.log_files() == []
    await assert_all_there(engine, [1, 2], range(40))
    assert not (await engine.compactor.round()).full
    await assert_all_there(engine, [1, 2], range(40))


async def test_an_index_that_is_full_half_way_keeps_both_files(
    machine: Machine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stays for what has followed into it, the old file for the rest."""
    monkeypatch.setattr(checkpoint, "RELOCATED_ENTRIES", 40)
    await half_dead(machine, engine)
    await engine.roll()
    await engine.checkpoint()
    machine.store.errors.append(DiskFullError("the index is full"))
    machine.store.passes = 1
    assert (await engine.compactor.round()).full
    (log,) = machine.log_files()
    size = len(batch(1, range(40), size=4 * KIB).payload)
    assert index_of(engine).files()[int(log.stem)].live_bytes == size
    await assert_all_there(engine, [1, 2], range(40))
    killed = machine.killed("kill")
    assert not (await engine.compactor.round()).full
    await assert_all_there(engine, [1, 2], range(40))
    async with killed.engine() as after:
        assert after.report.corrupt == ()
        await assert_all_there(after, [1, 2], range(40))


async def test_the_reserve_makes_room(machine: Machine) -> None:
    """And comes back once there is room."""
    machine.changes |= {"reserve_bytes": MIB}
    async with machine.engine() as engine:
        await half_dead(machine, engine)
        machine.disk.fail("create", ".log.tmp", errno.ENOSPC)
        report = await engine.compactor.round(force=True)
        assert (report.full, report.files) == (False, 2)
        assert (machine.root / "ledgers" / "RESERVE").exists()
        reserve = str(machine.root / "ledgers" / "RESERVE")
        assert machine.disk.names_called(reserve) == [
            "create",
            "close",
            "unlink",
            "create",
            "close",
        ]


async def test_a_log_that_cannot_be_written_ends_the_engine(machine: Machine) -> None:
    """A device that fails is not tried again."""

    async def live() -> None:
        async with machine.engine() as engine:
            await half_dead(machine, engine)
            machine.disk.fail("fdatasync", ".log.tmp", errno.EIO)
            engine.compactor.wake(force=True)
            await asyncio.sleep(30)

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    assert caught.group_contains(StorageFailedError)
    assert list(machine.logs.iterdir()) == []
    machine.disk.heal()
    async with machine.engine() as engine:
        await assert_all_there(engine, [1, 2], range(40))


async def test_an_unreadable_file_is_left_alone(machine: Machine, engine: Engine) -> None:
    """The others are emptied all the same."""
    await half_dead(machine, engine)
    first = machine.journals()[0]
    machine.disk.fail("pread", first.name, errno.EIO, times=99)
    report = await engine.compactor.round(force=True)
    assert (report.files, report.kept_files) == (2, 1)
    machine.disk.heal()
    await assert_all_there(engine, [1, 2], range(40))
    assert first.exists()
    assert (await engine.compactor.round(force=True)).kept_files == 0


async def test_adds_go_on_while_it_works(machine: Machine, engine: Engine) -> None:
    """Also adds to the ledgers that are moved."""
    await half_dead(machine, engine)
    hold = machine.disk.hold("pwritev", ".log.tmp")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.compactor.round(force=True))
        await asyncio.to_thread(hold.wait_reached)
        waiter = await start_add(engine, batch(1, range(40, 50), size=4 * KIB))
        assert (await waiter).status is OK
        hold.release()
    await assert_all_there(engine, [1], range(50))


async def test_a_round_is_made_by_itself_and_can_be_suspended(machine: Machine) -> None:
    """The interval is short here; a suspended bookie keeps its files."""
    machine.changes |= {"compaction_interval_seconds": 0.01}
    async with machine.engine() as engine:
        engine.compactor.suspended = True
        await half_dead(machine, engine)
        await asyncio.sleep(0.1)
        assert machine.log_files() == []
        engine.compactor.suspended = False
        engine.compactor.wake(force=True)
        async with asyncio.timeout(60):
            while not machine.log_files():  # noqa: ASYNC110  (no event to wait for)
                await asyncio.sleep(0.01)
        await assert_all_there(engine, [1, 2], range(40))
