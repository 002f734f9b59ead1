"""Devices without room under a real bookie: it turns read-only, keeps its word, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.ids import Status
from tests.fault.crash_harness import LedgerAtClient
from tests.system.devices import MIB, fill, memory, use_up_inodes, volume
from tests.system.driven_bookie import EXIT_DISK_FAILED, Client, DrivenBookie

ROOM_SECONDS_MAX = 120.0
"""A bookie looks every second whether there is room again."""

STORAGE = {
    "reserve_bytes": "12MiB",
    "checkpoint_journal_bytes": "5MiB",
    # Nothing makes room but the test.
    "journal_bytes_max": 0,
    "compaction_interval_seconds": 3600.0,
}
# The engine has to notice by itself: the watermarks stay out of the way.
LIMITS = {"disk_usage_max": 1.0, "disk_usage_low_watermark": 0.95}

LEDGERS = 12
"""Written until a device is full; most of them are then deleted."""

RECLAIMING = {**STORAGE, "compaction_interval_seconds": 0.2}
GARBAGE = {"interval_seconds": 0.3, "grace_seconds": 0.1}

EXIT_CONFIGURATION = 78

SMALL_BYTES, LARGE_BYTES = 64 * MIB, 300 * MIB


@dataclass(frozen=True)
class Places:
    """Where journal and ledgers are, and which of the two has no room to spare."""

    journal: Path
    ledgers: Path
    small: Path


@pytest.fixture(name="places")
def _places(request: pytest.FixtureRequest, ram: Path, tmp_path: Path) -> Iterator[Places]:
    with ExitStack() as stack:
        if request.param == "memory":
            small = stack.enter_context(memory(tmp_path / "small", SMALL_BYTES))
        else:
            small = stack.enter_context(volume(ram, "small", SMALL_BYTES)).path
        if request.param in ("memory", "both"):
            yield Places(small, small, small)
            return
        large = stack.enter_context(volume(ram, "large", LARGE_BYTES)).path
        journal, ledgers = (small, large) if request.param == "journal" else (large, small)
        yield Places(journal, ledgers, small)


@pytest.fixture(name="bookie")
async def _bookie(places: Places, tmp_path: Path) -> AsyncIterator[DrivenBookie]:
    bookie = DrivenBookie(tmp_path, places.journal, places.ledgers, storage=STORAGE, limits=LIMITS)
    await bookie.initialize()
    yield bookie
    await bookie.close()


@pytest.mark.parametrize("places", ["journal", "ledgers", "both"], indirect=True)
async def test_a_full_device_refuses_new_entries_and_nothing_else(
    places: Places, bookie: DrivenBookie
) -> None:
    """Reads, fences and recovery go on; a boot comes up; with room there are adds again."""
    await bookie.start()
    async with bookie.client() as client:
        old = [bookie.new_ledger() for _ in range(4)]
        for ledger in old:
            assert await client.add(ledger) is Status.OK
        junk = fill(places.small)
        # An index grows with each ledger, a journal with the bytes.
        if places.small == places.journal:
            assert await client.add_until_refused() is Status.READ_ONLY
        else:
            assert await client.add_ledgers_until_refused() is Status.READ_ONLY
        await goes_on(bookie, client, *old[:2])
        await says_why(bookie)
    await bookie.kill()
    await bookie.start()
    await bookie.verify()
    async with bookie.client() as client:
        await goes_on(bookie, client, *old[2:])
        junk.unlink()
        await takes_adds_again(client, bookie.new_ledger())
    assert await bookie.stop() == 0
    await bookie.start()
    await bookie.verify()
    assert await bookie.stop() == 0


async def goes_on(
    bookie: DrivenBookie, client: Client, fenced: LedgerAtClient, recovered: LedgerAtClient
) -> None:
    """What a bookie without room still does, out of its reserve."""
    assert await client.fence(fenced) is Status.OK
    for _ in range(20):
        assert await client.add(recovered, size=30_000, recovery=True) is Status.OK
    assert await client.fence(bookie.new_ledger()) is Status.OK
    await bookie.verify()


async def says_why(bookie: DrivenBookie) -> None:
    """A probe still sends readers, and people can see what is wrong."""
    wanted = ["read-only (device full): new entries are refused"]
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while (answer := await bookie.readiness())["remarks"] != wanted:  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.1)
    assert answer["ready"]


async def takes_adds_again(client: Client, ledger: LedgerAtClient) -> None:
    """Once there is room."""
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while (status := await client.add(ledger, size=30_000)) is Status.READ_ONLY:  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.1)
    assert status is Status.OK


@pytest.mark.parametrize("places", ["journal", "memory"], indirect=True)
async def test_the_reserve_ends_too(places: Places, bookie: DrivenBookie) -> None:
    """Then adds are refused with a clear word, and stored entries stay."""
    await bookie.start()
    async with bookie.client() as client:
        junk = fill(places.small)
        assert await client.add_until_refused() is Status.READ_ONLY
        assert await client.add_until_refused(recovery=True) is Status.READ_ONLY
        assert await client.add_until_refused(recovery=True, size=10) is Status.READ_ONLY
        assert await client.fence(bookie.new_ledger()) is Status.READ_ONLY
        await bookie.verify()
        await bookie.kill()
        assert await bookie.fails_to_start() == EXIT_CONFIGURATION
        junk.unlink()
        await bookie.start()
        await bookie.verify()
    async with bookie.client() as client:
        assert await client.add(bookie.new_ledger()) is Status.OK
    assert await bookie.stop() == 0


@pytest.mark.parametrize("places", ["journal"], indirect=True)
async def test_a_full_journal_moves_to_where_room_is(places: Places, bookie: DrivenBookie) -> None:
    """What fills the journal's device is data; compaction takes it to the other one."""
    moving = {
        "BOOKIE_STORAGE__JOURNAL_BYTES_MAX": "6MiB",
        "BOOKIE_STORAGE__COMPACTION_INTERVAL_SECONDS": "0.1",
    }
    await bookie.start(variables=moving)
    async with bookie.client() as client:
        ledger = bookie.new_ledger()
        while ledger.length < 3 * SMALL_BYTES // 2:
            await takes_adds_again(client, ledger)
    await bookie.verify()
    assert await bookie.stop() == 0


@pytest.mark.parametrize("at_once", [1, LEDGERS], ids=["dead-files", "partly-live-files"])
async def test_a_full_bookie_makes_room_by_itself(at_once: int, tmp_path: Path, ram: Path) -> None:
    """Ledgers are deleted elsewhere; their space comes back out of the reserve.

    It comes back a second time, when the bookie is killed in the middle of it. Written one after
    the other, ledgers leave files without anything alive in them. Written side by side, each of
    them is in every file, and something has to be moved before any file can go.
    """
    with volume(ram, "small", SMALL_BYTES) as small:
        bookie = DrivenBookie(
            tmp_path, small.path, small.path, storage=RECLAIMING, limits=LIMITS, garbage=GARBAGE
        )
        try:
            await bookie.initialize()
            await bookie.start()
            kept: list[LedgerAtClient] = []
            for killed in (False, True):
                made = await bookie.create_ledgers(LEDGERS)
                async with bookie.client() as client:
                    assert await fills(client, made, at_once) is Status.READ_ONLY
                moved = moved_bytes(bookie)
                gone, kept = kept + made[2::3] + made[1::3], made[::3]
                await bookie.delete_ledgers(gone)
                if killed:
                    await asyncio.sleep(bookie.random.uniform(0, 1))
                    await bookie.kill()
                    await bookie.start()
                async with bookie.client() as client:
                    await has_room_again(bookie)
                    await takes_adds_again(client, kept[0])
                if at_once > 1:
                    await moves_more(bookie, moved)
                await bookie.verify()
            await bookie.kill()
            await bookie.start()
            await bookie.verify()
            assert await bookie.stop() == 0
        finally:
            await bookie.close()


async def has_room_again(bookie: DrivenBookie) -> None:
    """Enough to be full once more, out of another reserve."""
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while (await bookie.readiness())["remarks"]:  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.1)
        while not (bookie.ledgers / "RESERVE").exists():  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.1)


async def fills(client: Client, ledgers: list[LedgerAtClient], at_once: int) -> Status:
    """Add to `at_once` ledgers in turns, then to the next ones, until an add is refused."""
    share = SMALL_BYTES // LEDGERS
    for start in range(0, len(ledgers), at_once):
        side_by_side = ledgers[start : start + at_once]
        while side_by_side[-1].length < share:
            for ledger in side_by_side:
                if (status := await client.add(ledger, size=30_000)) is not Status.OK:
                    return status
    raise AssertionError("there was room for everything")


async def moves_more(bookie: DrivenBookie, moved: int) -> None:
    """What made the room was a compaction, which may not be over yet."""
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while moved_bytes(bookie) <= moved:  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.1)


def moved_bytes(bookie: DrivenBookie) -> int:
    """What compactions moved, over all lives."""
    events = bookie.events()
    return sum(event["moved_bytes"] for event in events if event["event"] == "compacted")


async def test_a_device_without_inodes_is_full_too(tmp_path: Path, ram: Path) -> None:
    """There is room for bytes and for no new file."""
    with volume(ram, "small", SMALL_BYTES, make=("-N", "64")) as small:
        bookie = DrivenBookie(tmp_path, small.path, small.path, storage=STORAGE, limits=LIMITS)
        try:
            await bookie.initialize()
            await bookie.start()
            async with bookie.client() as client:
                old = [bookie.new_ledger() for _ in range(2)]
                for ledger in old:
                    assert await client.add(ledger) is Status.OK
                junk = use_up_inodes(small.path)
                assert await client.add_until_refused() is Status.READ_ONLY
                await goes_on(bookie, client, *old)
            await bookie.kill()
            junk.pop().unlink()
            junk.pop().unlink()
            await bookie.start()
            await bookie.verify()
            assert await bookie.stop() == 0
        finally:
            await bookie.close()


async def test_a_file_system_that_turns_read_only_is_a_failed_disk(
    tmp_path: Path, ram: Path
) -> None:
    """As ext4 does after an error of its own. Every entry that it takes is kept."""
    with volume(ram, "disk", LARGE_BYTES, options="errors=remount-ro") as disk:
        bookie = DrivenBookie(tmp_path, disk.path, disk.path)
        try:
            await bookie.initialize()
            assert await bookie.ends(meanwhile=disk.turn_read_only) == EXIT_DISK_FAILED
            disk.restore()
            await bookie.start()
            await bookie.verify()
            assert await bookie.stop() == 0
        finally:
            await bookie.close()
