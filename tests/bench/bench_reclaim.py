"""Deleting most of what a bookie holds: how soon the space is back, and what adds feel of it.

    python -m tests.bench.bench_reclaim [--megabytes 2000] [--ledgers 200] [--seconds 60]

Ledgers are written side by side, so that every file holds entries of all of them; then all but
every fifth are deleted. The bookie runs with its default settings. A client appends 1 KB at a fixed
rate before and meanwhile; a late append counts from when it should have begun. Disk use is what the
file system counts (st_blocks) in the bookie's two directories. Alive are the packets of entries in
the ledgers that are left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bookie.ledger.write.handle import WriterHandle
from tests.bench.processes import Served, served

HEADER_BYTES = 36
"""What a packet adds to a payload."""

ENTRY_BYTES = 4096
ENTRIES_PER_CALL = 64
KEEP_EVERY = 5
WANTED_RATIO = 1.3
APPEND_BYTES = 1024
APPENDS_PER_SECOND = 200
BEFORE_SECONDS = 15.0


@dataclass(slots=True)
class Appends:
    """Appends at a fixed rate, and how long each took from when it should have begun."""

    writer: WriterHandle
    milliseconds: list[float] = field(default_factory=list)
    count: int = 0

    async def run(self) -> None:
        """Append until cancelled; whatever is late is not skipped."""
        payload = os.urandom(APPEND_BYTES)
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(max(0.0, due - loop.time()))
                tasks.create_task(self._append(payload, due))
                due += 1 / APPENDS_PER_SECOND

    async def _append(self, payload: bytes, due: float) -> None:
        await self.writer.append(payload)
        self.count += 1
        self.milliseconds.append((asyncio.get_running_loop().time() - due) * 1e3)

    def percentiles(self) -> tuple[float, float, float]:
        """p50, p99 and the maximum since the last call."""
        ordered, self.milliseconds = sorted(self.milliseconds), []
        return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def disk_bytes(root: Path) -> int:
    """What the bookie's directories take, as the file system counts it."""
    total = 0
    for directory in (root / "journal", root / "ledgers"):
        for path in directory.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


async def fill(bookie: Served, ledgers: int, megabytes: int) -> list[int]:
    """Closed ledgers, written side by side; their ids."""
    per_ledger = megabytes * 1_000_000 // (ledgers * ENTRY_BYTES * ENTRIES_PER_CALL)
    payloads = [os.urandom(ENTRY_BYTES)] * ENTRIES_PER_CALL
    create = bookie.client.create_ledger
    writers = [
        await create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        for _ in range(ledgers)
    ]
    for _ in range(per_ledger):
        async with asyncio.TaskGroup() as tasks:
            for writer in writers:
                tasks.create_task(writer.append_many(payloads))
    for writer in writers:
        await writer.close()
    return [writer.ledger_id for writer in writers]


async def measure(root: Path, ledgers: int, megabytes: int, seconds: float) -> None:
    """Fill, delete, watch; prints as it goes."""
    async with served(root) as bookie:
        began = time.perf_counter()
        ids = await fill(bookie, ledgers, megabytes)
        per_ledger = megabytes * 1_000_000 // (ledgers * ENTRY_BYTES * ENTRIES_PER_CALL)
        kept = [ledger_id for index, ledger_id in enumerate(ids) if index % KEEP_EVERY == 0]
        alive = len(kept) * per_ledger * ENTRIES_PER_CALL * (ENTRY_BYTES + HEADER_BYTES)
        print(
            f"{len(ids)} ledgers written in {time.perf_counter() - began:.0f} s,"
            f" {disk_bytes(root) / 1e6:.0f} MB on disk; {len(kept)} of them stay"
        )
        await bookie.settled()
        writer = await bookie.client.create_ledger(
            ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
        )
        appends = Appends(writer)
        async with asyncio.TaskGroup() as tasks:
            appending = tasks.create_task(appends.run())
            await asyncio.sleep(2)
            appends.percentiles()
            await asyncio.sleep(BEFORE_SECONDS)
            p50, before, worst = appends.percentiles()
            print(f"appends before:    p50 {p50:.2f}  p99 {before:.2f}  max {worst:.1f} ms")
            began = time.perf_counter()
            for ledger_id in sorted(set(ids) - set(kept)):
                await bookie.client.delete_ledger(ledger_id)
            # The client's own work on the metadata store is no doing of the bookie.
            p50, p99, worst = appends.percentiles()
            print(f"while it deletes: p50 {p50:.2f}  p99 {p99:.2f}  max {worst:.1f} ms")
            reached = await watch(root, appends, alive, began, seconds)
            p50, during, worst = appends.percentiles()
            appending.cancel()
        print(
            f"appends meanwhile: p50 {p50:.2f}  p99 {during:.2f}  max {worst:.1f} ms:"
            f" {during / before:.2f} times the p99 before"
        )
        print(
            f"{WANTED_RATIO} times alive "
            + (f"after {reached:.1f} s" if reached else "not reached")
        )
        count = 0
        for ledger_id in kept:
            reader = await bookie.client.open_ledger(ledger_id)
            async for batch in reader.read_batches(0, reader.last_entry_id):
                count += len(batch)
        print(f"{count} of {len(kept) * per_ledger * ENTRIES_PER_CALL} entries read back")


async def watch(
    root: Path, appends: Appends, alive: int, began: float, seconds: float
) -> float | None:
    """Look at the disk until little enough is used; when that was, if it was."""
    appended, told = appends.count, 0.0
    while (elapsed := time.perf_counter() - began) < seconds:
        used = await asyncio.to_thread(disk_bytes, root)
        living = alive + (appends.count - appended) * (APPEND_BYTES + HEADER_BYTES)
        if elapsed - told >= 5 or used <= WANTED_RATIO * living:
            told = elapsed
            print(f"{elapsed:5.1f} s: {used / 1e6:6.0f} MB, {used / living:.2f} times alive")
        if used <= WANTED_RATIO * living:
            return elapsed
        await asyncio.sleep(0.25)
    return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--ledgers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the space to return")
    parser.add_argument("--keep-files", type=Path, help="use this directory and leave it")
    arguments = parser.parse_args()
    root = arguments.keep_files or Path(tempfile.mkdtemp(prefix="bookie-reclaim-", dir=Path.cwd()))
    try:
        asyncio.run(measure(root, arguments.ledgers, arguments.megabytes, arguments.seconds))
    finally:
        if not arguments.keep_files:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
