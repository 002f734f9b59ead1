"""Adds: every kind of bad input and its status, nothing of it stored; keys, modes, cancellation."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from crc32c import crc32c

from bookie.config import NodeSettings
from bookie.entry.batch import EntryBatch
from bookie.entry.entry import pack_batch, pack_lac
from bookie.errors import DiskFullError
from bookie.ids import MAX_ID, Status
from bookie.node.bookie import COMMAND, KEY_BYTES_MAX, LAC_PACKET_BYTES_MAX
from bookie.wire.commands import AddCommand
from tests.entry_batches import merged
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import DIGESTER, KEY, OTHER_KEY, Machine, batch, until
from tests.unit.node.node_room import Room, add, add_command, ids_of, read, read_command, serving

OK, BAD_REQUEST, BAD_CHECKSUM = Status.OK, Status.BAD_REQUEST, Status.BAD_CHECKSUM


def with_packet_field(offset: int, value: int, ids: range = range(4)) -> AddCommand:
    """Entries of which the third claims something else in its header; the checksum is right."""
    entries = batch(7, ids)
    payload = bytearray(entries.payload)
    at = int(entries.offsets()[len(ids) // 2]) + offset
    payload[at : at + 8] = value.to_bytes(8, "big", signed=True)
    return add_command(replace(entries, payload=bytes(payload)))


def lone_with_field(offset: int, value: int) -> AddCommand:
    """The same for a lone packet, which is checked on another path."""
    return with_packet_field(offset, value, range(2, 3))


BAD: list[tuple[str, Callable[[], AddCommand], Status]] = [
    (
        "checksum",
        lambda: add_command(batch(7, range(4)))._replace(payload_crc32c=1),
        BAD_CHECKSUM,
    ),
    ("foreign ledger", lambda: with_packet_field(0, 8), BAD_REQUEST),
    ("negative ledger", lambda: with_packet_field(0, -7), BAD_REQUEST),
    ("foreign entry", lambda: with_packet_field(8, 3), BAD_REQUEST),
    ("huge entry", lambda: with_packet_field(8, MAX_ID), BAD_REQUEST),
    ("LAC of itself", lambda: with_packet_field(16, 2), BAD_REQUEST),
    ("LAC above", lambda: with_packet_field(16, 99), BAD_REQUEST),
    ("LAC below -1", lambda: with_packet_field(16, -2), BAD_REQUEST),
    ("lone foreign ledger", lambda: lone_with_field(0, 8), BAD_REQUEST),
    ("lone foreign entry", lambda: lone_with_field(8, 3), BAD_REQUEST),
    ("lone LAC of itself", lambda: lone_with_field(16, 2), BAD_REQUEST),
    ("lone LAC below -1", lambda: lone_with_field(16, -2), BAD_REQUEST),
    (
        "ledger of the batch",
        lambda: add_command(batch(8, range(4)))._replace(ledger_id=7),
        BAD_REQUEST,
    ),
    ("negative id", lambda: add_command(batch(7, [0]))._replace(ledger_id=-1), BAD_REQUEST),
    ("huge id", lambda: add_command(batch(7, [0]))._replace(ledger_id=2**63), BAD_REQUEST),
    (
        "long key",
        lambda: add_command(batch(7, [0]), key=b"k" * (KEY_BYTES_MAX + 1)),
        BAD_REQUEST,
    ),
    ("nothing", lambda: AddCommand(None, 7, KEY, 0), BAD_REQUEST),
    ("short LAC", lambda: AddCommand(None, 7, KEY, 0, lac_packet=b"123"), BAD_REQUEST),
    (
        "long LAC",
        lambda: AddCommand(None, 7, KEY, 0, lac_packet=b"1" * (LAC_PACKET_BYTES_MAX + 1)),
        BAD_REQUEST,
    ),
    (
        "LAC of another ledger",
        lambda: AddCommand(None, 7, KEY, 0, lac_packet=pack_lac(8, 1, DIGESTER)),
        BAD_REQUEST,
    ),
    (
        "negative LAC",
        lambda: AddCommand(
            None, 7, KEY, 0, lac_packet=(7).to_bytes(8, "big") + b"\xff" * 7 + b"\xfe" + bytes(4)
        ),
        BAD_REQUEST,
    ),
    (
        "bad LAC beside good entries",
        lambda: add_command(batch(7, range(4)))._replace(lac_packet=b"123"),
        BAD_REQUEST,
    ),
]


@pytest.mark.parametrize(("command", "status"), [row[1:] for row in BAD], ids=[r[0] for r in BAD])
async def test_bad_input_has_its_status_and_stores_nothing(
    room: Room, command: Callable[[], AddCommand], status: Status
) -> None:
    """On a ledger that is known and on one that is not; the next good add is accepted."""
    for _ in range(2):
        reply = await room.bookie.add(command())
        assert reply.status is status
        assert reply.message
    page, _ = await room.engine.ledgers(-1, 10)
    assert page == []
    assert (await read(room.bookie, 7, 0, 10)).status is Status.NO_SUCH_LEDGER
    assert (await add(room.bookie, 7, [50])).status is OK
    assert (await room.bookie.add(command())).status is status
    assert (await read(room.bookie, 7, 0, 10)).status is Status.NO_SUCH_ENTRY


async def test_entries_of_all_shapes_are_accepted(room: Room) -> None:
    """Contiguous or not, of one size or mixed, one or a thousand, at the end of the ids."""
    sizes = [pack_batch(7, i, -1, 0, [bytes(i % 50)], DIGESTER) for i in range(1000)]
    for entries in (
        merged(sizes),
        batch(8, range(1000)),
        batch(9, [0, 5, 7, MAX_ID]),
        batch(10, [MAX_ID]),
    ):
        assert (await room.bookie.add(add_command(entries))).status is OK
        ids = entries.entry_ids().tolist()
        reply = await read(room.bookie, entries.ledger_id, ids[0], ids[-1])
        assert reply.batch is not None
        length = reply.batch.payload_bytes
        assert bytes(reply.batch.payload) == bytes(entries.payload)[:length]


async def test_a_wrong_key_is_refused_by_every_request(room: Room) -> None:
    """The refusal leaves the ledger open and stores no entry."""
    await add(room.bookie, 7, [0])
    assert (await add(room.bookie, 7, [1], key=OTHER_KEY)).status is Status.UNAUTHORIZED
    assert (await add(room.bookie, 7, [1], key=b"")).status is Status.UNAUTHORIZED
    assert (
        await add(room.bookie, 7, [1], key=OTHER_KEY, recovery=True)
    ).status is Status.UNAUTHORIZED
    lac = pack_lac(7, 0, DIGESTER)
    assert (await room.bookie.write_lac(7, OTHER_KEY, lac)).status is Status.UNAUTHORIZED
    for key in (OTHER_KEY, b""):
        assert (await room.bookie.fence(7, key)).status is Status.UNAUTHORIZED
        reply = await room.bookie.read(read_command(7, 0, 0, fence=True, master_key=key))
        assert (reply.status, reply.batch) == (Status.UNAUTHORIZED, None)
    assert (await room.bookie.read_lac(7, OTHER_KEY)).status is Status.UNAUTHORIZED
    reply = await room.bookie.read(read_command(7, 0, 0, master_key=OTHER_KEY))
    assert reply.status is Status.UNAUTHORIZED
    assert ids_of(await room.bookie.read(read_command(7, 0, 0, master_key=b""))) == [0]
    assert (await add(room.bookie, 7, [1])).status is OK


async def test_read_only_takes_what_recovery_needs(room: Room) -> None:
    """Recovery adds, fences and explicit LACs; plain adds are refused and store nothing."""
    await add(room.bookie, 7, [0])
    room.bookie.set_read_only(COMMAND, read_only=True)
    assert room.bookie.read_only
    assert room.bookie.read_only_reasons() == [COMMAND]
    assert (await add(room.bookie, 7, [1])).status is Status.READ_ONLY
    assert (await add(room.bookie, 8, [0])).status is Status.READ_ONLY
    assert (await add(room.bookie, 7, [1], recovery=True)).status is OK
    assert (await room.bookie.write_lac(7, KEY, pack_lac(7, 0, DIGESTER))).status is OK
    assert (await room.bookie.fence(7, KEY)).status is OK
    assert ids_of(await read(room.bookie, 7, 0, 9)) == [0, 1]
    room.bookie.set_read_only("another reason", read_only=True)
    room.bookie.set_read_only(COMMAND, read_only=False)
    assert (await add(room.bookie, 8, [0])).status is Status.READ_ONLY
    room.bookie.set_read_only("another reason", read_only=False)
    assert (await add(room.bookie, 8, [0])).status is OK


async def test_a_bookie_may_start_read_only(tmp_path: Path) -> None:
    """By its settings."""
    async with serving(Machine(tmp_path / "m"), NodeSettings(read_only=True)) as room:
        assert (await add(room.bookie, 7, [0])).status is Status.READ_ONLY


async def test_a_cancelled_caller_does_not_cancel_the_write(room: Room) -> None:
    """On the short way, and on the way that has to load the ledger first."""
    await add(room.bookie, 7, [0])
    hold = room.machine.disk.hold("fdatasync", ".journal")
    known = room.bookie.add(add_command(batch(7, [1])))
    unknown = room.bookie.add(add_command(batch(8, [0])))
    await until(lambda: room.engine.known(8) is not None)
    await asyncio.to_thread(hold.wait_reached)
    for outcome in (known, unknown):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await outcome
    hold.release()
    assert (await add(room.bookie, 7, [2])).status is OK
    assert ids_of(await read(room.bookie, 7, 0, 2)) == [0, 1, 2]
    assert ids_of(await read(room.bookie, 8, 0, 0)) == [0]


async def test_duplicates_and_conflicts_have_their_answers(room: Room) -> None:
    """As the engine decides; above the highest id nothing is compared."""
    await add(room.bookie, 7, range(5))
    assert (await add(room.bookie, 7, range(5))).status is OK
    assert (await add(room.bookie, 7, [2], salt=1)).status is Status.CONFLICT
    assert (await add(room.bookie, 7, range(3, 8))).status is OK
    assert ids_of(await read(room.bookie, 7, 0, 9)) == list(range(8))


async def test_a_duplicate_that_cannot_be_compared_is_an_error(room: Room) -> None:
    """The bookie lives on, and its answer is an error."""
    await add(room.bookie, 7, range(5))
    room.machine.disk.fail("open", ".journal", errno.ENOENT, times=2)
    assert (await add(room.bookie, 7, range(5))).status is Status.IO_ERROR
    assert (await add(room.bookie, 7, range(5))).status is Status.OK
    room.machine.disk.fail("pread_cached", ".journal", errno.EIO)
    assert (await add(room.bookie, 7, range(5))).status is Status.IO_ERROR
    assert (await add(room.bookie, 7, range(5))).status is OK


async def test_a_stopping_bookie_finishes_what_it_accepted(tmp_path: Path) -> None:
    """And takes nothing more."""
    machine = Machine(tmp_path / "m")
    async with serving(machine) as room:
        await add(room.bookie, 7, [0])
        hold = machine.disk.hold("fdatasync", ".journal")
        accepted = room.bookie.add(add_command(batch(7, [1])))
        loading = room.bookie.add(add_command(batch(8, [0])))
        await asyncio.to_thread(hold.wait_reached)
        room.bookie.stop_accepting()
        for status in (
            (await add(room.bookie, 7, [2])).status,
            (await room.bookie.fence(7, KEY)).status,
            (await room.bookie.force(7)).status,
            (await room.bookie.read_lac(7, KEY)).status,
            (await read(room.bookie, 7, 0, 0)).status,
            (await room.bookie.write_lac(7, KEY, pack_lac(7, 0, DIGESTER))).status,
        ):
            assert status is Status.SHUTTING_DOWN
        hold.release()
    assert (accepted.result().status, loading.result().status) == (OK, OK)
    async with serving(machine) as room:
        assert room.engine.report.clean
        assert ids_of(await read(room.bookie, 7, 0, 9)) == [0, 1]
        assert ids_of(await read(room.bookie, 8, 0, 9)) == [0]


async def test_force_makes_deferred_adds_durable(room: Room) -> None:
    """Of every ledger."""
    command = add_command(batch(7, [0]), deferred_sync=True)
    assert (await room.bookie.add(command)).status is OK
    lost = room.machine.without_power("lost")
    assert (await room.bookie.force(99)).status is OK
    kept = room.machine.without_power("kept")
    for machine, expected in ((lost, []), (kept, [0])):
        async with serving(machine) as after:
            assert ids_of(await read(after.bookie, 7, 0, 0)) == expected
    for ledger_id in (-1, 2**63):
        assert (await room.bookie.force(ledger_id)).status is BAD_REQUEST


async def test_the_bytes_in_flight_are_bounded(tmp_path: Path) -> None:
    """A caller that asks for more waits until an answer has left; order is kept."""
    machine = Machine(tmp_path / "m")
    async with serving(machine, NodeSettings(in_flight_add_bytes_max=4096)) as room:
        await add(room.bookie, 7, [0])
        hold = machine.disk.hold("fdatasync", ".journal")
        await room.bookie.admit_add(4000)
        room.bookie.add(add_command(batch(7, [1])), admitted=4000)
        await asyncio.to_thread(hold.wait_reached)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(room.bookie.admit_add(2000)) for _ in range(3)]
            await until(lambda: len(room.bookie._adds_in_flight._waiting) == 3)
            waiting[0].cancel()
            hold.release()
            await asyncio.wait(waiting)
        assert waiting[0].cancelled()
        for _ in range(2):
            await room.bookie.add(add_command(batch(7, [1])), admitted=2000)
        await room.bookie.admit_add(4096)


async def test_an_add_that_raises_gives_its_bytes_back(room: Room) -> None:
    """Or the bookie would take less and less, and in the end nothing."""
    no_batch = cast("EntryBatch", object())
    for _ in range(3):
        assert room.bookie.try_admit_add(1000)
        with pytest.raises(AttributeError):
            room.bookie.add(AddCommand(no_batch, 7, KEY, 0), 1000)
    assert room.bookie._adds_in_flight.used == 0


async def test_metrics_count_what_was_accepted(room: Room) -> None:
    """Entries and their bytes, not those that were refused."""
    await add(room.bookie, 7, range(10))
    await room.bookie.add(BAD[0][1]())
    entries = room.machine.metrics.entries_added_total.value
    size = room.machine.metrics.bytes_added_total.value
    assert (entries, size) == (10, len(batch(7, range(10)).payload))


async def test_a_batch_that_only_claims_to_be_checked_is_checked(room: Room) -> None:
    """Steps and sizes come as numpy arrays of any kind of integer."""
    entries = batch(7, [1, 4, 9])
    assert entries.steps is not None
    other = replace(
        entries, steps=entries.steps.astype(np.int64), sizes=entries.sizes.astype(np.uint32)
    )
    assert crc32c(other.payload) == crc32c(entries.payload)
    assert (await room.bookie.add(add_command(other))).status is OK
    assert ids_of(await read(room.bookie, 7, 4, 4)) == [4]


# --- back-pressure ----------------------------------------------------------------------------


def sample(machine: Machine, name: str) -> float | None:
    """The value of a metric now."""
    return machine.metrics.registry.get_sample_value(f"bookie_{name}")


async def test_adds_wait_while_a_checkpoint_hangs(tmp_path: Path) -> None:
    """At twice the entries that make one due; reads go on, and so do the adds at its end."""
    machine = Machine(tmp_path / "m", changes={"checkpoint_entries": 10})
    async with serving(machine) as room:
        bookie, engine = room.bookie, room.engine
        for entry_id in range(9):
            assert (await add(bookie, 7, [entry_id])).status is OK
        machine.store.gate = gate = Hold("commit", "index")
        async with asyncio.TaskGroup() as tasks:
            try:
                assert (await add(bookie, 7, [9])).status is OK
                await until(lambda: engine.admission.memtable.entries == 0)
                sizes = [1, 1, 17, 1]
                first = 10
                for size in sizes:
                    assert bookie.try_admit_add(100)
                    batch_ids = range(first, first + size)
                    assert (await bookie.add(add_command(batch(7, batch_ids)), 100)).status is OK
                    first += size
                assert not bookie.try_admit_add(100)
                assert sample(machine, "adds_held_back") == 1
                waiting = [tasks.create_task(bookie.admit_add(100)) for _ in range(3)]
                given_up = tasks.create_task(bookie.admit_add(100))
                await asyncio.to_thread(gate.wait_reached)
                for entry_id in range(first):
                    assert ids_of(await read(bookie, 7, entry_id, entry_id)) == [entry_id]
                assert not any(task.done() for task in waiting)
                given_up.cancel()
            finally:
                gate.release()
        assert engine.admission.memtable.entries <= 20
        for _ in waiting:
            assert (await bookie.add(add_command(batch(7, [first])), 100)).status is OK
            first += 1
        assert sample(machine, "in_flight_add_bytes") == 0
        assert sample(machine, "adds_held_back") == 0
        assert bookie.try_admit_add(100)
        await bookie.add(add_command(batch(7, [first])), 100)


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize(("recovery", "status"), [(False, Status.READ_ONLY), (True, OK)])
async def test_adds_are_answered_when_a_checkpoint_finds_no_room(
    tmp_path: Path, is_waiting: bool, recovery: bool, status: Status
) -> None:
    """New entries are refused and recovery adds go on; once there is room, so do all."""
    machine = Machine(tmp_path / "m", changes={"checkpoint_entries": 10})
    async with serving(machine) as room, asyncio.timeout(60):
        bookie, engine = room.bookie, room.engine
        machine.store.gate = gate = Hold("commit", "index")
        machine.store.errors += [DiskFullError("full")] * 100
        async with asyncio.TaskGroup() as tasks:
            try:
                assert (await add(bookie, 7, range(10))).status is OK
                await until(lambda: engine.admission.memtable.entries == 0)
                assert (await add(bookie, 7, range(10, 30))).status is OK
                assert not bookie.try_admit_add(100)
                if is_waiting:
                    admitted = tasks.create_task(bookie.admit_add(100))
                    await asyncio.to_thread(gate.wait_reached)
                    assert not admitted.done()
            finally:
                gate.release()
                machine.store.gate = None
        await until(lambda: bookie.read_only)
        if not is_waiting:
            await bookie.admit_add(100)
        assert sample(machine, "adds_held_back") == 0
        command = add_command(batch(7, [40]), recovery=recovery)
        assert (await bookie.add(command, 100)).status is status
        machine.store.errors.clear()
        await engine.checkpoint()
        await engine.device_has_room()
        assert bookie.try_admit_add(100)
        assert (await bookie.add(add_command(batch(7, [50])), 100)).status is OK
