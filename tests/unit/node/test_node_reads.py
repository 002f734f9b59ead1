"""Reads and listings: what is returned, what each refusal speaks about, and doubt in limbo."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from bookie.config import NodeSettings
from bookie.entry.entry import parse_header
from bookie.errors import BadRequestError, NoSuchLedgerError, StorageFailedError
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.node.bookie import Bookie
from bookie.node.reads import STRIPE_MODULUS_MAX
from bookie.wire.commands import ReadCommand, ReadReply
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import KEY, KIB, OTHER_KEY, Machine, batch, start_add
from tests.unit.node.node_room import Room, add, add_command, ids_of, read, read_command, serving

OK, NO_SUCH_ENTRY, UNKNOWN = Status.OK, Status.NO_SUCH_ENTRY, Status.UNKNOWN_LEDGER_STATE


def verdict(reply: ReadReply) -> tuple[Status, list[int], int, Status]:
    """Status, ids, and what stopped the read where."""
    return reply.status, ids_of(reply), reply.next_entry_id, reply.stopped_by


async def limbo(room: Room, ledger_id: int, *, in_limbo: bool = True) -> None:
    """Put a ledger in limbo, or take it out."""
    state = await room.engine.load(ledger_id)
    outcome = await room.engine.set_limbo(state, in_limbo=in_limbo)
    assert outcome.status is OK


async def listed(bookie: Bookie, ledger_id: int, first: int = 0, last: int = NO_ENTRY) -> list[int]:
    """The ids that a listing names."""
    found: list[int] = []
    async for firsts, lasts in bookie.list_entries(ledger_id, first, last):
        for low, high in zip(firsts.tolist(), lasts.tolist(), strict=True):
            found += range(low, high + 1)
    return found


async def test_a_read_returns_up_to_a_hole_a_limit_or_the_end(room: Room) -> None:
    """And its verdict is about the next id."""
    await add(room.bookie, 7, [0, 1, 2, 5], lac=1)
    assert verdict(await read(room.bookie, 7, 0, 2)) == (OK, [0, 1, 2], 3, OK)
    assert verdict(await read(room.bookie, 7, 0, 9)) == (OK, [0, 1, 2], 3, NO_SUCH_ENTRY)
    assert verdict(await read(room.bookie, 7, 3, 9)) == (NO_SUCH_ENTRY, [], 3, NO_SUCH_ENTRY)
    limited = await room.bookie.read(read_command(7, 0, 9, max_entries=2))
    assert verdict(limited) == (OK, [0, 1], 2, OK)
    limited = await room.bookie.read(read_command(7, 0, 9, max_bytes=1))
    assert verdict(limited) == (OK, [0], 1, OK)
    assert limited.max_lac == 1


async def test_the_settings_bound_every_read(tmp_path: Path) -> None:
    """For any request."""
    settings = NodeSettings(read_entries_max=5, read_bytes_max=1000)
    async with serving(Machine(tmp_path / "m"), settings) as room:
        await add(room.bookie, 7, range(10))
        many = read_command(7, 0, 9, max_entries=10**6, max_bytes=10**9)
        assert ids_of(await room.bookie.read(many)) == list(range(5))
        waiter = await start_add(room.engine, batch(8, range(5), size=400))
        assert (await waiter).status is OK
        assert ids_of(await room.bookie.read(read_command(8, 0, 9, max_bytes=10**9))) == [0, 1]


async def test_a_stripe_is_read(room: Room) -> None:
    """The ids of a replica of a striped ledger, which has no others."""
    await add(room.bookie, 7, range(1, 30, 3))
    stripe = {"stripe_modulus": 3, "stripe_first_residue": 1, "stripe_count": 1}
    reply = await room.bookie.read(read_command(7, 0, 29, **stripe))
    assert ids_of(reply) == list(range(1, 30, 3))
    assert reply.stopped_by is OK
    reply = await room.bookie.read(read_command(7, 0, 40, **stripe))
    assert verdict(reply)[2:] == (31, NO_SUCH_ENTRY)


async def test_the_last_entry_is_asked_for_by_minus_one(room: Room) -> None:
    """For any other field of the request."""
    assert (await read(room.bookie, 7, -1, -1)).status is Status.NO_SUCH_LEDGER
    await room.bookie.fence(8, KEY)
    assert (await read(room.bookie, 8, -1, -1)).status is NO_SUCH_ENTRY
    await add(room.bookie, 7, [3, 9])
    assert ids_of(await read(room.bookie, 7, -1, -1)) == [9]
    assert ids_of(await room.bookie.read(read_command(7, -1, 5, stripe_modulus=4))) == [9]


@pytest.mark.parametrize(
    "changes",
    [
        {"ledger_id": -1},
        {"ledger_id": 2**63},
        {"first_entry_id": -2},
        {"first_entry_id": 5, "last_entry_id": 4},
        {"last_entry_id": 2**63},
        {"stripe_modulus": 3, "stripe_first_residue": 3, "stripe_count": 1},
        {"stripe_modulus": 3, "stripe_first_residue": -1, "stripe_count": 1},
        {"stripe_modulus": 3, "stripe_first_residue": 0, "stripe_count": 0},
        {"stripe_modulus": 3, "stripe_first_residue": 0, "stripe_count": 4},
        {"stripe_modulus": -3, "stripe_first_residue": 0, "stripe_count": 1},
        {"stripe_modulus": STRIPE_MODULUS_MAX + 1, "stripe_count": 1},
        {"max_entries": -1},
        {"max_bytes": -1},
        {"master_key": b"k" * 65},
    ],
    ids=str,
)
@pytest.mark.parametrize("fence", [False, True])
async def test_a_bad_range_is_refused_and_fences_nothing(
    room: Room, changes: dict[str, object], fence: bool
) -> None:
    """An invalid request has no effect."""
    await add(room.bookie, 7, range(3))
    reply = await room.bookie.read(
        read_command(7, 0, 2, fence=fence)._replace(**changes)  # type: ignore[arg-type]  # any
    )
    assert (reply.status, reply.batch) == (Status.BAD_REQUEST, None)
    assert (await add(room.bookie, 7, [3])).status is OK


async def test_a_negative_answer_is_about_the_first_wanted_id(room: Room) -> None:
    """Of an unknown ledger as of a known one, and of a stripe its own first id."""
    for ledger_id, status in ((7, Status.NO_SUCH_LEDGER), (8, NO_SUCH_ENTRY)):
        if ledger_id == 8:
            await room.bookie.fence(8, KEY)
        assert verdict(await read(room.bookie, ledger_id, 40, 50)) == (status, [], 40, status)
        stripe = {"stripe_modulus": 5, "stripe_first_residue": 3, "stripe_count": 1}
        reply = await room.bookie.read(read_command(ledger_id, 40, 50, **stripe))
        assert verdict(reply) == (status, [], 43, status)


async def test_limbo_has_no_negative_answer(room: Room) -> None:
    """Present entries are served; about everything else it does not know."""
    await add(room.bookie, 7, [0, 1, 4], lac=0)
    await limbo(room, 7)
    await limbo(room, 8)
    assert verdict(await read(room.bookie, 7, 0, 9)) == (OK, [0, 1], 2, UNKNOWN)
    assert verdict(await read(room.bookie, 7, 2, 9)) == (UNKNOWN, [], 2, UNKNOWN)
    assert verdict(await read(room.bookie, 8, 0, 9)) == (UNKNOWN, [], 0, UNKNOWN)
    for ledger_id in (7, 8):
        assert (await read(room.bookie, ledger_id, -1, -1)).status is UNKNOWN
        assert (await room.bookie.read_lac(ledger_id, b"")).status is UNKNOWN
        fenced = await room.bookie.fence(ledger_id, KEY)
        assert (fenced.status, fenced.fenced) == (UNKNOWN, True)
        command = read_command(ledger_id, 50, 50, fence=True)
        assert (await room.bookie.read(command)).status is UNKNOWN
        assert (await add(room.bookie, ledger_id, [9])).status is Status.FENCED
        assert (await add(room.bookie, ledger_id, [9], recovery=True)).status is OK
    assert verdict(await read(room.bookie, 8, 9, 9)) == (OK, [9], 10, OK)


async def test_what_was_removed_is_not_denied(room: Room) -> None:
    """Not by a read, nor by an answer about the end; also after a crash, and when it is back."""
    await add(room.bookie, 7, [0, 1, 4], lac=0)
    await room.engine.remove_copies(7, KEY, lambda: True)
    async with serving(room.machine.without_power("off")) as after:
        for bookie in (room.bookie, after.bookie):
            assert verdict(await read(bookie, 7, 0, 9)) == (UNKNOWN, [], 0, UNKNOWN)
            assert (await read(bookie, 7, -1, -1)).status is UNKNOWN
            assert (await bookie.read_lac(7, b"")).status is UNKNOWN
            fenced = await bookie.fence(7, KEY)
            assert (fenced.status, fenced.fenced) == (UNKNOWN, True)
            reply = bookie.try_read(one_of(7, 5))
            assert reply is not None
            assert verdict(reply) == (UNKNOWN, [], 5, UNKNOWN)
            assert (await add(bookie, 7, [0], recovery=True)).status is OK
            assert verdict(await read(bookie, 7, 0, 9)) == (OK, [0], 1, UNKNOWN)


async def test_limbo_outlives_the_process_until_it_is_ended(room: Room) -> None:
    """The fence that came with it stays."""
    await add(room.bookie, 7, [0])
    await limbo(room, 7)
    async with serving(room.machine.without_power("off")) as after:
        assert (await read(after.bookie, 7, 1, 1)).status is UNKNOWN
        await limbo(after, 7, in_limbo=False)
        assert (await read(after.bookie, 7, 1, 1)).status is NO_SUCH_ENTRY
        assert (await add(after.bookie, 7, [1])).status is Status.FENCED
        async with serving(after.machine.without_power("again")) as again:
            assert (await read(again.bookie, 7, 1, 1)).status is NO_SUCH_ENTRY
            assert (await add(again.bookie, 7, [1])).status is Status.FENCED


async def test_what_cannot_be_read_is_an_error(room: Room) -> None:
    """For reads, last entries and fences; nothing of it is a negative."""
    await add(room.bookie, 7, range(3))
    await read(room.bookie, 7, 0, 0)  # opens the file
    for request in ("range", "last", "lac", "fence"):
        room.machine.disk.fail("pread_cached", ".journal", errno.EIO)
        match request:
            case "range":
                status = (await read(room.bookie, 7, 0, 2)).status
            case "last":
                status = (await read(room.bookie, 7, -1, -1)).status
            case "lac":
                status = (await room.bookie.read_lac(7, KEY)).status
            case _:
                status = (await room.bookie.fence(7, KEY)).status
        assert status is Status.IO_ERROR, request


async def test_what_is_at_hand_is_read_without_waiting(room: Room) -> None:
    """The same as by waiting, also what it denies; anything else has to wait."""
    bookie, disk = room.bookie, room.machine.disk
    reply = bookie.try_read(one_of(7, 0))
    assert reply is not None
    assert verdict(reply) == verdict(await bookie.read(one_of(7, 0)))
    room.engine._states.begin(MAX_ID)
    assert bookie.try_read(one_of(9, 0)) is None, "the index may have the ledger"
    await add(bookie, 7, [0, 1, 4], lac=0)
    await bookie.fence(8, KEY)
    assert bookie.try_read(one_of(7, 0)) is None, "the file has to be opened"
    assert (await read(bookie, 7, 0, 0)).status is OK
    assert bookie.try_read(one_of(7, 2)) is None, "the index may have the entry"
    for ledger_id, entry_id in ((7, 0), (7, 4), (7, 5), (8, 0)):
        command = one_of(ledger_id, entry_id)
        reply = bookie.try_read(command)
        assert reply is not None
        assert verdict(reply) == verdict(await bookie.read(command))
    for command in (
        read_command(7, 0, 0, master_key=OTHER_KEY),
        read_command(7, 0, 0, master_key=b"", fence=True),
        one_of(7, -1),
        one_of(7, 2**63),
        one_of(7, 0)._replace(last_entry_id=1),
        one_of(7, 0)._replace(stripe_modulus=1, stripe_count=1),
    ):
        assert bookie.try_read(command) is None
    await limbo(room, 7)
    reply = bookie.try_read(one_of(7, 5))
    assert reply is not None
    assert verdict(reply) == (UNKNOWN, [], 5, UNKNOWN)
    disk.cold = True
    assert bookie.try_read(one_of(7, 0)) is None
    assert ids_of(await bookie.read(one_of(7, 0))) == [0]
    disk.cold = False
    disk.fail("pread_cached", ".journal", errno.EIO)
    reply = bookie.try_read(one_of(7, 0))
    assert reply is not None
    assert verdict(reply) == (Status.IO_ERROR, [], 0, Status.IO_ERROR)
    bookie.stop_accepting()
    assert bookie.try_read(one_of(7, 0)) is None


def one_of(ledger_id: int, entry_id: int) -> ReadCommand:
    """A read of one entry without a key, as of a client in another language."""
    return ReadCommand(ledger_id, entry_id, entry_id, 1)


async def fill_and_refuse(room: Room, ledger_id: int) -> None:
    """Entries 0 to 2, and a refused add of entry 9 that left the bounds uncertain."""
    await add(room.bookie, ledger_id, range(3))
    room.machine.disk.fail("create", ".journal", errno.ENOSPC, times=1000)
    entry_id = 0
    while not room.bookie.read_only:
        waiter = await start_add(room.engine, batch(1, [entry_id], size=200 * KIB))
        await waiter
        entry_id += 1
    room.machine.disk.heal()
    room.engine.read_only_reasons.clear()
    room.machine.disk.fail("create", ".journal", errno.ENOSPC)
    waiter = await start_add(room.engine, batch(ledger_id, [9], size=200 * KIB))
    assert (await waiter).status is Status.READ_ONLY
    room.engine.read_only_reasons.clear()
    assert (await room.engine.load(ledger_id)).last_entry_id == 9


async def test_the_last_entry_is_not_one_that_was_refused(room: Room) -> None:
    """A full journal took it back."""
    await fill_and_refuse(room, 7)
    assert ids_of(await read(room.bookie, 7, -1, -1)) == [2]
    assert (await room.engine.load(7)).last_entry_id == 2


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
async def test_the_last_entry_is_not_one_that_was_refused_before_a_restart(
    tmp_path: Path, how: str
) -> None:
    """Its id is in the index; what asks for the last entry is answered all the same."""
    machine = Machine(tmp_path / "m")
    async with serving(machine) as room:
        await fill_and_refuse(room, 7)
        await room.engine.checkpoint()
        row = room.engine._booted.index.ledger(7)
        assert row is not None
        assert row.last_entry_id == 9
        if how != "stop":
            machine = machine.killed(how) if how == "kill" else machine.without_power(how)
    async with serving(machine) as room:
        for reply in (await room.bookie.read_lac(7, KEY), await room.bookie.fence(7, KEY)):
            assert reply.status is OK
            assert parse_header(reply.last_entry).entry_id == 2
        assert ids_of(await read(room.bookie, 7, -1, -1)) == [2]


async def test_a_row_may_be_durable_before_the_entries_it_counts(tmp_path: Path) -> None:
    """Deferred adds come while a checkpoint writes its rows, and the power fails behind it."""
    machine = Machine(tmp_path / "m")
    async with serving(machine) as room:
        await add(room.bookie, 7, range(3))
        await room.bookie.add(add_command(batch(8, [0]), deferred_sync=True))
        hold = machine.disk.hold("fdatasync", ".journal")
        async with asyncio.TaskGroup() as tasks:
            # The checkpoint has put its memtable aside, and waits for the journal's sync.
            tasks.create_task(room.engine.checkpoint())
            await asyncio.to_thread(hold.wait_reached)
            late = room.bookie.add(add_command(batch(7, [9]), deferred_sync=True))
            hold.release()
            assert (await late).status is OK
        row = room.engine._booted.index.ledger(7)
        assert row is not None
        assert row.last_entry_id == 9
        machine = machine.without_power("lost")
    async with serving(machine) as room:
        for reply in (await room.bookie.read_lac(7, KEY), await room.bookie.fence(7, KEY)):
            assert reply.status is OK
            assert parse_header(reply.last_entry).entry_id == 2


@pytest.mark.parametrize("entry_id", [5, 12])
async def test_entries_that_come_while_the_last_one_is_looked_for_are_not_lost(
    room: Room, entry_id: int
) -> None:
    """The bound is lowered only if nothing was added meanwhile, above it or below."""
    await fill_and_refuse(room, 7)
    await room.engine.checkpoint()
    gate = Hold("a read thread", "")
    async with asyncio.TaskGroup() as tasks:
        # The only read thread is busy, so that look-up and add wait, and then take turns.
        tasks.create_task(room.engine._env.workers.run("read", gate.pass_through))
        await asyncio.to_thread(gate.wait_reached)
        reading = tasks.create_task(read(room.bookie, 7, -1, -1))
        await asyncio.sleep(0)
        adding = tasks.create_task(add(room.bookie, 7, [entry_id]))
        await asyncio.sleep(0)
        gate.release()
    assert adding.result().status is OK
    assert ids_of(reading.result()) in ([2], [entry_id])
    assert (await room.engine.load(7)).last_entry_id >= entry_id
    assert ids_of(await read(room.bookie, 7, -1, -1)) == [entry_id]
    await room.engine.checkpoint()
    assert (await add(room.bookie, 7, [entry_id], salt=1)).status is Status.CONFLICT


async def test_listings_are_complete_or_raise(room: Room) -> None:
    """Of the entries of a ledger, in a range or to its end."""
    ids = [0, 1, 2, 7, 64, 65, 200, MAX_ID]
    await add(room.bookie, 7, ids[:5])
    await room.engine.checkpoint()
    await add(room.bookie, 7, ids[5:])
    assert await listed(room.bookie, 7) == ids
    assert await listed(room.bookie, 7, 2, 65) == [2, 7, 64, 65]
    assert await listed(room.bookie, 7, 3, 6) == []
    with pytest.raises(NoSuchLedgerError):
        await listed(room.bookie, 8)
    for ledger_id, first, last in ((-1, 0, 1), (2**63, 0, 1), (7, -1, 5), (7, 5, 4), (7, 0, 2**63)):
        with pytest.raises(BadRequestError):
            await listed(room.bookie, ledger_id, first, last)


async def test_ledgers_are_listed_in_pages(room: Room) -> None:
    """Those in memory and those in the index, ascending, deleted ones left out."""
    for ledger_id in (3, 1, 2**40):
        await add(room.bookie, ledger_id, range(4), lac=2)
    await room.engine.checkpoint()
    await room.bookie.fence(2, KEY)
    await add(room.bookie, MAX_ID, [5])
    await room.engine.delete(await room.engine.load(3), 1)
    pages = [page async for page in room.bookie.list_ledgers(-1)]
    rows = [row for page in pages for row in page]
    assert [row.ledger_id for row in rows] == [1, 2, 2**40, MAX_ID]
    one, two = rows[:2]
    assert (one.entries, one.first_entry_id, one.last_entry_id, one.max_lac) == (4, 0, 3, 2)
    assert (two.fenced, two.entries, two.last_entry_id) == (True, 0, NO_ENTRY)
    later = [row.ledger_id async for page in room.bookie.list_ledgers(2) for row in page]
    assert later == [2**40, MAX_ID]
    assert [page async for page in room.bookie.list_ledgers(MAX_ID)] == []
    for after in (-2, 2**63):
        with pytest.raises(BadRequestError):
            await anext(room.bookie.list_ledgers(after))


async def test_a_listing_of_many_ledgers_goes_on_from_page_to_page(room: Room) -> None:
    """Also through pages of which all ledgers are deleted."""
    for ledger_id in range(2500):
        state = await room.engine.load(ledger_id)
        room.engine.publish_lac(state, b"\0" * 20, KEY)
        if 500 <= ledger_id < 2200:
            state.deleted_at_ms = room.machine.clock.now_ms()
    await room.engine.checkpoint()
    found = [row.ledger_id async for page in room.bookie.list_ledgers(-1) for row in page]
    assert found == [*range(500), *range(2200, 2500)]


async def test_a_bookie_describes_itself(room: Room) -> None:
    """With the sizes of its device."""
    await add(room.bookie, 7, [0])
    await room.engine.checkpoint()
    info = await room.bookie.info()
    assert (info.bookie_id, info.ledgers, info.read_only) == ("b1", 1, False)
    assert 0 < info.free_bytes <= info.total_bytes


async def test_a_failed_engine_gives_no_negative_answer(tmp_path: Path) -> None:
    """Accepted entries without an answer may be on the disk."""
    machine = Machine(tmp_path / "m")
    replies: list[Status] = []
    errors: list[BaseException] = []
    try:
        async with serving(machine) as room:
            await add(room.bookie, 7, [0])
            await room.bookie.fence(7, KEY)
            machine.disk.fail("fdatasync", ".journal", errno.EIO)
            replies += [(await add(room.bookie, 7, [1], recovery=True)).status]
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
            commands = read_command(7, 1, 1), read_command(7, -1, -1)
            replies += [(await room.bookie.read(command)).status for command in commands]
            replies += [(await room.bookie.fence(7, KEY)).status]
            replies += [(await room.bookie.read_lac(7, KEY)).status]
    except* StorageFailedError as group:
        errors += group.exceptions
    assert replies == [Status.IO_ERROR] * 5
    assert errors
