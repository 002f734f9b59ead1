"""Adds at half of the highest rate, alone and while another client reads a gigabyte.

    python -m tests.bench.bench_mixed [--gigabytes 1] [--directory DIR]

Three processes share the machine: the bookie, the writer (this one) and the reader. The reader goes
over a ledger from the page cache, or from the disk. Printed: percentiles of the adds, the reader's
rate, and how late the bookie's event loop ran its timers, from its own metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bookie.api import connect
from bookie.daemon.loop import run
from bookie.ledger.write.handle import WriterHandle
from tests.bench.bench_reads import fill, forget, read_range
from tests.bench.processes import Served, served

BATCH = 256
SIZE = 1024
SECONDS = 3.0
ROUNDS = 3


async def writer_of(at: Served) -> WriterHandle:
    """A writer of a new ledger."""
    return await at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def highest_rate(at: Served) -> float:
    """Batches a second with sixteen under way."""
    writer = await writer_of(at)
    payloads = [os.urandom(SIZE)] * BATCH
    done = 0
    end = time.perf_counter() + SECONDS

    async def appender() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await writer.append_many(payloads)
            done += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(appender())
    await writer.close()
    return done / SECONDS


async def paced(at: Served, per_second: float, until: asyncio.Event | float) -> list[float]:
    """Seconds that each batch took, `per_second` of them begun each second."""
    writer = await writer_of(at)
    payloads = [os.urandom(SIZE)] * BATCH
    latencies: list[float] = []
    begin = time.perf_counter()

    async def append(due: float) -> None:
        await writer.append_many(payloads)
        latencies.append(time.perf_counter() - due)

    def is_over(now: float) -> bool:
        return until.is_set() if isinstance(until, asyncio.Event) else now - begin > until

    count = 0
    async with asyncio.TaskGroup() as tasks:
        while not is_over(now := time.perf_counter()):
            due = begin + count / per_second
            if due > now:
                await asyncio.sleep(due - now)
            # Measured from when it should have begun: a writer that is held up has waited, too.
            tasks.create_task(append(due))
            count += 1
    await writer.close()
    return sorted(latencies)


async def read_elsewhere(at: Served, ledger_id: int, finished: asyncio.Event) -> str:
    """Let another process read the ledger; what it printed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bench_mixed", "--reader", at.uri, str(ledger_id),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await child.communicate()
    finished.set()
    return printed.decode().strip()


async def reader(uri: str, ledger_id: int) -> None:
    """The other process: one pass over the ledger."""
    async with connect(uri) as client:
        at = Served(client, os.getpid(), Path(), uri)
        rate = await read_range(at, await client.open_ledger(ledger_id))
        print(f"{rate.per_second:.0f} MB/s")


def loop_lag(at: Served) -> dict[float, int]:
    """The bookie's histogram of how late its loop ran: upper bound → count."""
    registration = at.client.bookies()["bench-1"]
    port = next(endpoint.port for endpoint in registration.endpoints if endpoint.name == "http")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    pairs = re.findall(r'loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} ([0-9.e+]+)', text)
    return {float(bound): int(float(count)) for bound, count in pairs}


def percentiles(latencies: list[float]) -> str:
    """The usual ones, in milliseconds."""
    points = (0.5, 0.9, 0.99, 0.999)
    return " ".join(
        f"p{100 * point:g} {latencies[int(len(latencies) * point)] * 1e3:.1f}" for point in points
    )


async def measure(gigabytes: float, directory: Path) -> None:
    """In turns: alone, with a reader of the page cache, alone, with a reader of the disk."""
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=directory))
    try:
        async with served(root) as at:
            stored = await fill(at, SIZE, int(gigabytes * 1e9))
            await at.settled()
            highest = await highest_rate(at)
            half = highest / 2
            print(f"highest {highest * BATCH:,.0f} adds/s, half of it:", flush=True)
            alone: list[list[float]] = []
            p99s: dict[str, list[float]] = {"hot": [], "cold": []}
            for what in ("hot", "cold") * ROUNDS:
                await at.settled()
                alone.append(await paced(at, half, SECONDS))
                print(f"alone            {percentiles(alone[-1])} ms", flush=True)
                await at.settled()
                if what == "cold":
                    forget(at.journal)
                finished = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(read_elsewhere(at, stored.ledger_id, finished))
                    beside = tasks.create_task(paced(at, half, finished))
                latencies = beside.result()
                if not latencies:
                    print(f"beside {what:4} read: over before an add was, {reading.result()}")
                    continue
                p99s[what].append(latencies[int(len(latencies) * 0.99)])
                print(
                    f"beside {what:4} read {percentiles(latencies)} ms, reader {reading.result()}",
                    flush=True,
                )
            usual = statistics.median(each[int(len(each) * 0.99)] for each in alone)
            for what, found in p99s.items():
                if found:
                    ratio = statistics.median(found) / usual
                    print(f"p99 beside a {what} read: {ratio:.1f} times that alone (medians)")
            lag = await asyncio.to_thread(loop_lag, at)
            print("loop late by at most so many seconds, so often:", lag)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--reader", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        run(reader(arguments.reader[0], int(arguments.reader[1])))
    else:
        run(measure(arguments.gigabytes, arguments.directory))


if __name__ == "__main__":
    main()
