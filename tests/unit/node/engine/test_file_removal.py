"""Dead files: set aside durably, given back in steps, and nobody ever takes half a file for one."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from bookie.errors import DiskFullError, StorageFailedError
from bookie.ids import Status
from bookie.node.engine import file_removal
from bookie.node.engine.engine import DEVICE_FULL, Engine
from tests.unit.node.engine.machine import KIB, Machine, add, assert_holds, batch, ids_of, read
from tests.unit.node.engine.test_engine_failure import failing_engine, until_failed

STEP_BYTES = 64 * KIB


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(file_removal, "STEP_BYTES", STEP_BYTES)
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS_MAX", 0.0)
    return Machine(tmp_path / "m")


async def dead_but_for(machine: Machine, engine: Engine, *alive: int) -> Path:
    """A first journal file in which only entries of the ledgers `alive` still count."""
    for first in range(0, 40, 5):
        await add(engine, 7, range(first, first + 5), size=40 * KIB)
        if first == 10:
            # Far from the beginning, which is the last to go.
            for ledger_id in alive:
                await add(engine, ledger_id, range(4), size=4 * KIB)
    await add(engine, 8, [0])
    await engine.checkpoint()
    await engine.delete(await engine.load(7), machine.clock.now_ms())
    return machine.journals()[0]


async def until_gone(machine: Machine, name: str = "*.tmp") -> None:
    """Wait until no file of that name, or with more behind it, is left."""
    async with asyncio.timeout(60):
        while list(machine.journal.glob(f"{name}*")):  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.01)


async def test_a_file_is_given_back_in_steps(machine: Machine, engine: Engine) -> None:
    """From its end, under a name that is durable before the first byte goes."""
    first = await dead_but_for(machine, engine)
    size = first.stat().st_size
    before = machine.metrics.reclaimed_bytes_total._value.get()
    machine.disk.calls.clear()
    await engine.checkpoint()
    await until_gone(machine)
    calls = [
        (call.name, call.offset)
        for call in machine.disk.calls
        if call.path == f"{first}.tmp"
        or (call.name == "sync_directory" and call.path == str(machine.journal))
        if call.name not in ("open", "close")
    ]
    cuts = list(range((size - 1) // STEP_BYTES * STEP_BYTES, 0, -STEP_BYTES))
    assert len(cuts) > 3
    assert calls == [
        ("rename", 0),
        ("sync_directory", 0),
        *(("truncate", cut) for cut in cuts),
        ("unlink", 0),
    ]
    await engine._removal.finish()
    assert machine.metrics.reclaimed_bytes_total._value.get() == before + size
    assert ids_of(await read(engine, 8, 0, 0)) == [0]


@pytest.mark.parametrize("lost", ["nothing", "index"])
@pytest.mark.parametrize("power", [False, True])
async def test_half_a_file_is_never_read(machine: Machine, power: bool, lost: str) -> None:
    """The next boot removes it; also one that makes the index again from all files."""
    async with machine.engine() as engine:
        first = await dead_but_for(machine, engine)
        hold = machine.disk.hold("unlink", f"{first.name}.tmp")
        await engine.checkpoint()
        await asyncio.to_thread(hold.wait_reached)
        assert first.with_name(f"{first.name}.tmp").stat().st_size == STEP_BYTES
        after = machine.without_power("after") if power else machine.killed("after")
        hold.release()
    if lost == "index":
        (after.index / "data.mdb").unlink()
    async with after.engine() as engine:
        assert engine.report.corrupt == ()
        assert list(after.journal.glob("*.tmp")) == []
        assert ids_of(await read(engine, 8, 0, 0)) == [0]


@pytest.mark.parametrize("last", [0, 3])
async def test_a_reader_of_a_file_that_is_cut_looks_once_more(
    machine: Machine, engine: Engine, last: int
) -> None:
    """It opened the file that a compaction then emptied: the entries are somewhere else by now."""
    first = await dead_but_for(machine, engine, 1)
    machine.disk.cold = True
    hold = machine.disk.hold("pread", first.name)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(engine, 1, 0, last))
        await asyncio.to_thread(hold.wait_reached)
        # The compaction's own reads must not wait for the reader.
        machine.disk._holds.clear()
        await engine.compactor.round(force=True)
        await until_gone(machine)
        held = engine._files.path(int(first.stem))
        assert held is None
        hold.release()
    assert_holds(await reading, batch(1, range(last + 1), size=4 * KIB))
    assert machine.metrics.errors_total.labels("read")._value.get() == 0


async def test_where_room_is_short_it_is_back_at_once(
    machine: Machine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of a full bookie ends when the space of what it freed is there."""
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS_MAX", 3600.0)
    await dead_but_for(machine, engine)
    engine.read_only_reasons.add(DEVICE_FULL)
    await engine.checkpoint()
    assert list(machine.journal.glob("*.tmp")) == []


async def test_nothing_is_paced_while_more_leaves_than_is_free(
    machine: Machine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device need not be full first."""
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS_MAX", 3600.0)
    await dead_but_for(machine, engine)
    machine.disk.free_bytes = 0
    await engine.checkpoint()
    await until_gone(machine)


async def test_a_log_without_room_takes_what_is_on_its_way_out(
    machine: Machine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a compaction says that a device is full."""
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS_MAX", 3600.0)
    first = await dead_but_for(machine, engine, 1)
    await engine.checkpoint()
    machine.disk.fail("create", ".log.tmp", errno.ENOSPC)
    report = await engine.compactor.round(force=True)
    assert not report.full
    assert not first.exists()


async def test_a_stopped_engine_leaves_nothing_behind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly it would have gone."""
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(file_removal, "PAUSE_SECONDS_MAX", 3600.0)
    async with machine.engine() as engine:
        await dead_but_for(machine, engine)
        await engine.checkpoint()
    assert list(machine.journal.glob("*.tmp")) == []
    assert len(machine.journals()) < 4


@pytest.mark.parametrize("call", ["rename", "sync_directory"])
async def test_a_file_that_cannot_be_set_aside_is_a_failure(machine: Machine, call: str) -> None:
    """Of the device, with the exit code of one."""
    async with failing_engine(machine) as engine:
        await dead_but_for(machine, engine)
        machine.disk.fail(call, "journal", errno.EIO)
        with pytest.raises(StorageFailedError):
            await engine.checkpoint()
        await until_failed(engine)


@pytest.mark.parametrize("call", ["truncate", "unlink"])
async def test_a_file_that_cannot_be_given_back_is_a_failure(machine: Machine, call: str) -> None:
    """Later, as nobody waits for it."""
    async with failing_engine(machine) as engine:
        await dead_but_for(machine, engine)
        machine.disk.fail(call, ".journal.tmp", errno.EIO)
        await engine.checkpoint()
        await until_failed(engine)


async def test_what_was_taken_goes_though_nobody_waited(machine: Machine, engine: Engine) -> None:
    """A checkpoint that is cancelled while it sets files aside has done so all the same."""
    first = await dead_but_for(machine, engine)
    hold = machine.disk.hold("rename", first.name)
    async with asyncio.TaskGroup() as tasks:
        checkpoint = tasks.create_task(engine.checkpoint())
        await asyncio.to_thread(hold.wait_reached)
        checkpoint.cancel()
    hold.release()
    await until_gone(machine, first.name)
    await add(engine, 8, [1])
    assert ids_of(await read(engine, 8, 0, 1)) == [0, 1]
    assert Status.OK is (await add(engine, 9, [0])).status


async def test_a_full_index_while_files_leave(machine: Machine, engine: Engine) -> None:
    """The rows of what has gone stay until there is room for the transaction that drops them."""
    first = await dead_but_for(machine, engine)
    await engine.checkpoint()
    machine.store.errors.append(DiskFullError("the index is full"))
    with pytest.raises(DiskFullError):
        await engine.checkpoint()
    assert int(first.stem) in engine._booted.index.files()
    await engine.checkpoint()
    assert int(first.stem) not in engine._booted.index.files()
