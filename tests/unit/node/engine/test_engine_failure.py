"""Broken devices end the engine at once; full ones make it read-only and lose nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bookie.errors import (
    BookieError,
    ConfigurationError,
    CorruptionError,
    DiskFullError,
    StorageFailedError,
)
from bookie.ids import Status
from bookie.node.engine.engine import DEVICE_FULL, Engine
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import (
    KIB,
    MIB,
    Machine,
    add,
    batch,
    fence,
    ids_of,
    read,
    start_add,
    stored_ids,
)

OK, IO_ERROR, READ_ONLY = Status.OK, Status.IO_ERROR, Status.READ_ONLY


@asynccontextmanager
async def failing_engine(machine: Machine) -> AsyncIterator[Engine]:
    """An engine that must end with StorageFailedError, which is what ends the process.

    Its block must run to its end, beyond `until_failed`, where the cancellation strikes.
    """
    finished = False
    errors: list[BaseException] = []
    try:
        async with machine.engine() as engine:
            yield engine
            finished = True
    except* StorageFailedError as group:
        errors += group.exceptions
    assert len(set(map(id, errors))) == 1, "one failure, whichever task of the engine brings it"
    assert finished


async def until_failed(engine: Engine) -> None:
    """Wait for the cancellation that a failed engine sends into its block."""
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert engine.failure is not None


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
async def test_a_failed_journal_acknowledges_nothing_any_more(machine: Machine, call: str) -> None:
    """Adds, fences and forces, those in its queue and later ones; the disk is not asked again."""
    async with failing_engine(machine) as engine:
        assert (await add(engine, 7, [0])).status is OK
        fence_later = await engine.load(8)
        hold = machine.disk.hold("fdatasync", ".journal")
        first = await start_add(engine, batch(7, [1], size=1000))
        await asyncio.to_thread(hold.wait_reached)
        machine.disk.fail(call, ".journal", errno.EIO)
        waiters = [
            await start_add(engine, batch(7, [2])),
            await start_add(engine, batch(7, [3]), deferred_sync=True),
            await start_add(engine, batch(7, [4]), recovery=True),
            engine.fence(fence_later, b""),
            engine.force(),
        ]
        hold.release()
        await until_failed(engine)
        in_flight = [*waiters] if call == "pwritev" else [first, *waiters]
        for waiter in in_flight:
            assert (await waiter).status is IO_ERROR
        calls = len(machine.disk.calls)
        assert (await add(engine, 7, [5])).status is IO_ERROR
        assert (await fence(engine, 8)).status is IO_ERROR
        assert (await engine.force()).status is IO_ERROR
        result = await read(engine, 7, 2, 2)
        assert result.stopped_by is IO_ERROR, "no negative answer about what may be on disk"
        with pytest.raises(StorageFailedError):
            await stored_ids(engine, 7)
        writes = [item.name for item in machine.disk.calls[calls:] if "journal" in item.path]
        assert not {"pwritev", "fdatasync"} & set(writes)
    names = [item.name for item in machine.disk.calls[calls:] if ".journal" in item.path]
    assert not {"pwritev", "fdatasync", "truncate"} & set(names)


async def test_a_completion_that_raises_ends_the_engine(machine: Machine) -> None:
    """Those behind it in its block would wait for ever, and nobody would know why."""

    def broken(request: JournalRequest) -> None:
        raise ValueError("a bug")

    async with failing_engine(machine) as engine:
        assert (await add(engine, 7, [0])).status is OK
        hold = machine.disk.hold("fdatasync", ".journal")
        await start_add(engine, batch(7, [1]))
        await asyncio.to_thread(hold.wait_reached)
        engine.admission.submit(JournalRequest(RequestKind.FORCE, broken))
        await start_add(engine, batch(7, [2]))
        hold.release()
        await until_failed(engine)
        assert (await add(engine, 7, [3])).status is IO_ERROR


async def test_the_next_start_knows_that_a_disk_failed(machine: Machine) -> None:
    """It walks the index; what was acknowledged is there."""
    async with failing_engine(machine) as engine:
        await add(engine, 7, range(100))
        await engine.checkpoint()
        machine.disk.fail("fdatasync", ".journal", errno.EIO)
        assert (await add(engine, 7, [100])).status is IO_ERROR
        await until_failed(engine)
    assert (machine.root / "ledgers" / "FAILED").exists()
    async with machine.engine() as engine:
        assert not engine.report.rebuilt
        assert not (machine.root / "ledgers" / "FAILED").exists()
        assert (await stored_ids(engine, 7))[:100] == list(range(100))


async def test_a_failed_index_commit_is_not_retried(machine: Machine) -> None:
    """Not by the checkpoint at the end either: what is on disk is unknown."""
    async with failing_engine(machine) as engine:
        await add(engine, 7, range(10))
        machine.store.errors.append(OSError(errno.EIO, "broken"))
        writes = machine.store.writes
        with pytest.raises(StorageFailedError):
            await engine.checkpoint()
        await until_failed(engine)
        assert (await add(engine, 7, [10])).status is IO_ERROR
    assert machine.store.writes == writes + 1
    assert (machine.root / "ledgers" / "FAILED").exists()
    async with machine.engine() as engine:
        assert await stored_ids(engine, 7) == list(range(10))


async def test_a_failed_commit_of_the_housekeeper_ends_the_engine(machine: Machine) -> None:
    """Nobody has to ask for the checkpoint to hear of it."""
    machine.changes = {"checkpoint_entries": 5}
    async with failing_engine(machine) as engine:
        writes = machine.store.writes
        machine.store.errors.append(OSError(errno.EIO, "broken"))
        await add(engine, 7, range(10))
        await until_failed(engine)
    assert machine.store.writes == writes + 1


async def test_a_failed_last_checkpoint_is_a_failure(machine: Machine) -> None:
    """The process must not end as if all were well."""

    async def add_and_break() -> None:
        async with machine.engine() as engine:
            await add(engine, 7, range(10))
            machine.store.errors.append(OSError(errno.EIO, "broken"))

    with pytest.raises(StorageFailedError):
        await add_and_break()
    async with machine.engine() as engine:
        assert not engine.report.clean
        assert await stored_ids(engine, 7) == list(range(10))


async def test_a_damaged_page_ends_the_engine_and_the_next_start_rebuilds(
    machine: Machine,
) -> None:
    """A checkpoint must never overwrite a page that it failed to read."""
    async with failing_engine(machine) as engine:
        await add(engine, 7, range(10))
        await engine.checkpoint()
        with engine._booted.index._store.write() as txn:
            page = bytearray(txn.get("locations", page_key(7, 0)) or b"")
            page[-1] ^= 1
            txn.put("locations", page_key(7, 0), bytes(page))
        assert (await read(engine, 7, 0, 9)).stopped_by is IO_ERROR
        with pytest.raises(CorruptionError):
            await add(engine, 7, range(10))
        await add(engine, 7, range(10, 20))
        with pytest.raises(StorageFailedError):
            await engine.checkpoint()
        await until_failed(engine)
    async with machine.engine() as engine:
        assert engine.report.rebuilt
        assert engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(20))


async def test_an_index_without_room_turns_read_only_and_loses_nothing(machine: Machine) -> None:
    """The memtable is kept, fences and recovery adds go on, a later checkpoint succeeds."""
    machine.changes = {"reserve_bytes": 64 * KIB}
    async with machine.engine() as engine:
        reserve = machine.root / "ledgers" / "RESERVE"
        assert reserve.stat().st_size == 64 * KIB
        await add(engine, 7, range(100))
        machine.store.errors += [DiskFullError("full")] * 2
        for _ in range(2):
            with pytest.raises(DiskFullError):
                await engine.checkpoint()
        assert not reserve.exists(), "given up for the next try"
        assert engine.read_only_reasons == {DEVICE_FULL}
        assert (await add(engine, 7, [100])).status is READ_ONLY
        assert (await add(engine, 7, [100], recovery=True)).status is OK
        assert (await fence(engine, 8)).status is OK
        assert ids_of(await read(engine, 7, 0, 200)) == list(range(101))
        killed = machine.killed("full")
        await engine.checkpoint()
        later = machine.killed("later")
        await engine.device_has_room()
        assert engine.read_only_reasons == set()
        assert reserve.exists()
        assert (await add(engine, 9, [0])).status is OK
    for after in (killed, later, machine):
        async with after.engine() as engine:
            assert await stored_ids(engine, 7) == list(range(101))
            assert (await engine.load(8)).fenced


async def test_a_last_checkpoint_without_room_is_made_up_for_by_replay(machine: Machine) -> None:
    """A full device is no failure."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        machine.store.errors.append(DiskFullError("full"))
    async with machine.engine() as engine:
        assert not engine.report.clean
        assert engine.report.entries == 10
        assert await stored_ids(engine, 7) == list(range(10))


async def test_a_journal_without_room_turns_read_only(machine: Machine) -> None:
    """Plain adds are refused, what is stored is served, fences take the reserve."""
    machine.changes = {"reserve_bytes": 64 * KIB}
    async with machine.engine() as engine:
        stored = 0
        machine.disk.fail("create", ".journal", errno.ENOSPC)
        while (await add(engine, 7, [stored], size=100 * KIB)).status is OK:
            stored += 1
        assert engine.read_only_reasons == {DEVICE_FULL}
        assert await stored_ids(engine, 7) == list(range(stored))
        assert (await add(engine, 7, [stored], size=100 * KIB, recovery=True)).status is OK
        assert (await fence(engine, 8)).status is OK
        state = await engine.load(7)
        assert state.last_entry_id == stored
        killed = machine.killed("kill")
    for after in (killed, machine):
        async with after.engine() as engine:
            assert await stored_ids(engine, 7) == list(range(stored + 1))
            assert (await engine.load(8)).fenced


@pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (lambda m: m.disk.fail("create", ".log.tmp", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("pwritev", ".log.tmp", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("fdatasync", ".log.tmp", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("rename", ".log", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("pread", ".journal", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("drop_cache", ".journal", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("drop_cache", ".mdb", errno.EIO), StorageFailedError),
        (lambda m: m.disk.fail("create", ".journal.tmp", errno.EIO), StorageFailedError),
        (lambda m: m.store.errors.append(OSError(errno.EIO, "broken")), StorageFailedError),
        (
            lambda m: m.disk.fail("create", ".journal.tmp", errno.ENOSPC, times=9),
            ConfigurationError,
        ),
        (lambda m: m.disk.fail("create", ".log.tmp", errno.ENOSPC, times=9), ConfigurationError),
        (lambda m: m.store.errors.extend([DiskFullError("full")] * 2), ConfigurationError),
    ],
)
async def test_a_start_that_fails_says_so_and_changes_nothing(
    machine: Machine, break_it: Callable[[Machine], object], error: type[BookieError]
) -> None:
    """The next start on a sound device finds everything."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        killed = machine.killed("kill")
    break_it(killed)
    with pytest.raises(error):
        async with killed.engine():
            pass
    killed.disk.heal()
    killed.store.errors.clear()
    async with killed.engine() as engine:
        assert not engine.report.corrupt
        assert not engine.report.rebuilt
        assert await stored_ids(engine, 7) == list(range(10))


@pytest.mark.parametrize(
    "fill",
    [
        lambda m: m.disk.fail("create", ".journal.tmp", errno.ENOSPC),
        lambda m: m.disk.fail("create", ".log.tmp", errno.ENOSPC),
        lambda m: m.disk.fail("pwritev", ".log.tmp", errno.ENOSPC),
        lambda m: m.store.errors.append(DiskFullError("full")),
    ],
)
async def test_a_start_on_a_full_device_takes_the_reserve(
    machine: Machine, fill: Callable[[Machine], object]
) -> None:
    """Acknowledged entries must be readable again, also without room."""
    machine.changes = {"reserve_bytes": 64 * KIB}
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        killed = machine.killed("kill")
    killed.disk.free_bytes = 0
    fill(killed)
    async with killed.engine() as engine:
        assert not (killed.root / "ledgers" / "RESERVE").exists()
        assert await stored_ids(engine, 7) == list(range(10))


async def test_a_start_that_needs_the_reserve_half_way_knows_all_its_logs(machine: Machine) -> None:
    """Batches before the full device are committed; what they wrote is read and scrubbed."""
    machine.changes = {"reserve_bytes": 64 * KIB}
    async with machine.engine() as engine:
        for entry_id in range(30):
            await add(engine, 7, [entry_id], size=100 * KIB)
        killed = machine.killed("kill")
    killed.changes["checkpoint_entries"] = 5
    killed.disk.free_bytes = 0
    # The second batch's log has its name already, and two attempts at its commit fail.
    killed.store.passes = 1
    killed.store.errors += [DiskFullError("full"), DiskFullError("full")]
    async with killed.engine() as engine:
        assert killed.store.struck == 2
        assert not engine.report.corrupt
        assert ids_of(await read(engine, 7, 0, 29)) == list(range(30))
        files = set(engine._index.files())
        assert {int(path.stem) for path in killed.log_files()} <= files
        assert files <= set(engine._files.numbers())


@pytest.mark.parametrize("error", [DiskFullError("full"), OSError(errno.EIO, "commit")])
async def test_starts_that_fail_at_their_commit_leave_no_more_and_more_journals(
    machine: Machine, error: Exception
) -> None:
    """They would fill the journal's device; of those whose commit may have happened one stays."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        await engine.roll()
        killed = machine.killed("kill")
    for _ in range(4):
        killed.store.errors += [error, error]
        with pytest.raises(BookieError):
            async with killed.engine():
                pass
        killed.store.errors.clear()
        assert len(killed.journals()) <= 3
    async with killed.engine() as engine:
        assert engine.report.corrupt == ()
        assert not engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(10))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA])
async def test_an_index_that_cannot_be_read_is_made_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A bad sector under it stays; the files have everything that was in it."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        await engine.checkpoint()
        killed = machine.killed("kill")
    data = killed.index / "data.mdb"
    bad_file, pread = data.stat().st_ino, os.pread

    def pread_of_a_bad_device(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad_file and offset >= 8192:
            raise OSError(error, os.strerror(error))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread_of_a_bad_device)
    async with killed.engine() as engine:
        assert engine.report.rebuilt
        assert "cannot be read" in engine.report.corrupt[0]
        assert engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(10))
    assert any(path.stat().st_ino == bad_file for path in killed.root.rglob("data.mdb"))
    async with killed.engine() as engine:
        assert not engine.report.rebuilt


@pytest.mark.parametrize("checkpoint_interval_seconds", [3600.0, 0.0001])
async def test_a_device_that_does_not_answer_ends_the_engine(
    machine: Machine, checkpoint_interval_seconds: float
) -> None:
    """Without waiting for it, which might be for ever, as a checkpoint that is due does."""
    machine.changes = {
        "checkpoint_interval_seconds": checkpoint_interval_seconds,
        "sync_warn_seconds": 0.01,
        "sync_fail_seconds": 0.02,
        "idle_marker_seconds": 0.01,
    }
    async with failing_engine(machine) as engine:
        hold = machine.disk.hold("fdatasync", ".journal")
        waiter = await start_add(engine, batch(7, [0]))
        await until_failed(engine)
        assert (await waiter).status is IO_ERROR
    hold.release()
    assert "close" not in machine.disk.names_called(".journal")


async def test_an_index_that_does_not_answer_ends_the_engine(machine: Machine) -> None:
    """Entries would go on being acknowledged, and memory would fill up."""
    machine.changes = {
        "checkpoint_interval_seconds": 0.0001,
        "sync_warn_seconds": 0.01,
        "sync_fail_seconds": 0.02,
        "idle_marker_seconds": 0.01,
    }
    async with failing_engine(machine) as engine:
        gate = machine.store.gate = Hold("commit", "")
        assert (await add(engine, 7, [0])).status is OK
        await until_failed(engine)
        assert "index device" in str(engine.failure)
        assert not (machine.root / "ledgers" / "FAILED").exists(), "it may hang as well"
        gate.release()


async def test_a_directory_that_does_not_answer_ends_the_engine(machine: Machine) -> None:
    """A file on its way out keeps the thread of the index, and no checkpoint comes through."""
    machine.changes = {
        "sync_warn_seconds": 0.01,
        "sync_fail_seconds": 0.05,
        "idle_marker_seconds": 0.01,
    }
    async with failing_engine(machine) as engine:
        assert (await add(engine, 7, [0])).status is OK
        await engine.roll()
        hold = machine.disk.hold("rename", ".journal")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine._removal.take([str(machine.journals()[0])]))
            await until_failed(engine)
            assert "ledgers device" in str(engine.failure)
            hold.release()


async def test_a_full_journal_never_outgrows_its_file(machine: Machine) -> None:
    """There is only the allocated room: one byte more would fail, and end the process."""
    machine.changes = {"idle_marker_seconds": 0.01}
    async with machine.engine() as engine:
        machine.disk.fail("create", ".journal", errno.ENOSPC, times=1_000_000)
        stored = 0
        while (await add(engine, 7, [stored], size=100 * KIB)).status is OK:
            stored += 1
        ledger_id = 8
        while (await fence(engine, ledger_id)).status is OK:
            ledger_id += 1
        for refused in range(ledger_id, ledger_id + 5):
            await asyncio.sleep(0.03)  # idle, so that the journal vouches for its last block
            assert (await fence(engine, refused)).status is READ_ONLY
        assert [path.stat().st_size for path in machine.journal.glob("*.journal")] == [MIB]
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        assert not engine.report.corrupt
        assert await stored_ids(engine, 7) == list(range(stored))
        assert (await engine.load(8)).fenced


async def test_a_start_on_a_full_journal_device_makes_do_with_a_small_file(
    machine: Machine,
) -> None:
    """Stored entries are served and ledgers fenced, though nothing new fits."""
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        killed = machine.killed("kill")
    killed.disk.fail("create", ".journal.tmp", errno.ENOSPC, times=2)
    async with killed.engine() as engine:
        assert max(killed.journal.glob("*.journal")).stat().st_size == 64 * KIB
        assert await stored_ids(engine, 7) == list(range(10))
        killed.disk.fail("create", ".journal.tmp", errno.ENOSPC, times=1_000_000)
        killed.disk.fail("allocate", ".journal", errno.ENOSPC, times=1_000_000)
        assert (await fence(engine, 7)).status is OK
        assert (await add(engine, 8, [0], size=100 * KIB)).status is READ_ONLY
        killed.disk.heal()
        await engine.device_has_room()
        assert (await add(engine, 8, [0], size=100 * KIB)).status is OK
