"""How fast one bookie reads, beside what this machine allows in the same run.

    python -m tests.bench.bench_reads [--megabytes 512] [--only ROW ...] [--directory DIR]

Nothing is asserted. A range read is compared with a bookie that answers from memory; the client
verifies every packet of both. A cold one is also compared with a loop that reads the same files
from the disk. A point read is compared with a unary call of gRPC of the same sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

from bookie.daemon.loop import run
from bookie.ledger.read.handle import ReaderHandle
from bookie.wire.interfaces import SERVICE
from tests.bench.processes import Served, process, served

ROUNDS = 3
POINT_READS = 3000


@dataclass(frozen=True, slots=True)
class Rate:
    """What one run achieved. Seconds of processor time are per GB or per 1000 calls."""

    per_second: float
    client_cpu: float
    server_cpu: float


def median(rates: list[Rate]) -> Rate:
    """The rate in the middle."""
    return sorted(rates, key=lambda rate: rate.per_second)[len(rates) // 2]


async def fill(at: Served, size: int, total_bytes: int) -> ReaderHandle:
    """A closed ledger of `total_bytes` in entries of `size`."""
    writer = await at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    per_call = max(1, min(1024, (1 << 20) // size))
    payloads = [os.urandom(size) for _ in range(per_call)]
    calls = iter(range(max(1, total_bytes // (per_call * size))))

    async def append() -> None:
        for _ in calls:
            await writer.append_many(payloads)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(append())
    await writer.close()
    return await at.client.open_ledger(writer.ledger_id)


async def read_range(at: Served, reader: ReaderHandle) -> Rate:
    """MB/s of payload over the whole ledger, once."""
    server_cpu, client_cpu = at.cpu_seconds(), time.process_time()
    size = 0
    begin = time.perf_counter()
    async with aclosing(reader.read_batches(0, reader.last_entry_id)) as batches:
        async for batch in batches:
            size += len(batch) * len(batch[0].payload)
    elapsed = time.perf_counter() - begin
    gigabytes = size / 1e9
    return Rate(
        size / elapsed / 1e6,
        (time.process_time() - client_cpu) / gigabytes,
        (at.cpu_seconds() - server_cpu) / gigabytes,
    )


async def in_parallel(
    at_pid: Callable[[], float], call: Callable[[], Awaitable[object]], in_flight: int
) -> Rate:
    """Calls per second with `in_flight` of them under way."""

    async def caller() -> None:
        for _ in range(POINT_READS // in_flight):
            await call()

    server_cpu, client_cpu = at_pid(), time.process_time()
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(caller())
    elapsed = time.perf_counter() - begin
    thousands = POINT_READS // in_flight * in_flight / 1000
    return Rate(
        thousands * 1000 / elapsed,
        (time.process_time() - client_cpu) / thousands,
        (at_pid() - server_cpu) / thousands,
    )


def forget(directory: Path) -> None:
    """Let the kernel drop its copies of every file in `directory`."""
    for path in sorted(directory.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sequential(directory: Path) -> float:
    """MB/s of a loop that reads every file in `directory` from the disk."""
    forget(directory)
    size = 0
    buffer = bytearray(1 << 20)
    begin = time.perf_counter()
    for path in sorted(directory.glob("*.journal")):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                size += got
    return size / (time.perf_counter() - begin) / 1e6


@asynccontextmanager
async def bare_unary(root: Path, reply_bytes: int) -> AsyncIterator[tuple[Any, int]]:
    """gRPC alone: a call that is answered with as many bytes, and the server's pid."""
    with process("-m", "tests.bench.unary_server", str(reply_bytes), log=root) as pid:
        async with asyncio.timeout(30):
            while not (text := _text(root)).endswith("\n"):  # noqa: ASYNC110  (no event to wait for)
                await asyncio.sleep(0.02)
        async with aio.insecure_channel(f"127.0.0.1:{int(text)}") as channel:
            yield channel.unary_unary(f"/{SERVICE}/Read"), pid


def _text(path: Path) -> str:
    return path.read_text()


def line(what: str, got: Rate, ceiling: Rate, unit: str, note: str = "") -> None:
    """One row for people."""
    share = got.per_second / ceiling.per_second
    print(
        f"{what:34} {got.per_second:10,.0f} {unit:6} ceiling {ceiling.per_second:10,.0f}  "
        f"{share:5.0%}   cpu client {got.client_cpu:.2f} ({ceiling.client_cpu:.2f}) "
        f"server {got.server_cpu:.2f} ({ceiling.server_cpu:.2f}) {note}",
        flush=True,
    )


async def ranges(root: Path, sizes: list[int], total_bytes: int, what: set[str]) -> None:
    """Range reads, hot and cold."""
    async with served(root / "real") as real, served(root / "memory", memory=True) as memory:
        for size in sizes:
            total = total_bytes if size >= 1000 else total_bytes // 4
            stored, kept = await fill(real, size, total), await fill(memory, size, total)
            if "hot" in what:
                hot, ceiling = [], []
                for _ in range(ROUNDS + 1):
                    hot.append(await read_range(real, stored))
                    ceiling.append(await read_range(memory, kept))
                best = median(ceiling[1:])
                line(f"range read hot {size} B", median(hot[1:]), best, "MB/s")
            if "cold" in what:
                cold, disk = [], []
                for _ in range(ROUNDS):
                    disk.append(sequential(real.journal))
                    forget(real.journal)
                    cold.append(await read_range(real, stored))
                line(
                    f"range read cold {size} B", median(cold),
                    Rate(statistics.median(disk), 0, 0), "MB/s",
                )  # fmt: skip


async def points(root: Path, size: int) -> None:
    """Reads of one entry, each at a random place of a ledger of 20 MB or more."""
    async with served(root / "real") as real:
        reader = await fill(real, size, max(20_000 * size, 64 << 20))
        last = reader.last_entry_id
        request = bytes(20)

        async def read_one() -> None:
            entry_id = random.randrange(last + 1)
            async for _ in reader.read(entry_id, entry_id):
                pass

        async with bare_unary(root / "unary", size + 80) as (call, pid):
            bare = Served(real.client, pid, root, "")
            for in_flight in (1, 32):
                got, ceiling = [], []
                for _ in range(ROUNDS):
                    got.append(await in_parallel(real.cpu_seconds, read_one, in_flight))
                    ceiling.append(
                        await in_parallel(bare.cpu_seconds, lambda: call(request), in_flight)
                    )
                what = f"point read {size} B, {in_flight} in flight"
                line(what, median(got), median(ceiling), "/s")


async def measure(arguments: argparse.Namespace) -> None:
    """Every row that was asked for."""
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=arguments.directory))
    what = set(arguments.only)
    try:
        if what & {"hot", "cold"}:
            await ranges(root, arguments.sizes, arguments.megabytes << 20, what)
        if "point" in what:
            for size in arguments.sizes:
                await points(root / f"points-{size}", size)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--only", nargs="+", default=["hot", "cold", "point"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024])
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
