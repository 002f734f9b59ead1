"""Accepting adds, fences and LACs: readable at once, durable before the answer, or refused."""

from __future__ import annotations

import asyncio
import errno

import pytest

from bookie.entry.entry import pack_lac
from bookie.ids import NO_ENTRY, Status
from bookie.node.engine.engine import DEVICE_FULL, Engine
from tests.unit.node.engine.machine import (
    DIGESTER,
    KEY,
    KIB,
    OTHER_KEY,
    Machine,
    add,
    assert_holds,
    batch,
    fence,
    ids_of,
    read,
    start_add,
    until,
)

OK, FENCED, CONFLICT = Status.OK, Status.FENCED, Status.CONFLICT


# --- E1, E2: readable at once, acknowledged once durable ------------------------------------


async def test_an_accepted_entry_is_readable_before_it_is_durable(
    machine: Machine, engine: Engine
) -> None:
    """It and the entries of its block are acknowledged only after the sync."""
    hold = machine.disk.hold("fdatasync", ".journal")
    waiter = await start_add(engine, batch(7, range(5)))
    assert_holds(await read(engine, 7, 0, 4), batch(7, range(5)))
    await asyncio.to_thread(hold.wait_reached)
    assert not waiter.done()
    assert_holds(await read(engine, 7, 0, 4), batch(7, range(5)))
    hold.release()
    assert (await waiter).status is OK
    assert_holds(await read(engine, 7, 0, 4), batch(7, range(5)))


async def test_what_gathers_behind_a_sync_is_one_block(machine: Machine, engine: Engine) -> None:
    """All of it is written and synced once, whatever ledger it belongs to."""
    hold = machine.disk.hold("fdatasync", ".journal")
    first = await start_add(engine, batch(1, [0]))
    await asyncio.to_thread(hold.wait_reached)
    waiters = [await start_add(engine, batch(ledger, [0])) for ledger in range(2, 12)]
    machine.disk.calls.clear()
    await asyncio.sleep(0)  # the journal learns of adds at the end of the loop's turn
    hold.release()
    for waiter in (first, *waiters):
        assert (await waiter).status is OK
    names = [name for name in machine.disk.names_called(".journal") if name != "pread_cached"]
    assert names == ["pwritev", "fdatasync"]


async def test_what_is_acknowledged_survives_a_power_cut(machine: Machine, engine: Engine) -> None:
    """Unsynced ones may be gone; deferred adds are durable only after a force."""
    await add(engine, 1, range(3))
    await add(engine, 2, range(3), deferred_sync=True)
    await add(engine, 3, range(3), deferred_sync=True)
    lost = machine.without_power("deferred")
    await engine.force()
    forced = machine.without_power("forced")
    async with lost.engine() as after:
        assert_holds(await read(after, 1, 0, 2), batch(1, range(3)))
        assert (await read(after, 2, 0, 2)).stopped_by is Status.NO_SUCH_ENTRY
        assert not after.report.corrupt
    async with forced.engine() as after:
        for ledger_id in (1, 2, 3):
            assert_holds(await read(after, ledger_id, 0, 2), batch(ledger_id, range(3)))


async def test_concurrent_first_sights_of_a_ledger_share_one_state(engine: Engine) -> None:
    """Two states of one ledger could disagree about its fence."""
    async with asyncio.TaskGroup() as tasks:
        loads = [tasks.create_task(engine.load(9)) for _ in range(10)]
    assert len({id(load.result()) for load in loads}) == 1


async def test_a_cancelled_waiter_cancels_no_write(machine: Machine, engine: Engine) -> None:
    """Its caller has gone; the entry is stored all the same."""
    hold = machine.disk.hold("fdatasync", ".journal")
    waiter = await start_add(engine, batch(7, [0]))
    await asyncio.to_thread(hold.wait_reached)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await waiter
    assert not waiter.done()
    hold.release()
    assert (await waiter).status is OK
    assert (await add(engine, 7, [1])).status is OK
    assert_holds(await read(engine, 7, 0, 1), batch(7, [0, 1]))


async def test_the_key_is_bound_at_first_sight(engine: Engine) -> None:
    """Another key is refused from then on, and stores nothing."""
    assert (await add(engine, 7, [0])).status is OK
    assert (await add(engine, 7, [1], key=OTHER_KEY)).status is Status.UNAUTHORIZED
    assert (await add(engine, 7, [1], key=OTHER_KEY, recovery=True)).status is Status.UNAUTHORIZED
    assert (await read(engine, 7, 1, 1)).stopped_by is Status.NO_SUCH_ENTRY


async def test_the_empty_key_is_a_key(engine: Engine) -> None:
    """A ledger without a password refuses clients that bring one."""
    assert (await add(engine, 7, [0], key=b"")).status is OK
    assert (await add(engine, 7, [1], key=KEY)).status is Status.UNAUTHORIZED
    assert (await add(engine, 7, [1], key=b"")).status is OK


# --- E3: fences -------------------------------------------------------------------------------


async def test_a_fence_is_durable_before_it_is_answered(machine: Machine, engine: Engine) -> None:
    """The second fencer waits for the first one's sync, and adds are refused at once."""
    await add(engine, 7, [0])
    hold = machine.disk.hold("fdatasync", ".journal")
    state = await engine.load(7)
    first = engine.fence(state, KEY)
    assert (await start_add(engine, batch(7, [1]))).result().status is FENCED
    await asyncio.to_thread(hold.wait_reached)
    second = engine.fence(state, KEY)
    assert not first.done()
    assert not second.done()
    hold.release()
    assert (await first).status is OK
    assert (await second).status is OK
    async with machine.without_power("off").engine() as after:
        assert (await add(after, 7, [1])).status is FENCED
        assert (await add(after, 7, [1], recovery=True)).status is OK


async def test_an_add_that_was_accepted_before_the_fence_stays(
    machine: Machine, engine: Engine
) -> None:
    """It may still be acknowledged, because every later read sees it."""
    hold = machine.disk.hold("fdatasync", ".journal")
    waiter = await start_add(engine, batch(7, [0]))
    state = await engine.load(7)
    fencing = engine.fence(state, KEY)
    await asyncio.to_thread(hold.wait_reached)
    assert ids_of(await read(engine, 7, 0, 0)) == [0]
    hold.release()
    assert (await fencing).status is OK
    assert (await waiter).status is OK


async def test_the_fence_of_a_ledger_never_stored_survives(machine: Machine) -> None:
    """A kill, a power cut, a checkpoint and an orderly stop."""
    async with machine.engine() as engine:
        assert (await fence(engine, 99)).status is OK
        machines = [machine.killed("kill"), machine.without_power("off")]
        await engine.checkpoint()
        machines += [machine.killed("kill-after"), machine.without_power("off-after"), machine]
    for after in machines:
        async with after.engine() as engine:
            assert (await add(engine, 99, [0])).status is FENCED
            assert (await add(engine, 99, [0], key=OTHER_KEY)).status is Status.UNAUTHORIZED


async def test_the_fence_of_an_idle_ledger_survives_a_checkpoint(machine: Machine) -> None:
    """The mark passes the fence's record, so the checkpoint must have taken the row."""
    async with machine.engine() as engine:
        await add(engine, 7, range(3))
        await engine.checkpoint()
        await fence(engine, 7)
        mark = engine.report
        assert mark.clean is False
        await engine.checkpoint()
        killed = machine.killed("kill")
    for after in (killed, machine):
        async with after.engine() as engine:
            assert engine.report.blocks == 0, "nothing was left to replay"
            assert (await add(engine, 7, [3])).status is FENCED


async def test_a_fence_between_swap_and_commit_is_not_lost(machine: Machine) -> None:
    """Its row goes with this checkpoint or the next, and its record is above the mark."""
    async with machine.engine() as engine:
        await add(engine, 7, range(3))
        hold = machine.disk.hold("fdatasync", ".journal")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine.checkpoint())
            # The barrier finds everything durable and needs no sync; the fence does.
            fencing = tasks.create_task(fence(engine, 7))
            await asyncio.to_thread(hold.wait_reached)
            hold.release()
        assert fencing.result().status is OK
        killed = machine.killed("kill")
        await engine.checkpoint()
        again = machine.killed("again")
    for after in (killed, again):
        async with after.engine() as engine:
            assert (await add(engine, 7, [3])).status is FENCED


async def fill_journal(machine: Machine, engine: Engine) -> None:
    """Until the next 100 KiB need a new file, which there is no room for."""
    while machine.journals()[-1].stat().st_size and not _is_nearly_full(machine, engine):
        await add(engine, 1, [(await engine.load(1)).last_entry_id + 1], size=50 * KIB)
    machine.disk.fail("create", ".journal", errno.ENOSPC, times=10_000)


def _is_nearly_full(machine: Machine, engine: Engine) -> bool:
    current = engine._booted.writer.current  # the position is nobody's business but this test's
    return current.end + 101 * KIB > machine.settings.journal_file_bytes_max


async def test_a_fence_that_was_refused_is_refused_to_every_fencer(
    machine: Machine, engine: Engine
) -> None:
    """The one who waited behind it hears no OK; the next one tries again."""
    await fill_journal(machine, engine)
    state = await engine.load(7)
    hold = machine.disk.hold("fdatasync", ".journal")
    blocker = await start_add(engine, batch(2, [0]))
    await asyncio.to_thread(hold.wait_reached)
    # A block that does not fit, with the fence in it.
    waiters = [await start_add(engine, batch(3, [i], size=90 * KIB)) for i in range(2)]
    big = await start_add(engine, batch(4, [0], size=100 * KIB), recovery=True)
    first, second = engine.fence(state, KEY), engine.fence(state, KEY)
    hold.release()
    assert (await blocker).status is OK
    outcomes = [(await waiter).status for waiter in (*waiters, big, first, second)]
    assert outcomes == [Status.READ_ONLY] * 5
    killed = machine.killed("kill")
    machine.disk.heal()
    assert (await engine.fence(state, KEY)).status is OK
    async with killed.engine() as after:
        assert not (await after.load(7)).fenced, "the refused fence had not been stored"
    async with machine.killed("fenced").engine() as after:
        assert (await after.load(7)).fenced


# --- E6: duplicates ---------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_equal_bytes_are_acknowledged_other_bytes_refused(
    machine: Machine, engine: Engine, checkpointed: bool
) -> None:
    """In memory, in the journal and in the index alike; a conflict is counted."""
    await add(engine, 7, range(10))
    if checkpointed:
        await engine.checkpoint()
    before = [path.read_bytes() for path in machine.journals()]
    assert (await add(engine, 7, range(10))).status is OK
    assert (await add(engine, 7, [3, 5])).status is OK
    assert [path.read_bytes() for path in machine.journals()] == before, "nothing was stored again"
    refused = await add(engine, 7, [3], salt=1)
    assert refused.status is CONFLICT
    assert "between 3 and 3" in refused.message
    assert (await add(engine, 7, range(8, 13), salt=1)).status is CONFLICT
    assert machine.metrics.errors_total.labels("conflict")._value.get() == 2
    assert_holds(await read(engine, 7, 0, 12), batch(7, range(10)))


async def test_a_batch_that_is_stored_in_part_is_completed(engine: Engine) -> None:
    """A resend may cover what arrived and what did not."""
    await add(engine, 7, [2, 3, 7])
    await engine.checkpoint()
    await add(engine, 7, [4])
    assert (await add(engine, 7, range(10))).status is OK
    assert_holds(await read(engine, 7, 0, 9), batch(7, range(10)))
    assert (await engine.load(7)).last_entry_id == 9


async def test_a_duplicate_waits_until_the_first_copy_is_durable(
    machine: Machine, engine: Engine
) -> None:
    """Equal bytes in the queue are no reason for an OK yet."""
    hold = machine.disk.hold("fdatasync", ".journal")
    first = await start_add(engine, batch(7, [0]))
    await asyncio.to_thread(hold.wait_reached)
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(add(engine, 7, [0]))
        other = tasks.create_task(add(engine, 7, [0], salt=1))
        assert (await other).status is CONFLICT
        assert not again.done()
        hold.release()
    assert again.result().status is OK
    assert (await first).status is OK


async def test_a_duplicate_of_a_deferred_add_is_durable(machine: Machine, engine: Engine) -> None:
    """Its OK promises more than that of the first copy."""
    await add(engine, 7, [0], deferred_sync=True)
    assert (await add(engine, 7, [0])).status is OK
    async with machine.without_power("off").engine() as after:
        assert ids_of(await read(after, 7, 0, 0)) == [0]


async def test_a_duplicate_of_a_refused_add_is_not_acknowledged(
    machine: Machine, engine: Engine
) -> None:
    """It waited for a copy that the full journal then refused: there is nothing to acknowledge."""
    await fill_journal(machine, engine)
    hold = machine.disk.hold("fdatasync", ".journal")
    blocker = await start_add(engine, batch(2, [0]))
    await asyncio.to_thread(hold.wait_reached)
    refused = await start_add(engine, batch(7, [0], size=200 * KIB))
    async with asyncio.TaskGroup() as tasks:
        again = tasks.create_task(add(engine, 7, [0], size=200 * KIB))
        await until(lambda: not engine._queue.pending[-1].size_bytes)  # it stands in the queue
        hold.release()
    assert (await blocker).status is OK
    assert (await refused).status is Status.READ_ONLY
    assert again.result().status is Status.READ_ONLY
    assert DEVICE_FULL in engine.read_only_reasons
    assert (await read(engine, 7, 0, 0)).stopped_by is Status.NO_SUCH_ENTRY


async def test_concurrent_adds_of_one_entry_leave_one_of_them(
    machine: Machine, engine: Engine
) -> None:
    """The first accepted request decides; equal ones are acknowledged, the other is refused."""
    await add(engine, 7, [9])
    for size in (40, 10_000):
        async with asyncio.TaskGroup() as tasks:
            racing = [
                tasks.create_task(add(engine, 7, [size % 7, 8], salt=salt, size=size))
                for salt in (1, 2, 1)
            ]
        statuses = [task.result().status for task in racing]
        if size == 40:
            assert statuses == [OK, CONFLICT, OK]
            assert_holds(await read(engine, 7, 8, 8), batch(7, [8], salt=1))
        else:
            assert statuses == [CONFLICT] * 3, "entry 8 is stored already"


async def test_a_recovery_add_overwrites(engine: Engine) -> None:
    """The newest copy is read, in memory and after the checkpoint; the old one stops counting."""
    await add(engine, 7, range(10))
    await engine.checkpoint()
    live = {n: row.live_bytes for n, row in engine._booted.index.files().items()}
    await fence(engine, 7)
    assert (await add(engine, 7, [3, 4], recovery=True, salt=1)).status is OK
    expected = [
        batch(7, range(3)),
        batch(7, [3, 4], salt=1),
        batch(7, range(5, 10)),
    ]
    for _ in range(2):
        result = await read(engine, 7, 0, 9)
        assert result.batch is not None
        assert bytes(result.batch.payload) == b"".join(bytes(part.payload) for part in expected)
        await engine.checkpoint()
    row = engine._booted.index.ledger(7)
    assert row is not None
    assert (row.entries, row.payload_bytes) == (10, sum(len(part.payload) for part in expected))
    after = {n: row.live_bytes for n, row in engine._booted.index.files().items()}
    assert sum(after.values()) == row.payload_bytes
    assert sum(live.values()) == len(batch(7, range(10)).payload)


async def test_above_the_highest_id_nothing_is_compared(machine: Machine, engine: Engine) -> None:
    """The adds of a writer that never resends cause zero reads."""
    await add(engine, 7, range(10))
    state = await engine.load(7)
    assert not state.may_hold(batch(7, [10]))
    assert state.may_hold(batch(7, [9, 10]))


# --- explicit LAC -----------------------------------------------------------------------------


async def test_a_lac_is_known_at_once_and_never_moves_back(machine: Machine) -> None:
    """Also not when the journal is replayed and holds an older one behind it."""
    packets = {lac: pack_lac(7, lac, DIGESTER) for lac in (3, 5)}
    async with machine.engine() as engine:
        await add(engine, 7, range(8))
        state = await engine.load(7)
        for lac in (5, 3):
            engine.publish_lac(state, packets[lac], KEY)
            assert (state.lac_packet, state.max_lac) == (packets[5], 5)
        await engine.force()
        killed = machine.killed("kill")
    for after in (killed, machine):
        async with after.engine() as engine:
            state = await engine.load(7)
            assert (state.lac_packet, state.max_lac) == (packets[5], 5)


async def test_a_lac_is_journalled_with_the_next_block(machine: Machine, engine: Engine) -> None:
    """It costs no block of its own; once the next entries are durable, so is it."""
    await add(engine, 7, range(8))
    packet = pack_lac(7, 5, DIGESTER)
    machine.disk.calls.clear()
    engine.publish_lac(await engine.load(7), packet, KEY)
    assert (await add(engine, 8, range(3))).status is OK
    names = [name for name in machine.disk.names_called(".journal") if name != "pread_cached"]
    assert names == ["pwritev", "fdatasync"]
    async with machine.killed("kill").engine() as after:
        assert (await after.load(7)).lac_packet == packet


async def test_a_lac_that_nothing_follows_is_journalled_when_it_is_quiet(machine: Machine) -> None:
    """And vouched for, so that it is durable; also when the last block was vouched for before."""
    machine.changes = {"idle_marker_seconds": 0.01}
    async with machine.engine() as engine:
        await add(engine, 7, range(8))
        await until(lambda: engine._has_marker and not engine._queue.pending)
        packet = pack_lac(7, 5, DIGESTER)
        engine.publish_lac(await engine.load(7), packet, KEY)
        await until(lambda: not engine._queue.postponed and not engine._queue.pending)
        killed = machine.killed("kill")
    killed.changes = {}
    async with killed.engine() as after:
        assert (await after.load(7)).lac_packet == packet


async def test_the_highest_lac_in_packets_survives(machine: Machine) -> None:
    """It is the hint that readers get."""
    async with machine.engine() as engine:
        await add(engine, 7, range(8), lac=4)
        assert (await engine.load(7)).max_lac == 4
        killed = machine.killed("kill")
    for after in (killed, machine):
        async with after.engine() as engine:
            assert (await engine.load(7)).max_lac == 4


async def test_keys_survive_a_refused_first_sight(machine: Machine, engine: Engine) -> None:
    """For any request that brought the key, even a refused one: entries keep their key."""
    await fill_journal(machine, engine)
    refused = await start_add(engine, batch(7, [0], size=200 * KIB))
    state = await engine.load(7)
    engine.publish_lac(state, pack_lac(7, NO_ENTRY, DIGESTER), KEY)
    stored = await start_add(engine, batch(7, [1]), recovery=True)
    assert (await refused).status is Status.READ_ONLY
    assert (await stored).status is OK
    async with machine.killed("kill").engine() as after:
        assert (await add(after, 7, [2], key=OTHER_KEY)).status is Status.UNAUTHORIZED
        assert (await add(after, 7, [2])).status is OK
