"""The matrix of I/O errors on a real bookie: every call on every kind of file fails once.

After the failure nothing is acknowledged. A bookie on the healed device has all that was
acknowledged before, and leaves refused ids empty.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bookie.errors import (
    BookieError,
    CannotStartError,
    ConfigurationError,
    DiskFullError,
    StorageFailedError,
)
from bookie.ids import Status
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.start import StartedBookie
from tests.matrix.document import IO_DOCUMENT, rendered_io
from tests.matrix.examine import Finding, examine, flattened
from tests.matrix.io_table import FAULTS, Effect, Error, Fault, Phase
from tests.matrix.short_writes import ShortWrite, ShortWrites
from tests.matrix.specimen import Picture, Truth, restore, started
from tests.unit.node.engine.faulty_disk import Fault as Armed
from tests.unit.node.engine.machine import KEY, KIB, Machine, Moment, batch
from tests.unit.node.node_room import add_command, read_command

OK = Status.OK
CASES = [(fault, error, nth) for fault in FAULTS for error in fault.errors for nth in fault.nths]
MANY = 1_000_000
MOMENTS = {
    "commit": Moment.BEFORE,
    "data sync": Moment.DATA_SYNC,
    "meta write": Moment.META_WRITE,
    "end of a commit": Moment.LANDED,
}
SETTINGS: dict[str, object] = {
    "journal_file_bytes_max": 128 * KIB,
    "journal_allocate_bytes": 64 * KIB,
    "block_bytes_max": 16 * KIB,
    "reserve_bytes": 64 * KIB,
    "scrub_bytes_per_second": 0,
}


@dataclass
class Rig:
    """What can be made to fail."""

    machine: Machine
    writes: ShortWrites


@dataclass
class Day:
    """What happened to the requests of one life."""

    truth: Truth = field(default_factory=Truth)
    refused: set[tuple[int, int]] = field(default_factory=set)
    late: list[str] = field(default_factory=list)
    """What was acknowledged after the failure."""
    read_only: int = 0
    errors: int = 0
    """Reads that answered with an I/O error."""


async def work(one: StartedBookie, machine: Machine, day: Day) -> None:
    """Everything that makes a bookie touch its files, until the end or until it fails."""
    for step in range(48):
        await _add(one, day, step)
        if step % 12 == 11:
            await _fence(one, day, 50 + step)
            await _read(one, day)
        if step in {15, 31}:
            await _checkpoint(one)
    for ledger_id in (11, 12):
        state = await one.engine.load(ledger_id)
        reply = await one.engine.delete(state, machine.clock.now_ms())
        if reply.status is OK:
            _note_late(one, day, f"the deletion of {ledger_id}")
            day.truth.deleted.add(ledger_id)
    await _checkpoint(one)
    await one.engine.compactor.round(force=True)
    await _checkpoint(one)
    # Of a ledger that exists, for plain adds.
    await _add(one, day, 50)


async def _add(one: StartedBookie, day: Day, step: int) -> None:
    ledger_id, entry_id = 11 + step % 3, step // 3
    entries = batch(ledger_id, [entry_id], size=7 * KIB)
    command = add_command(entries, recovery=step % 5 == 4, deferred_sync=step % 7 == 6)
    reply = await one.bookie.add(command)
    packet = bytes(entries.payload)
    if reply.status is OK:
        if command.deferred_sync and (await one.bookie.force(ledger_id)).status is not OK:
            return
        _note_late(one, day, f"entry {entry_id} of ledger {ledger_id}")
        day.truth.entries.setdefault(ledger_id, {})[entry_id] = [packet]
    elif reply.status is Status.READ_ONLY:
        day.read_only += 1
        day.refused.add((ledger_id, entry_id))


async def _fence(one: StartedBookie, day: Day, ledger_id: int) -> None:
    reply = await one.bookie.fence(ledger_id, KEY)
    if reply.status is OK or reply.status is Status.NO_SUCH_LEDGER:
        _note_late(one, day, f"the fence of {ledger_id}")
        day.truth.fenced.add(ledger_id)


async def _read(one: StartedBookie, day: Day) -> None:
    for ledger_id, entries in day.truth.entries.items():
        if ledger_id in day.truth.deleted:
            continue
        for entry_id, (packet,) in list(entries.items())[:2]:
            reply = await one.bookie.read(read_command(ledger_id, entry_id, entry_id))
            if reply.batch is None:
                assert reply.status is Status.IO_ERROR, reply
                day.errors += 1
            else:
                assert bytes(reply.batch.payload) == packet


async def _checkpoint(one: StartedBookie) -> None:
    try:
        await one.engine.checkpoint()
    except DiskFullError:
        return


def _note_late(one: StartedBookie, day: Day, what: str) -> None:
    if one.engine.failure is not None:
        day.late.append(what)


def arm(rig: Rig, fault: Fault, error: Error, nth: int) -> Armed | ShortWrite | None:
    """Make the device fail: once, or from then on if it is full."""
    is_full = error in {Error.ENOSPC, Error.SHORT_ENOSPC}
    if fault.call in MOMENTS:
        arm_store(rig.machine, MOMENTS[fault.call], nth, is_full=is_full)
        return None
    if error.is_short:
        return rig.writes.cut(fault.part, error.number, passes=nth - 1, but_not=fault.but_not)
    times = MANY if is_full else 1
    return rig.machine.disk.fail(
        fault.call, fault.part, error.number, passes=nth - 1, times=times, but_not=fault.but_not
    )


def arm_store(machine: Machine, moment: Moment, nth: int, *, is_full: bool) -> None:
    """Make a commit fail. Once it may have synced something, the store calls that a failure."""
    faults = machine.store
    faults.passes, faults.moment = nth - 1, moment
    if is_full and moment is Moment.BEFORE:
        faults.errors += [DiskFullError("full")] * 6
    else:
        reason = os.strerror(errno.ENOSPC if is_full else errno.EIO)
        faults.errors.append(OSError(errno.EIO, f"the index failed: {reason}"))


def heal(rig: Rig) -> None:
    """The device is as good as new."""
    rig.machine.disk.heal()
    rig.machine.store.errors.clear()
    rig.writes.heal()


async def live(
    rig: Rig, store: MetadataStore, fault: Fault, error: Error, nth: int, day: Day
) -> Effect:
    """One life in which the device fails; what the bookie did about it."""
    machine = rig.machine
    armed: list[Armed | ShortWrite | None] = []
    failed: list[BaseException] = []
    is_start = fault.phase is not Phase.WORK
    if is_start:
        armed.append(arm(rig, fault, error, nth))
    serves = False
    try:
        async with started(machine, store) as one:
            serves = True
            if not is_start:
                machine.disk.cold = fault.call == "pread"
                armed.append(arm(rig, fault, error, nth))
            try:
                await work(one, machine, day)
            except (BookieError, asyncio.CancelledError):
                # Whoever waits hears of it; the life of the engine ends with the block.
                await asyncio.sleep(0)
                assert one.engine.failure is not None
                await _after_failure(one, day)
                raise
            _check_struck(machine, armed)
            heal(rig)
            await _room_again(one, day)
    except* BookieError as group:
        failed += flattened(group)
    _check_struck(machine, armed)
    heal(rig)
    if failed:
        assert all(str(one) and "\n" not in str(one) for one in failed)
        if not serves:
            refusals = StorageFailedError | ConfigurationError | CannotStartError
            assert isinstance(failed[0], refusals)
            return Effect.REFUSE
        assert all(isinstance(one, StorageFailedError) for one in failed), failed
        return Effect.FAIL_STOP
    if day.read_only:
        return Effect.READ_ONLY
    return Effect.ONE_ERROR if day.errors else Effect.UNHARMED


def _check_struck(machine: Machine, armed: list[Armed | ShortWrite | None]) -> None:
    """The call that should fail was made."""
    for one in armed:
        if one is None:
            assert machine.store.struck
        else:
            assert one.struck


async def _after_failure(one: StartedBookie, day: Day) -> None:
    """Nothing is acknowledged any more."""
    reply = await one.bookie.add(add_command(batch(9, [0])))
    assert reply.status is not OK
    assert (await one.bookie.fence(9, KEY)).status not in {OK, Status.NO_SUCH_LEDGER}
    assert (await one.bookie.force(9)).status is not OK
    assert day.late == []


async def _room_again(one: StartedBookie, day: Day) -> None:
    """With room, entries are taken again."""
    await one.engine.device_has_room()
    entries = batch(60, [0])
    assert (await one.bookie.add(add_command(entries))).status is OK
    day.truth.entries[60] = {0: [bytes(entries.payload)]}


def test_the_document_is_the_table() -> None:
    """`python -m tests.matrix.document` writes it anew."""
    assert IO_DOCUMENT.read_text(encoding="utf-8") == rendered_io()


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        yield store


async def prepared(tmp_path: Path, store: MetadataStore, phase: Phase, day: Day) -> Machine:
    """A machine before the life in which its device fails."""
    machine = Machine(tmp_path / "m", changes=dict(SETTINGS))
    if phase is Phase.RESTART:
        async with started(machine, store) as one:
            await work(one, machine, day)
            for step in range(51, 70):
                await _add(one, day, step)
            picture = Picture(machine.killed("kill").root, day.truth)
        await restore(picture, machine.root, store)
        (machine.root / "ledgers" / "RESERVE").unlink()
        # How many dead files are left depends on the threads of the first life: add two.
        for number in (0, 1):
            (machine.root / "journal" / f"{number:08d}.journal.tmp").touch()
        machine = Machine(machine.root, changes=dict(SETTINGS))
    return machine


@pytest.fixture(name="writes")
def _writes(monkeypatch: pytest.MonkeyPatch) -> ShortWrites:
    writes = ShortWrites()
    monkeypatch.setattr(os, "pwritev", writes.pwritev)
    return writes


@pytest.mark.parametrize(
    ("fault", "error", "nth"),
    CASES,
    ids=[
        f"{fault.phase.name}-{fault.what}-{fault.call}-{error.name}-{nth}"
        for fault, error, nth in CASES
    ],
)
async def test_an_error_comes_to_what_the_table_says(
    tmp_path: Path,
    store: MetadataStore,
    writes: ShortWrites,
    fault: Fault,
    error: Error,
    nth: int,
) -> None:
    """And the next start, on a sound device, has everything that was acknowledged."""
    day = Day()
    machine = await prepared(tmp_path, store, fault.phase, day)
    effect = await live(Rig(machine, writes), store, fault, error, nth, day)
    assert day.late == []
    assert not machine.store.retried
    # An index that was being written when the engine failed is not closed, which a process end is.
    gc.collect()
    machine.store.settle()
    for _ in range(2):
        healed = Machine(machine.root, changes=dict(SETTINGS))
        finding = await examine(healed, store, day.truth)
        assert finding == Finding(), finding
    await _check_refused(Machine(machine.root, changes=dict(SETTINGS)), store, day)
    assert effect is fault.effect(error), fault.because


async def _check_refused(machine: Machine, store: MetadataStore, day: Day) -> None:
    """What was refused for want of room was not stored all the same."""
    async with started(machine, store) as one:
        for ledger_id, entry_id in day.refused:
            if ledger_id in day.truth.deleted or entry_id in day.truth.entries.get(ledger_id, {}):
                continue
            reply = await one.bookie.read(read_command(ledger_id, entry_id, entry_id))
            assert reply.status in {Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER}
