"""Reading: what is returned, where it stops, and that doubt differs from 'no such entry'."""

from __future__ import annotations

import asyncio
import errno

import pytest

from bookie.entry.batch import EntryBatch
from bookie.ids import MAX_ID, Status
from bookie.ledger.quorum import Stripe
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.pages import page_key
from tests.unit.node.engine.machine import (
    KIB,
    Machine,
    add,
    assert_holds,
    batch,
    fence,
    ids_of,
    read,
    stored_ids,
)

OK, IO_ERROR, NO_SUCH_ENTRY = Status.OK, Status.IO_ERROR, Status.NO_SUCH_ENTRY


@pytest.fixture(name="place", params=["memory", "index", "both"])
def _place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def store(engine: Engine, place: str, ledger_id: int, ids: list[int]) -> EntryBatch:
    """Store `ids` in the write cache, in the index, or half and half."""
    half = len(ids) // 2 if place == "both" else len(ids)
    await add(engine, ledger_id, ids[:half], size=100)
    if place != "memory":
        await engine.checkpoint()
    if ids[half:]:
        await add(engine, ledger_id, ids[half:], size=100)
    return batch(ledger_id, ids, size=100)


# --- what is returned -------------------------------------------------------------------------


async def test_a_range_is_returned_in_order(engine: Engine, place: str) -> None:
    """Whole, in part, and one entry alone."""
    expected = await store(engine, place, 7, list(range(200)))
    for first, last in ((0, 199), (0, 0), (63, 64), (100, 150), (199, 199)):
        result = await read(engine, 7, first, last)
        assert_holds(result, expected.clip(first, last))
        assert (result.stopped_by, result.next_entry_id) == (OK, last + 1)


async def test_a_hole_ends_a_read(engine: Engine, place: str) -> None:
    """Entries behind it are not returned, and the answer is about the hole itself."""
    await store(engine, place, 7, [0, 1, 2, 5, 6, 200])
    result = await read(engine, 7, 0, 200)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == (
        [0, 1, 2],
        NO_SUCH_ENTRY,
        3,
    )
    result = await read(engine, 7, 3, 200)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([], NO_SUCH_ENTRY, 3)
    result = await read(engine, 7, 5, 6)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([5, 6], OK, 7)
    result = await read(engine, 7, 199, 300)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([], NO_SUCH_ENTRY, 199)
    assert await stored_ids(engine, 7) == [0, 1, 2, 5, 6, 200]


async def test_limits_end_a_read_without_a_verdict(engine: Engine, place: str) -> None:
    """At entries, at bytes; one entry comes however large."""
    expected = await store(engine, place, 7, list(range(50)))
    size = int(expected.sizes[0])
    cases = [
        (10, 10**6, 10),
        (1, 1, 1),
        (50, size - 1, 1),
        (50, size, 1),
        (50, 2 * size - 1, 1),
        (50, 2 * size, 2),
        (3, 30 * size, 3),
        (50, 0, 1),
    ]
    for entries_max, bytes_max, count in cases:
        result = await read(engine, 7, 5, 49, entries_max=entries_max, bytes_max=bytes_max)
        assert ids_of(result) == list(range(5, 5 + count)), (entries_max, bytes_max)
        assert (result.stopped_by, result.next_entry_id) == (OK, 5 + count)


async def test_a_limit_before_a_hole_says_nothing_about_the_hole(engine: Engine) -> None:
    """And a hole right behind the limit is not looked for."""
    await add(engine, 7, [0, 1, 2, 9])
    result = await read(engine, 7, 0, 9, entries_max=2)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([0, 1], OK, 2)
    result = await read(engine, 7, 0, 9, entries_max=3)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([0, 1, 2], OK, 3)


@pytest.mark.parametrize("stripe", [Stripe(3, 1, 1), Stripe(5, 3, 3), Stripe(4, 0, 4)])
async def test_a_stripe_is_read_without_the_ids_of_others(
    engine: Engine, place: str, stripe: Stripe
) -> None:
    """Their ids are skipped silently. A missing id of its own is a hole."""

    def is_wanted(entry_id: int) -> bool:
        return (entry_id - stripe.first_residue) % stripe.modulus < stripe.count

    wanted = [i for i in range(300) if is_wanted(i)]
    await store(engine, place, 7, [i for i in wanted if i != wanted[40]])
    result = await read(engine, 7, 0, 299, stripe=stripe)
    assert ids_of(result) == wanted[:40]
    assert (result.stopped_by, result.next_entry_id) == (NO_SUCH_ENTRY, wanted[40])
    result = await read(engine, 7, wanted[41], 299, stripe=stripe, entries_max=7)
    assert ids_of(result) == wanted[41:48]
    assert result.stopped_by is OK
    assert wanted[47] < result.next_entry_id <= wanted[48]


async def test_a_stripe_without_ids_in_the_range_is_empty(engine: Engine) -> None:
    """That is an end, not a hole."""
    await add(engine, 7, range(10))
    result = await read(engine, 7, 4, 5, stripe=Stripe(10, 8, 1))
    assert (result.batch, result.stopped_by, result.next_entry_id) == (None, OK, 6)


async def test_a_wide_stripe_looks_at_a_bounded_number_of_ids(engine: Engine) -> None:
    """A read of a few thousand ids of a stripe of a thousand must not block the loop."""
    await add(engine, 7, range(0, 150_000, 1000))
    result = await read(engine, 7, 0, MAX_ID, entries_max=65536, stripe=Stripe(1000, 0, 1))
    found = ids_of(result)
    assert 100 < len(found) < 150
    assert found == list(range(0, 1000 * len(found), 1000))
    assert result.stopped_by is OK
    rest = await read(engine, 7, result.next_entry_id, MAX_ID, stripe=Stripe(1000, 0, 1))
    assert ids_of(rest) == list(range(1000 * len(found), 150_000, 1000))
    assert (rest.stopped_by, rest.next_entry_id) == (NO_SUCH_ENTRY, 150_000)


async def test_the_largest_ids_are_ids_like_others(engine: Engine, place: str) -> None:
    """No sum wraps at the end of 64 bits."""
    ids = [MAX_ID - 70, *range(MAX_ID - 5, MAX_ID + 1)]
    await store(engine, place, 7, ids)
    assert await stored_ids(engine, 7) == ids
    assert ids_of(await read(engine, 7, MAX_ID - 5, MAX_ID)) == ids[1:]
    result = await read(engine, 7, MAX_ID - 70, MAX_ID)
    assert (ids_of(result), result.stopped_by) == ([MAX_ID - 70], NO_SUCH_ENTRY)
    assert (await add(engine, 7, ids, size=100)).status is OK
    assert (await add(engine, 7, ids[3:], size=100, salt=1)).status is Status.CONFLICT
    assert (await engine.load(7)).last_entry_id == MAX_ID


async def test_ledgers_are_apart(engine: Engine, place: str) -> None:
    """Entries of one are not entries of its neighbours."""
    await store(engine, place, 7, [0, 1])
    for ledger_id in (6, 8, MAX_ID):
        assert (await read(engine, ledger_id, 0, 1)).stopped_by is NO_SUCH_ENTRY


async def test_what_is_not_in_memory_is_read_by_threads(machine: Machine, engine: Engine) -> None:
    """With the same result."""
    expected = await store(engine, "both", 7, list(range(200)))
    machine.disk.cold = True
    assert_holds(await read(engine, 7, 0, 199), expected)
    assert "pread" in machine.disk.names_called(".journal")


async def test_small_gaps_are_read_in_one_go(machine: Machine, engine: Engine) -> None:
    """A stripe of small entries costs one read, entries far apart cost one each."""
    await add(engine, 7, range(100), size=100)
    await add(engine, 8, range(10), size=20 * KIB)
    await read(engine, 8, 0, 0)  # opens the file
    machine.disk.calls.clear()
    result = await read(engine, 7, 0, 99, stripe=Stripe(10, 0, 1))
    assert ids_of(result) == list(range(0, 100, 10))
    assert machine.disk.names_called(".journal").count("pread_cached") == 1
    machine.disk.calls.clear()
    result = await read(engine, 8, 0, 9, stripe=Stripe(5, 0, 1))
    assert ids_of(result) == [0, 5]
    assert machine.disk.names_called(".journal").count("pread_cached") == 2


# --- doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "pread", "pread_cached"])
async def test_an_entry_that_cannot_be_read_is_an_error(
    machine: Machine, engine: Engine, call: str, number: int
) -> None:
    """And nothing else is wrong: the next read succeeds."""
    await add(engine, 7, range(10))
    if call != "open":
        await read(engine, 7, 0, 0)
    machine.disk.cold = call == "pread"
    machine.disk.fail(call, ".journal", number)
    result = await read(engine, 7, 0, 9)
    assert (result.batch, result.stopped_by, result.next_entry_id) == (None, IO_ERROR, 0)
    assert "stored here" in result.message
    assert ids_of(await read(engine, 7, 0, 9)) == list(range(10))


async def test_what_could_be_read_before_the_error_is_returned(
    machine: Machine, engine: Engine
) -> None:
    """The error is about the first entry that could not."""
    await add(engine, 7, range(5), size=20 * KIB)
    await add(engine, 8, [0], size=20 * KIB)
    await add(engine, 7, range(5, 10), size=20 * KIB)
    await read(engine, 7, 0, 0)
    machine.disk.fail("pread_cached", ".journal", errno.EIO, passes=1)
    result = await read(engine, 7, 0, 9)
    assert (ids_of(result), result.stopped_by, result.next_entry_id) == (
        list(range(5)),
        IO_ERROR,
        5,
    )


async def test_other_bytes_in_its_place_are_an_error(machine: Machine, engine: Engine) -> None:
    """The entries before are returned; a packet of another ledger or entry is not."""
    await add(engine, 7, range(10))
    run = engine.admission.memtable.ledgers[7]._runs[0]
    starts = (run.starts() + run.offset).tolist()
    path = machine.journals()[0]
    for field_offset in (0, 8):
        whole = path.read_bytes()
        data = bytearray(whole)
        data[starts[4] + field_offset + 7] ^= 1
        path.write_bytes(data)
        result = await read(engine, 7, 0, 9)
        assert (ids_of(result), result.stopped_by, result.next_entry_id) == (
            [0, 1, 2, 3],
            IO_ERROR,
            4,
        )
        result = await read(engine, 7, 4, 9)
        assert (ids_of(result), result.stopped_by, result.next_entry_id) == ([], IO_ERROR, 4)
        path.write_bytes(whole)


async def test_an_entry_whose_page_is_lost_is_an_error(machine: Machine, engine: Engine) -> None:
    """If all around it are here: the row counts them. Beyond the last one nothing is lost."""
    for ledger_id in (7, 8):
        await add(engine, ledger_id, range(100, 200))
    await add(engine, 8, [300])
    await engine.checkpoint()
    with engine._booted.index.store.write() as txn:
        assert txn.delete("locations", page_key(7, 2))
        assert txn.delete("locations", page_key(8, 2))
    # A row's bounds include new entries only from the next checkpoint on.
    await add(engine, 7, [250])
    for first in (128, 150, 191):
        for last in (first, 260):
            result = await read(engine, 7, first, last)
            assert (result.batch, result.stopped_by) == (None, IO_ERROR)
    result = await read(engine, 7, 100, 260)
    assert ids_of(result) == list(range(100, 128))
    assert (result.stopped_by, result.next_entry_id) == (IO_ERROR, 128)
    for first in (0, 99, 200, 249, 251):
        assert (await read(engine, 7, first, first)).stopped_by is NO_SUCH_ENTRY
    assert (await read(engine, 8, 150, 150)).stopped_by is NO_SUCH_ENTRY


async def test_a_file_that_was_cut_off_is_an_error(machine: Machine, engine: Engine) -> None:
    """Missing bytes do not prove that the entry is missing."""
    await add(engine, 7, range(10))
    await engine.checkpoint()
    with machine.journals()[0].open("r+b") as file:
        file.truncate(4096 + 100)
    assert (await read(engine, 7, 0, 9)).stopped_by is IO_ERROR


async def test_a_file_that_is_gone_is_looked_up_once_more(machine: Machine, engine: Engine) -> None:
    """It was removed between the look-up and the read; if it is gone for good, that is an error."""
    await add(engine, 7, range(10))
    machine.disk.fail("open", ".journal", errno.ENOENT)
    assert ids_of(await read(engine, 7, 0, 9)) == list(range(10))
    engine._booted.files.remove(1)
    result = await read(engine, 7, 0, 9)
    assert (result.batch, result.stopped_by) == (None, IO_ERROR)


async def test_a_comparison_survives_a_file_that_is_gone(machine: Machine, engine: Engine) -> None:
    """It looks once more as a read does; if that fails too, the add is refused, nothing else."""
    await add(engine, 7, range(10))
    machine.disk.fail("open", ".journal", errno.ENOENT)
    assert (await add(engine, 7, range(10))).status is OK
    engine._booted.files.remove(1)
    with pytest.raises(Exception, match="cannot be read"):
        await add(engine, 7, range(10))


async def roll(engine: Engine) -> None:
    """Go on in another journal file."""
    before = engine._booted.writer.current.header.number
    while engine._booted.writer.current.header.number == before:
        state = await engine.load(1)
        await add(engine, 1, [state.last_entry_id + 1], size=200 * KIB)


async def test_a_second_look_sees_what_moved_meanwhile(machine: Machine, engine: Engine) -> None:
    """Not the memtables of the first look, whose places may be gone for good."""
    await add(engine, 7, [0], size=20 * KIB)
    await roll(engine)
    await add(engine, 7, [1], size=20 * KIB)
    second_file = engine._booted.writer.current.header.number
    machine.disk.cold = True
    hold = machine.disk.hold("pread", "00000001.journal")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(engine, 7, 0, 1))
        await asyncio.to_thread(hold.wait_reached)
        await roll(engine)
        await fence(engine, 7)
        await add(engine, 7, [1], recovery=True, size=20 * KIB, salt=1)
        await add(engine, 1, [10**6])
        await engine.delete(await engine.load(1), machine.clock.now_ms())
        await engine.checkpoint()
        assert engine._booted.files.path(second_file) is None
        hold.release()
    result = reading.result()
    assert ids_of(result) == [0, 1]
    assert result.batch is not None
    assert bytes(result.batch.packets()[1]) == bytes(batch(7, [1], size=20 * KIB, salt=1).payload)


async def test_a_cancelled_read_ends_with_what_the_device_reads_for_it(
    machine: Machine, engine: Engine
) -> None:
    """The bytes are in memory so long.

    A read that waits for a thread ends before it asks the device.
    """
    await store(engine, "index", 7, [0, 1, 2])
    machine.disk.cold = True
    hold = machine.disk.hold("pread", ".journal")
    async with asyncio.TaskGroup() as tasks:
        begun = tasks.create_task(read(engine, 7, 0, 0))
        await asyncio.to_thread(hold.wait_reached)
        waiting = [tasks.create_task(read(engine, 7, 1, last)) for last in (1, 2)]
        for _ in range(10):
            await asyncio.sleep(0)
        calls = machine.disk.names_called(".journal").count("pread")
        for reading in (begun, *waiting):
            reading.cancel()
        await asyncio.wait(waiting)
        ended = begun.done()
        hold.release()
        await asyncio.wait((begun,))
    assert not ended
    assert begun.cancelled()
    assert machine.disk.names_called(".journal").count("pread") == calls
    assert_holds(await read(engine, 7, 0, 2), batch(7, [0, 1, 2], size=100))
