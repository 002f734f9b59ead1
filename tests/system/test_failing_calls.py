"""System calls that fail under a real bookie, answered by strace in the kernel's place.

Each fault ends the process with the status of a failed disk; a full device turns it read-only. The
next start without strace finds everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.ids import Status
from tests.system.driven_bookie import EXIT_DISK_FAILED, DrivenBookie

WRITES = "write,pwrite64,pwritev,pwritev2"
SYNCS = "fsync,fdatasync"
NUMBERS = range(1, 100)
SLOW_SECONDS_MAX = 120.0


@dataclass(frozen=True)
class Fault:
    """What happens to calls on some files."""

    calls: str
    answer: str
    """As strace says it: an error or a delay, and which calls get it."""
    files: tuple[str, ...]

    def options(self, root: Path) -> list[str]:
        """For strace; the files are below `root`."""
        aimed = [word for name in self.files for word in ("-P", f"{root}/{name}")]
        return ["-e", f"trace={self.calls}", "-e", f"inject={self.calls}:{self.answer}", *aimed]


JOURNALS = tuple(f"journal/{number:08d}.journal" for number in NUMBERS)
NEW_JOURNALS = tuple(f"{name}.tmp" for name in JOURNALS)
INDEX = ("ledgers/index/data.mdb",)
LOGS = tuple(f"ledgers/logs/{number:08d}.log.tmp" for number in NUMBERS)
COOKIES = ("journal/COOKIE.tmp", "ledgers/COOKIE.tmp")

FATAL = {
    "journal": [
        Fault(SYNCS, "error=EIO:when=40", JOURNALS),
        Fault(WRITES, "error=EIO:when=30", JOURNALS),
        # Its space was allocated: there is no such thing as a full device here.
        Fault(WRITES, "error=ENOSPC:when=20", JOURNALS),
        Fault("ftruncate", "error=EIO:when=1", JOURNALS),
        # The check behind a sync: the file system failed meanwhile.
        Fault("fallocate", "error=EROFS:when=40", JOURNALS),
    ],
    "new journal": [
        Fault(WRITES, "error=EIO:when=1", NEW_JOURNALS),
        Fault(SYNCS, "error=EIO:when=2", ("journal",)),
        Fault("rename,renameat,renameat2", "error=EIO:when=2", NEW_JOURNALS),
    ],
    "index": [
        Fault(SYNCS, "error=EIO:when=7", INDEX),
        # The data pages of a commit go in one call where there are several; the meta page never.
        Fault("writev", "error=EIO:when=3", INDEX),
        Fault("pwrite64", "error=EIO:when=5+", INDEX),
        # The first one fails the meta page's write wherever a commit is at; behind a sync, no error
        # means a full device.
        Fault("pwrite64", "error=ENOSPC:when=5+", INDEX),
        Fault(SYNCS, "error=ENOSPC:when=7", INDEX),
        Fault("fallocate", "error=EROFS:when=3", INDEX),
    ],
    "replayed log": [
        Fault(WRITES, "error=EIO:when=1", LOGS),
        Fault(SYNCS, "error=EIO:when=1", LOGS),
    ],
}


@pytest.fixture(name="bookie")
async def _bookie(tmp_path: Path, ram: Path) -> AsyncIterator[DrivenBookie]:
    bookie = DrivenBookie(tmp_path, ram, ram)
    await bookie.initialize()
    yield bookie
    await bookie.close()


@pytest.mark.parametrize("target", FATAL)
async def test_a_failed_disk_ends_the_process(target: str, bookie: DrivenBookie, ram: Path) -> None:
    """With its own status; the next start is right, which the one after the next fault shows."""
    await starts_and_is_killed(bookie)
    for fault in FATAL[target]:
        assert await bookie.ends(fault.options(ram)) == EXIT_DISK_FAILED, fault
        await starts_and_is_killed(bookie)
    assert not {"corruption", "limbo"} & {event["event"] for event in bookie.events()}


async def starts_and_is_killed(bookie: DrivenBookie) -> None:
    """A life without faults, all promises kept, that leaves something to replay."""
    await bookie.start()
    await bookie.verify()
    async with bookie.client() as client:
        assert await client.add(bookie.new_ledger()) is Status.OK
    await bookie.kill()


async def test_a_failed_disk_before_the_bookie_has_its_identity(
    bookie: DrivenBookie, ram: Path
) -> None:
    """The first start of all goes on where it was cut off."""
    for calls in (WRITES, SYNCS):
        fault = Fault(calls, "error=EIO:when=1", COOKIES)
        assert await bookie.ends(fault.options(ram)) == EXIT_DISK_FAILED
    await starts_and_is_killed(bookie)


async def test_no_space_for_the_journal_is_read_only(bookie: DrivenBookie, ram: Path) -> None:
    """Allocating ahead is where a full device shows, and there nothing is lost by it."""
    fault = Fault("fallocate", "error=ENOSPC:when=2+", (*JOURNALS, *NEW_JOURNALS))
    await bookie.start(fault.options(ram))
    async with bookie.client() as client:
        ledger = bookie.new_ledger()
        assert await client.add(ledger) is Status.OK
        assert await client.add_until_refused() is Status.READ_ONLY
        assert await client.add(ledger) is Status.READ_ONLY
        await bookie.verify()
    assert await bookie.stop() == 0
    await starts_and_is_killed(bookie)


@pytest.mark.parametrize("files", [JOURNALS, INDEX], ids=["journal", "index"])
async def test_a_slow_sync_is_reported_and_a_stuck_one_ends_the_process(
    files: tuple[str, ...], bookie: DrivenBookie, ram: Path
) -> None:
    """Also while a checkpoint waits for the same sync."""
    # Again and again: the first ones may fall into the boot, which takes its time.
    slow = Fault("fdatasync", "delay_enter=1000000:when=5+2", files)
    await bookie.start(slow.options(ram), {"BOOKIE_STORAGE__SYNC_WARN_SECONDS": "0.3"})
    async with bookie.client() as client, asyncio.timeout(SLOW_SECONDS_MAX):
        ledger = bookie.new_ledger()
        while "slow_sync" not in {event["event"] for event in bookie.events()}:
            assert await client.add(ledger) is Status.OK
    assert await bookie.stop() == 0
    stuck = Fault("fdatasync", "delay_enter=3000000:when=5+4", files)
    limits = {
        "BOOKIE_STORAGE__SYNC_WARN_SECONDS": "0.3",
        "BOOKIE_STORAGE__SYNC_FAIL_SECONDS": "1",
    }
    assert await bookie.ends(stuck.options(ram), limits) == EXIT_DISK_FAILED
    await starts_and_is_killed(bookie)


async def test_what_cannot_be_read_is_not_denied(bookie: DrivenBookie, ram: Path) -> None:
    """An unreadable entry is an error of the device, and never denied."""
    await starts_and_is_killed(bookie)
    # A read asks the page cache first, then a thread reads. A start reads nothing of these logs so.
    logs = tuple(f"ledgers/logs/{number:08d}.log" for number in NUMBERS)
    fault = Fault("pread64,preadv2", "error=EIO:when=1+", logs)
    await bookie.start(fault.options(ram))
    async with bookie.client() as client:
        ledger = bookie.promises.ledgers[1]
        assert await client.read_status(ledger, 0) is Status.IO_ERROR
    assert await bookie.stop() == 0
    await starts_and_is_killed(bookie)
