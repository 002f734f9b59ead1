"""The start of a bookie as a whole, and what happens if it may have lost data."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable

import pytest

from bookie.config import NodeSettings
from bookie.errors import CookieError, DirectoryLockedError, MetadataUnavailableError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node.disk_watch import DISK_USAGE, DiskWatch
from bookie.node.engine.directories import Directories, locked_directories
from bookie.node.engine.engine import DEVICE_FULL
from bookie.node.start import StartedBookie
from tests.unit.node.engine.machine import MIB, Machine, Snapshots
from tests.unit.node.node_room import Room, add, ids_of, read
from tests.unit.node.started_bookie import metadata, stamped, started

UNKNOWN = Status.UNKNOWN_LEDGER_STATE


async def write_ledgers(store: MetadataStore) -> None:
    """One for each way in which a ledger can name a bookie."""
    manager = LedgerManager(store)
    us, other = ("b1", "b2"), ("b2", "b3")
    for ledger in (
        metadata(1, LedgerState.OPEN, us),
        metadata(2, LedgerState.OPEN, other, us),
        metadata(3, LedgerState.IN_RECOVERY, us),
        metadata(4, LedgerState.CLOSED, us),
        metadata(5, LedgerState.OPEN, us, other),
        metadata(6, LedgerState.OPEN, other),
    ):
        await manager.create(ledger)


NAMED = {1, 2, 3, 4, 5}


async def test_a_start_in_order_serves_what_was_stored(
    machine: Machine, store: MetadataStore
) -> None:
    """And nothing is in limbo."""
    await stamped(machine, store)
    await write_ledgers(store)
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
        assert not one.engine.needs_integrity_check
    async with started(machine, store) as again:
        assert again.engine.report.clean
        assert ids_of(await read(again.bookie, 1, 0, 9)) == [0, 1, 2]
        assert (await read(again.bookie, 1, 5, 5)).status is Status.NO_SUCH_ENTRY
        assert (await add(again.bookie, 1, [3])).status is Status.OK


@pytest.mark.parametrize(
    "point", ["cookie.after_directory", "cookie.before_ready", "cookie.after_ready"]
)
@pytest.mark.parametrize("index", ["as it is", "torn"])
async def test_a_first_start_that_was_interrupted_has_lost_nothing(
    machine: Machine, store: MetadataStore, point: str, index: str
) -> None:
    """Stopped before and after the cookie says that the bookie is ready."""

    def interrupt(name: str) -> None:
        if name == point:
            raise RuntimeError("killed here")

    machine.failpoints = Snapshots(interrupt)
    with pytest.raises(RuntimeError, match="killed here"):
        async with started(machine, store):
            pass
    if index == "torn" and point == "cookie.before_ready":
        # The size of a new index may be durable before its bytes are.
        (machine.index / "data.mdb").write_bytes(bytes(8192))
    machine.failpoints = Snapshots(lambda name: None)
    async with started(machine, store) as one:
        assert one.engine.report.corrupt == ()
        assert not one.engine.needs_integrity_check
        assert (await add(one.bookie, 1, range(3))).status is Status.OK


async def lose(machine: Machine, part: str) -> None:
    """The damage that a disk may do to a stopped bookie."""
    match part:
        case "index":
            shutil.rmtree(machine.index)
        case "everything but the cookies":
            for directory in (machine.index, machine.logs):
                shutil.rmtree(directory)
            for path in machine.journals():
                path.unlink()
        case _:
            path = machine.journals()[-1]
            data = bytearray(path.read_bytes())
            at = data.index(b"2/0/0:")
            data[at] ^= 1
            path.write_bytes(data)


@pytest.mark.parametrize("part", ["index", "everything but the cookies", "a block"])
async def test_lost_data_puts_ledgers_in_limbo_before_anybody_is_served(
    machine: Machine, store: MetadataStore, part: str
) -> None:
    """Every ledger that names this bookie, under a new incarnation; nothing is fenced."""
    await stamped(machine, store)
    await write_ledgers(store)
    async with started(machine, store) as one:
        for ledger_id in range(1, 7):
            await add(one.bookie, ledger_id, range(3))
            await add(one.bookie, ledger_id, [3])
        before = one.bookie.incarnation
        killed = machine.killed("kill")
    # The cookies name the directories, so the bookie comes back to the same place.
    shutil.rmtree(machine.root)
    shutil.move(killed.root, machine.root)
    await lose(machine, part)
    incarnations = []
    for _ in range(2):
        async with started(machine, store) as after:
            assert after.engine.needs_integrity_check
            incarnations.append(after.bookie.incarnation)
            for ledger_id in range(1, 7):
                status = (await read(after.bookie, ledger_id, 50, 50)).status
                assert (status is UNKNOWN) is (ledger_id in NAMED)
                assert (await add(after.bookie, ledger_id, [60])).status is Status.OK
                if part == "index":
                    assert ids_of(await read(after.bookie, ledger_id, 0, 3)) == [0, 1, 2, 3]
            await lose_nothing_more(after)
    assert len({before, *incarnations}) == 2, "one doubt, one renewal"


async def lose_nothing_more(after: StartedBookie) -> None:
    """Limbo is durable: it needs no second listing."""
    for ledger_id in NAMED:
        assert (await after.engine.load(ledger_id)).limbo


async def test_a_bookie_that_nobody_names_has_lost_nothing(
    machine: Machine, store: MetadataStore
) -> None:
    """There is nothing to check, so the suspicion ends with the first look."""
    await LedgerManager(store).create(metadata(6, LedgerState.OPEN, ("b2", "b3")))
    async with started(machine, store):
        pass
    await lose(machine, "everything but the cookies")
    async with started(machine, store) as after:
        assert after.engine.report.corrupt
        assert not after.engine.needs_integrity_check
    async with started(machine, store) as after:
        assert not after.engine.report.corrupt


async def test_without_a_complete_listing_nobody_is_served(
    machine: Machine, store: MetadataStore
) -> None:
    """It is tried again by the next start."""

    class Unreachable(LedgerManager):
        def list_readable(
            self, on_damaged: Callable[[int], object], after: int = -1
        ) -> AsyncIterator[Versioned[LedgerMetadata]]:
            raise MetadataUnavailableError("the metadata store does not answer")

    await write_ledgers(store)
    async with started(machine, store):
        pass
    await lose(machine, "everything but the cookies")
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as caught:
            async with started(machine, store, Unreachable(store)):
                pass
        assert caught.group_contains(MetadataUnavailableError)
    async with started(machine, store) as after:
        assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN


async def test_directories_are_locked_before_anything_is_read(
    machine: Machine, store: MetadataStore
) -> None:
    """A second process gets no further."""
    async with started(machine, store):
        with pytest.raises(DirectoryLockedError):
            async with started(machine, store):
                pass


async def test_a_foreign_cookie_stops_the_start(machine: Machine, store: MetadataStore) -> None:
    """Before the engine touches a file."""
    async with started(machine, store):
        pass
    (machine.journal / "COOKIE").unlink()
    machine.disk.calls.clear()
    with pytest.raises(CookieError):
        async with started(machine, store):
            pass
    assert not [c for c in machine.disk.calls if c.name in ("create", "pwritev", "unlink")]


async def always() -> bool:
    return True


async def test_a_device_that_fills_up_turns_read_only_and_back(room: Room) -> None:
    """Between the two thresholds it stays as it is; a device that was full takes entries again."""
    usage = room.machine.disk.usage(str(room.machine.root))
    watch = DiskWatch(
        room.bookie,
        room.engine,
        NodeSettings(disk_usage_max=0.95, disk_usage_low_watermark=0.90),
        room.machine.metrics,
        lambda: {"ledgers": room.machine.disk.usage(str(room.machine.root))},
        always,
    )
    for free, read_only in ((0.2, False), (0.07, False), (0.04, True), (0.07, True), (0.11, False)):
        room.machine.disk.free_bytes = round(usage.total_bytes * free)
        await watch.look()
        assert room.bookie.read_only is read_only, free
        assert (DISK_USAGE in room.bookie.read_only_reasons()) is read_only
        status = (await add(room.bookie, 7, [round(free * 100)])).status
        assert status is (Status.READ_ONLY if read_only else Status.OK)
    room.engine.read_only_reasons.add("device full")
    await watch.look()
    assert not room.bookie.read_only


async def test_a_small_device_stays_read_only_until_the_next_file_fits(room: Room) -> None:
    """However small the share in use: it would turn back and forth with every look."""
    machine = room.machine
    directories = Directories(machine.disk, machine.settings)

    async def has_room() -> bool:
        return directories.has_room(machine.settings.journal_step_bytes)

    watch = DiskWatch(
        room.bookie,
        room.engine,
        NodeSettings(disk_usage_max=1, disk_usage_low_watermark=1),
        room.machine.metrics,
        lambda: {"journal": room.machine.disk.usage(str(room.machine.root))},
        has_room,
    )
    assert machine.settings.journal_step_bytes == MIB
    room.engine.read_only_reasons.add(DEVICE_FULL)
    for free, read_only in ((MIB - 1, True), (MIB, False)):
        room.machine.disk.free_bytes = free
        await watch.look()
        assert room.bookie.read_only is read_only


async def test_a_reserve_that_a_start_gave_up_is_made_again(
    machine: Machine, store: MetadataStore
) -> None:
    """As soon as there is room, although the bookie was never read-only."""
    machine.changes |= {"reserve_bytes": 4 * MIB}
    machine.disk.free_bytes = 8 * MIB - 1
    reserve = machine.root / "ledgers" / "RESERVE"
    async with started(machine, store) as one:
        one.watch.settings = NodeSettings(disk_usage_max=1, disk_usage_low_watermark=1)
        await one.watch.look()
        assert not reserve.exists()
        machine.disk.free_bytes = 9 * MIB
        await one.watch.look()
        assert reserve.stat().st_size == 4 * MIB


def test_a_reserve_that_is_there_is_not_wanted_twice(machine: Machine) -> None:
    """A device whose reserve nobody needed has as much room as one that gave it up."""
    machine.changes |= {"reserve_bytes": 4 * MIB}
    disk = machine.disk
    with locked_directories(disk, machine.settings) as directories:
        for free, has_room in ((9 * MIB - 1, False), (9 * MIB, True)):
            disk.free_bytes = free
            assert directories.has_room(MIB) is has_room
        directories.make_reserve()
        for free, has_room in ((5 * MIB - 1, False), (5 * MIB, True)):
            disk.free_bytes = free
            assert directories.has_room(MIB) is has_room
        directories.release_reserve()
        assert not directories.has_room(MIB)
