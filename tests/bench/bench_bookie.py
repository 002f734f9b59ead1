"""What one bookie does, beside what this machine allows in the same run.

    python -m tests.bench.bench_bookie [--seconds 3] [--json FILE]

Every row is measured on three things. The first is a real bookie: durable, and a process of its
own. The second is a bookie that answers from memory: the ceiling of gRPC and the client. The third
is the disk alone: the same bytes written and synced. Nothing is asserted; the table is for people.
How writes stand against their bars is in `bench_writes`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bookie.api import BookKeeper
from bookie.daemon.loop import run as run_loop
from bookie.env import PosixDisk
from bookie.ledger.write.handle import WriterHandle
from tests.bench.processes import served

SIZES_BYTES = (100, 1024, 65536)
IN_FLIGHT = 1000
HEADER_BYTES = 36
"""What a packet adds to a payload: 32 bytes of header, 4 of CRC32C."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement."""

    entries_per_second: float
    megabytes_per_second: float
    p50_us: float = 0.0
    p99_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of load: the bookie beside its ceilings."""

    what: str
    size_bytes: int
    bookie: Figure
    memory: Figure
    disk: Figure | None

    @property
    def share(self) -> float:
        """The bookie's rate as a share of the lower ceiling."""
        ceilings = [self.memory.entries_per_second]
        if self.disk is not None:
            ceilings.append(self.disk.entries_per_second)
        return self.bookie.entries_per_second / min(ceilings)


def _figure(count: int, size: int, seconds: float, latencies: list[float]) -> Figure:
    latencies.sort()
    p50 = latencies[len(latencies) // 2] if latencies else 0.0
    p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
    return Figure(count / seconds, count * size / seconds / 1e6, p50 * 1e6, p99 * 1e6)


async def one_in_flight(client: BookKeeper, size: int, seconds: float) -> Figure:
    """Each append waits for the one before."""
    writer = await _writer(client)
    payload = os.urandom(size)
    latencies: list[float] = []
    await writer.append(payload)
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        await writer.append(payload)
        latencies.append(time.perf_counter() - now)
    elapsed = time.perf_counter() - begin
    await writer.close()
    return _figure(len(latencies), size, elapsed, latencies)


async def many_in_flight(client: BookKeeper, size: int, seconds: float) -> Figure:
    """A thousand coroutines, each with one append under way."""
    writer = await _writer(client)
    payload = os.urandom(size)
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def appender() -> None:
        while (now := time.perf_counter()) < end:
            await writer.append(payload)
            latencies.append(time.perf_counter() - now)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(appender())
    elapsed = time.perf_counter() - begin
    await writer.close()
    return _figure(len(latencies), size, elapsed, latencies)


async def append_many(client: BookKeeper, size: int, seconds: float) -> Figure:
    """Calls of `append_many` with up to 1024 entries or 1 MiB, sixteen under way."""
    writer = await _writer(client)
    per_call = min(1024, (1 << 20) // size)
    payloads = [os.urandom(size)] * per_call
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def appender() -> None:
        while (now := time.perf_counter()) < end:
            await writer.append_many(payloads)
            latencies.append(time.perf_counter() - now)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(appender())
    elapsed = time.perf_counter() - begin
    await writer.close()
    return _figure(len(latencies) * per_call, size, elapsed, latencies)


async def read_batches(client: BookKeeper, size: int, seconds: float) -> Figure:
    """Whole batches of a closed ledger, digests verified, again and again from the start."""
    writer = await _writer(client)
    per_call = min(1024, (1 << 20) // size)
    for _ in range(max(1, (64 << 20) // (per_call * size))):
        await writer.append_many([os.urandom(size)] * per_call)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    last = reader.last_entry_id
    async for _ in reader.read_batches(0, last):
        pass
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        async for batch in reader.read_batches(0, last):
            count += len(batch)
    return _figure(count, size, time.perf_counter() - begin, [])


async def _writer(client: BookKeeper) -> WriterHandle:
    return await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


def disk_alone(
    directory: Path, payload_bytes: int, entries: int, seconds: float, pause_seconds: float = 0.0
) -> Figure:
    """Write blocks of `entries` packets and sync each, one after the other.

    `pause_seconds` between two blocks keeps the rhythm of a lone append. The device goes to sleep
    meanwhile, which makes one sync here a quarter slower than in a tight loop.
    """
    disk = PosixDisk()
    block = os.urandom(entries * (payload_bytes + HEADER_BYTES))
    block += bytes(-len(block) % 512)
    capacity = 256 << 20
    path = str(directory / "ceiling")
    file = disk.create(path, capacity)
    latencies: list[float] = []
    rhythm = threading.Event()
    offset = 0
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        if offset + len(block) > capacity:
            file.close()
            disk.unlink(path)
            file, offset = disk.create(path, capacity), 0
        file.pwritev([block], offset)
        file.fdatasync()
        offset += len(block)
        latencies.append(time.perf_counter() - now)
        if pause_seconds:
            rhythm.wait(pause_seconds)
    elapsed = sum(latencies) if pause_seconds else time.perf_counter() - begin
    file.close()
    disk.unlink(path)
    return _figure(len(latencies) * entries, payload_bytes, elapsed, latencies)


Load = Callable[[BookKeeper, int, float], Awaitable[Figure]]
Loads = tuple[tuple[str, Load], ...]
WRITES: Loads = (
    ("append, 1 in flight", one_in_flight),
    (f"append, {IN_FLIGHT} in flight", many_in_flight),
    ("append_many", append_many),
)
READS: Loads = (("read_batches", read_batches),)
LOADS = WRITES + READS


async def _measure(
    root: Path, seconds: float, loads: Loads, *, memory: bool, keeps: bool = True
) -> dict[tuple[str, int], Figure]:
    figures = {}
    async with served(root, memory=memory, keeps=keeps) as at:
        for size in SIZES_BYTES:
            for name, load in loads:
                figures[name, size] = await load(at.client, size, seconds)
    return figures


def _disk_ceiling(
    root: Path, name: str, size: int, seconds: float, memory: Figure
) -> Figure | None:
    if name == "read_batches":
        return None
    if name == "append, 1 in flight":
        return disk_alone(root, size, 1, seconds, pause_seconds=memory.p50_us / 1e6)
    in_flight = IN_FLIGHT if name.startswith("append,") else 8 * 1024
    entries = max(1, min(in_flight, (8 << 20) // (size + HEADER_BYTES)))
    return disk_alone(root, size, entries, seconds)


def run(seconds: float) -> list[Row]:
    """Every row, on this machine, now."""
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=Path.cwd()))
    try:
        real = run_loop(_measure(root / "real", seconds, LOADS, memory=False))
        # What it would keep for readers costs it time, so that it were slower than a real one.
        memory = run_loop(_measure(root / "written", seconds, WRITES, memory=True, keeps=False))
        memory |= run_loop(_measure(root / "read", seconds, READS, memory=True))
        return [
            Row(
                name,
                size,
                real[name, size],
                memory[name, size],
                _disk_ceiling(root, name, size, seconds, memory[name, size]),
            )
            for size in SIZES_BYTES
            for name, _ in LOADS
        ]
    finally:
        shutil.rmtree(root, ignore_errors=True)


def machine() -> str:
    """One line about where this ran."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return (
        f"{cores} cores of {model}, {memory} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def table(rows: list[Row]) -> Table:
    """The rows for a terminal."""
    result = Table("load", "entry", "adds or reads/s", "MB/s", "p50 µs", "p99 µs", "memory/s",
                   "disk/s", "of lower", title=machine())  # fmt: skip
    for row in rows:
        disk = f"{row.disk.entries_per_second:,.0f}" if row.disk else ""
        bookie = row.bookie
        result.add_row(
            row.what,
            f"{row.size_bytes} B",
            f"{bookie.entries_per_second:,.0f}",
            f"{bookie.megabytes_per_second:.0f}",
            f"{bookie.p50_us:,.0f}" if bookie.p50_us else "",
            f"{bookie.p99_us:,.0f}" if bookie.p99_us else "",
            f"{row.memory.entries_per_second:,.0f}",
            disk,
            f"{row.share:.0%}",
        )
    return result


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each load")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    rows = run(arguments.seconds)
    console = Console(width=140)
    console.print(table(rows))
    if arguments.json:
        report = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
