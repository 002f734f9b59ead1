"""Most ledgers of a real bookie are deleted: the space comes back while appends go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bookie.api import BookKeeper, connect
from bookie.errors import NoSuchLedgerError, NotEnoughBookiesError
from bookie.ledger.write.handle import WriterHandle
from bookie.node.engine.reclaim.compaction import ROLL_GARBAGE_BYTES_MIN
from tests.fault.daemon_process import Home, new_home, serving

LEDGERS = 20
KEEP_EVERY = 5
CALLS = 8
ENTRY_BYTES = 4096
ENTRIES = 64
SECONDS_MAX = 300.0

APPENDED_BYTES = 3500
"""An entry that fills the page of its block: padding is no garbage that could be reclaimed."""

MIB = 1024 * 1024
RESERVE_BYTES = MIB
FILE_BYTES = 8 * MIB
BLOCK_BYTES = 4200 * 1024
STEP_BYTES = MIB
OPEN_BYTES = min(ROLL_GARBAGE_BYTES_MIN + BLOCK_BYTES + STEP_BYTES, FILE_BYTES)
"""The garbage of the open journal that is too little for a roll, and its unused allocation."""


def settings(home: Home) -> Home:
    """Small files, and a collector that does not let a test wait."""
    home.sections["storage"] |= {
        "journal_file_bytes_max": FILE_BYTES,
        "journal_allocate_bytes": STEP_BYTES,
        "block_bytes_max": BLOCK_BYTES,
        "reserve_bytes": RESERVE_BYTES,
        "compaction_interval_seconds": 0.2,
        "index_map_bytes": "1GiB",
    }
    home.sections["garbage"] = {"interval_seconds": 0.3, "grace_seconds": 0.1}
    return home


def disk_bytes(home: Home) -> int:
    """What the bookie's directories take."""
    total = 0
    for directory in (home.journal, home.ledgers):
        for path in directory.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def disk_bytes_max(live_bytes: int) -> float:
    """What a bookie may take for so much that is alive, once it has reclaimed the rest."""
    return 1.3 * live_bytes + OPEN_BYTES + RESERVE_BYTES


def entry(ledger_id: int, number: int, size: int = ENTRY_BYTES) -> bytes:
    """What an entry contains."""
    return f"{ledger_id}/{number}:".encode().ljust(size, b".")


async def new_ledger(client: BookKeeper) -> WriterHandle:
    return await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def answers(client: BookKeeper) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not client.bookies():  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.05)


async def assert_complete(
    client: BookKeeper, ledger_id: int, count: int, size: int = ENTRY_BYTES
) -> None:
    reader = await client.open_ledger(ledger_id, recover=True)
    found = [item.payload async for item in reader.read(0, reader.last_entry_id)]
    assert found == [entry(ledger_id, number, size) for number in range(count)]


async def test_the_space_of_deleted_ledgers_comes_back(tmp_path: Path) -> None:
    """Down to 1.3 times what is alive, and what the open journal may hold; nothing is lost."""
    home = settings(await new_home(tmp_path))
    async with serving(home.write()) as daemon, connect(home.metadata_uri) as client:
        await daemon.until("registered")
        await answers(client)
        writers = [await new_ledger(client) for _ in range(LEDGERS)]
        for call in range(CALLS):
            numbers = range(call * ENTRIES, (call + 1) * ENTRIES)
            async with asyncio.TaskGroup() as tasks:
                for writer in writers:
                    payloads = [entry(writer.ledger_id, number) for number in numbers]
                    tasks.create_task(writer.append_many(payloads))
        kept = writers[::KEEP_EVERY]
        late = next(writer for writer in writers if writer not in kept)
        for writer in writers:
            if writer is not late:
                await writer.close()
        for writer in writers:
            if writer not in kept:
                await client.delete_ledger(writer.ledger_id)
        appending = await new_ledger(client)
        alive = len(kept) * CALLS * ENTRIES * (ENTRY_BYTES + 36)
        appended = 0
        async with asyncio.timeout(SECONDS_MAX):
            while disk_bytes(home) > disk_bytes_max(alive + appended * APPENDED_BYTES):
                await appending.append(entry(appending.ledger_id, appended, APPENDED_BYTES))
                appended += 1
                await asyncio.sleep(0.01)
        await refused(late)
        for writer in kept:
            await assert_complete(client, writer.ledger_id, CALLS * ENTRIES)
    # The end of the block above killed it.
    async with serving(home.write()) as daemon, connect(home.metadata_uri) as client:
        await daemon.until("registered")
        await answers(client)
        for writer in kept:
            await assert_complete(client, writer.ledger_id, CALLS * ENTRIES)
        await assert_complete(client, appending.ledger_id, appended, APPENDED_BYTES)


async def refused(late: WriterHandle) -> None:
    """A writer whose ledger is gone is not acknowledged any more."""
    try:
        await late.append(os.urandom(10))
    except (NoSuchLedgerError, NotEnoughBookiesError):
        return
    raise AssertionError("an add to a deleted ledger was acknowledged")
