"""The event loop never waits for the device of the index: a read thread does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.quorum import Stripe
from bookie.node.engine.engine import Engine
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import KEY, Machine, add, evict, ids_of, read, until
from tests.unit.node.node_room import Room, read_command, serving


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="engine")
async def _engine(machine: Machine) -> AsyncIterator[Engine]:
    async with machine.engine() as engine:
        yield engine


@pytest.fixture(name="room")
async def _room(tmp_path: Path) -> AsyncIterator[Room]:
    async with serving(Machine(tmp_path / "m")) as room:
        yield room


async def test_no_request_reads_the_index_in_the_event_loop(room: Room) -> None:
    """Each kind of request, about ledgers that are only in the index."""
    machine, engine, bookie = room.machine, room.engine, room.bookie
    for ledger_id in range(1, 9):
        await add(engine, ledger_id, [*range(200), 300])
    await engine.checkpoint()
    evict(engine)
    before = machine.store.reads_in_loop

    assert (await bookie.read(read_command(1, 5, 5))).status is Status.OK
    assert (await bookie.read(read_command(1, 0, 199))).status is Status.OK
    assert (await bookie.read(read_command(1, 250, 250))).status is Status.NO_SUCH_ENTRY
    assert (await bookie.read(read_command(1, 199, 400))).stopped_by is Status.NO_SUCH_ENTRY
    assert (await bookie.read(read_command(2, NO_ENTRY, NO_ENTRY))).status is Status.OK
    assert bookie.try_read(read_command(2, 1, 1, master_key=b"")) is None
    assert (await bookie.read_lac(3, KEY)).status is Status.OK
    assert (await bookie.fence(4, KEY)).status is Status.OK
    assert (await add(engine, 5, range(100, 203))).status is Status.OK
    assert (await add(engine, 6, range(3), recovery=True)).status is Status.OK
    assert [r async for r in bookie.list_entries(7, 0, MAX_ID)]
    assert [rows async for rows in bookie.list_ledgers(NO_ENTRY)]
    assert (await bookie.info()).ledgers == 8
    assert engine.needs_integrity_check is False
    assert machine.store.reads_in_loop == before


async def test_appends_go_on_while_look_ups_wait_for_the_device(
    machine: Machine, engine: Engine
) -> None:
    """Also reads of what is in the memtable, and of what was looked up before."""
    await add(engine, 7, range(200))
    await add(engine, 8, range(200))
    await engine.checkpoint()
    assert ids_of(await read(engine, 8, 0, 199)) == list(range(200))
    machine.store.read_gate = gate = Hold("read", "index")
    async with asyncio.TaskGroup() as tasks:
        looking = [
            tasks.create_task(read(engine, 7, entry_id, last))
            for entry_id, last in ((3, 3), (0, 199), (70, 90), (199, 250))
        ]
        comparing = tasks.create_task(add(engine, 7, range(100, 210)))
        try:
            await until(gate.reached.is_set)
            async with asyncio.timeout(60):
                for entry_id in range(200, 220):
                    assert (await add(engine, 8, [entry_id])).status is Status.OK
                    assert ids_of(await read(engine, 8, entry_id, entry_id)) == [entry_id]
                assert ids_of(await read(engine, 8, 0, 219)) == list(range(220))
                assert ids_of(await read(engine, 8, 64, 64)) == [64]
                assert (await read(engine, 8, 220, 220)).stopped_by is Status.NO_SUCH_ENTRY
            assert not any(task.done() for task in [*looking, comparing])
        finally:
            gate.release()
    assert [ids_of(task.result()) for task in looking] == [
        [3],
        list(range(200)),
        list(range(70, 91)),
        [199],
    ]
    assert comparing.result().status is Status.OK


async def test_what_was_looked_up_follows_the_index(machine: Machine, engine: Engine) -> None:
    """Cached pages never hide entries that a checkpoint brought, replaced or deleted."""
    await add(engine, 7, range(0, 100, 2))
    await engine.checkpoint()
    assert ids_of(await read(engine, 7, 4, 4)) == [4]
    assert (await read(engine, 7, 5, 5)).stopped_by is Status.NO_SUCH_ENTRY
    await add(engine, 7, [5], recovery=True)
    await add(engine, 7, [4], recovery=True, salt=1)
    replaced = await read(engine, 7, 4, 4)
    await engine.checkpoint()
    assert ids_of(await read(engine, 7, 4, 6)) == [4, 5, 6]
    after = await read(engine, 7, 4, 4)
    assert after.batch is not None
    assert replaced.batch is not None
    assert bytes(after.batch.payload) == bytes(replaced.batch.payload)
    # A look-up that began before the checkpoint ends after it, and leaves nothing old behind.
    await add(engine, 9, range(10))
    await engine.checkpoint()
    machine.store.read_gate = gate = Hold("read", "index")
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(read(engine, 9, 0, 9))
        try:
            await until(gate.reached.is_set)
            await add(engine, 9, range(10, 20))
            await engine.checkpoint()
        finally:
            gate.release()
    assert ids_of(looking.result()) == list(range(10))
    assert ids_of(await read(engine, 9, 0, 19)) == list(range(20))


async def test_a_hole_that_is_filled_during_the_look_up_is_no_error(
    machine: Machine, engine: Engine
) -> None:
    """Its page was read before, and the ledger's row, which counts all entries, after."""
    await add(engine, 7, [0, 2])
    await engine.checkpoint()
    machine.store.read_gate = gate = Hold("read", "index")
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(read(engine, 7, 1, 1))
        try:
            await until(gate.reached.is_set)
            await add(engine, 7, [1], recovery=True)
            await engine.checkpoint()
        finally:
            gate.release()
    assert ids_of(looking.result()) == [1]
    assert ids_of(await read(engine, 7, 0, 2)) == [0, 1, 2]


async def test_behind_the_last_entry_the_index_is_not_asked(
    machine: Machine, engine: Engine
) -> None:
    """A reader that follows a ledger asks there again and again."""
    await add(engine, 7, range(64))
    await engine.checkpoint()
    assert ids_of(await read(engine, 7, 0, MAX_ID)) == list(range(64))
    machine.store.read_gate = gate = Hold("read", "index")
    try:
        async with asyncio.timeout(60):
            result = await read(engine, 7, 60, MAX_ID)
            assert (ids_of(result), result.stopped_by) == ([60, 61, 62, 63], Status.NO_SUCH_ENTRY)
            assert result.next_entry_id == 64
            for first, last in ((64, 64), (64, 10**6), (1000, MAX_ID), (MAX_ID, MAX_ID)):
                result = await read(engine, 7, first, last)
                assert (result.batch, result.stopped_by) == (None, Status.NO_SUCH_ENTRY)
                assert result.next_entry_id == first
            result = await read(engine, 7, 62, MAX_ID, stripe=Stripe(2, 0, 1))
            assert (ids_of(result), result.stopped_by) == ([62], Status.NO_SUCH_ENTRY)
            assert result.next_entry_id == 64
            # And what is in the memtable is found without the index, up to the end.
            await add(engine, 7, range(64, 200))
            assert ids_of(await read(engine, 7, 64, MAX_ID)) == list(range(64, 200))
    finally:
        gate.release()
