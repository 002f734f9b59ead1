"""How fast one bookie writes, beside what this machine allows in the same run, and the bars.

    python -m tests.bench.bench_writes [--seconds 2] [--only ROW ...] [--directory DIR]

One bookie process and one client process share the machine; every add is durable. Ceilings: the
same calls against a bookie that answers and forgets (*memory*), and a loop that writes and syncs as
many bytes (*disk*). The three take turns, and each figure is the median of its rounds, so that they
share the machine's moods. Adds beside a reader are in `bench_mixed`. Nothing is asserted; the table
is for people.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bookie.api import BookKeeper
from bookie.daemon.loop import run
from bookie.ledger.write.handle import WriterHandle
from tests.bench.bench_bookie import disk_alone
from tests.bench.processes import Served, served

ROUNDS = 3
TURNS = 24
"""Of what is measured beside each other within seconds."""

BATCH_ENTRIES = 256
"""Entries of one call of `append_many`."""
CALLS_IN_FLIGHT = 32
APPENDS_IN_FLIGHT = 1000
LEDGERS = (1, 100, 10_000)
PART_BYTES, MUCH_BYTES = 2 << 30, 20 << 30
"""What `after_much` measures at a time, and writes."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one round of a load achieved. Latencies are of calls, in seconds, sorted."""

    entries: int
    seconds: float
    latencies: list[float]
    client_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Entries."""
        return self.entries / self.seconds

    @property
    def client_us(self) -> float:
        """Processor time of the client for an entry, in microseconds."""
        return self.client_cpu_seconds / self.entries * 1e6

    def percentile_us(self, share: float) -> float:
        """The latency that `share` of the calls did not exceed, in microseconds."""
        return self.latencies[int((len(self.latencies) - 1) * share)] * 1e6


Work = Callable[[BookKeeper, int, float], Awaitable[Load]]


async def new_ledger(client: BookKeeper) -> WriterHandle:
    """A writer of a ledger with one copy."""
    return await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def driven(
    call: Callable[[], Awaitable[object]], entries: int, in_flight: int, seconds: float
) -> Load:
    """`in_flight` coroutines that call again and again; a call is worth `entries`."""
    latencies: list[float] = []
    cpu, begin = time.process_time(), time.perf_counter()
    end = begin + seconds

    async def caller() -> None:
        while (now := time.perf_counter()) < end:
            await call()
            latencies.append(time.perf_counter() - now)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(caller())
    elapsed = time.perf_counter() - begin
    spent = time.process_time() - cpu
    return Load(len(latencies) * entries, elapsed, sorted(latencies), spent)


async def batches(client: BookKeeper, size: int, seconds: float) -> Load:
    """`append_many`, 256 entries a call, 32 calls under way."""
    writer = await new_ledger(client)
    payloads = [os.urandom(size) for _ in range(BATCH_ENTRIES)]
    load = await driven(
        lambda: writer.append_many(payloads), BATCH_ENTRIES, CALLS_IN_FLIGHT, seconds
    )
    await writer.close()
    return load


async def singles(client: BookKeeper, size: int, seconds: float) -> Load:
    """A thousand coroutines, each with one `append` under way."""
    writer = await new_ledger(client)
    payload = os.urandom(size)
    load = await driven(lambda: writer.append(payload), 1, APPENDS_IN_FLIGHT, seconds)
    await writer.close()
    return load


@dataclass(slots=True)
class Bench:
    """The processes that the rows share."""

    real: Served
    memory: Served
    root: Path
    seconds: float

    async def compare(self, work: Work, size: int) -> tuple[list[Load], list[Load]]:
        """Rounds of `work` on the bookie and on the one that forgets, in turns."""
        await work(self.real.client, size, 0.3)
        await work(self.memory.client, size, 0.3)
        real, memory = [], []
        for _ in range(ROUNDS):
            real.append(await work(self.real.client, size, self.seconds))
            memory.append(await work(self.memory.client, size, self.seconds))
        return real, memory

    def disk_rate(self, size: int, entries: int) -> float:
        """Entries a second that a loop writes and syncs, in blocks of `entries` at most 8 MiB."""
        entries = min(entries, (8 << 20) // (size + 36))
        rates = [
            disk_alone(self.root, size, entries, self.seconds / 2).entries_per_second
            for _ in range(ROUNDS)
        ]
        return statistics.median(rates)


async def after_much(bench: Bench) -> None:
    """Whether the rate of the first 2 GB holds: behind 20 GB, and behind a reader of all of them.

    In bytes and not in seconds, because the page cache fills by bytes. A smaller device gets less.
    """
    payloads = [os.urandom(1024) for _ in range(BATCH_ENTRIES)]
    free = shutil.disk_usage(bench.root).free
    total = min(MUCH_BYTES, free // 2)
    writer = await new_ledger(bench.real.client)
    system: list[float] = []

    async def rate(size: int) -> float:
        calls = iter(range(size // (BATCH_ENTRIES * 1024)))

        async def caller() -> None:
            for _ in calls:
                await writer.append_many(payloads)

        begin, spent = time.perf_counter(), bench.real.system_seconds()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLS_IN_FLIGHT):
                tasks.create_task(caller())
        system.append((bench.real.system_seconds() - spent) / (size / 1024) * 1e6)
        return size / 1024 / (time.perf_counter() - begin)

    await rate(PART_BYTES // 8)
    first = await rate(PART_BYTES)
    parts = [await rate(PART_BYTES) for _ in range(total // PART_BYTES - 1)]
    reader = await bench.real.client.open_ledger(writer.ledger_id)
    async for _ in reader.read_batches():
        pass
    behind_reader = await rate(PART_BYTES)
    await writer.close()
    gigabytes = total >> 30
    for what, got in (
        (f"after {gigabytes} GB", parts[-1]),
        ("after a reader of all", behind_reader),
    ):
        row(
            f"adds 1024 B, {what}",
            f"{got:,.0f}/s = {got / first:.0%}",
            ">= 90% of the first 2 GB",
            ok=got >= 0.9 * first,
            note=f"first {first:,.0f}; each 2 GB {', '.join(f'{one:,.0f}' for one in parts)}; the"
            f" bookie's system time {', '.join(f'{one:.2f}' for one in system[1:])} us an entry",
        )


def median(values: list[float]) -> float:
    """The one in the middle."""
    return statistics.median(values)


def row(what: str, got: str, bar: str, *, ok: bool, note: str = "") -> None:
    """One row for people."""
    print(f"{what:36} {got:>26}  bar {bar:34} {'met ' if ok else 'MISS'}  {note}", flush=True)


async def throughput(bench: Bench, size: int, share_min: float, rate_min: float) -> None:
    """Durable adds in batches."""
    real, memory = await bench.compare(batches, size)
    rate = median([load.per_second for load in real])
    ceiling = median([load.per_second for load in memory])
    disk = bench.disk_rate(size, BATCH_ENTRIES * CALLS_IN_FLIGHT)
    lower = min(ceiling, disk)
    allowed = lower < rate_min or rate >= rate_min
    row(
        f"adds {size} B, batches of {BATCH_ENTRIES}",
        f"{rate:,.0f}/s = {rate / lower:.0%}",
        f">= {share_min:.0%} and {rate_min:,.0f}/s",
        ok=rate >= share_min * lower and allowed,
        note=f"memory {ceiling:,.0f} disk {disk:,.0f}; client "
        f"{median([load.client_us for load in real]):.2f} us an entry",
    )


async def many_appends(bench: Bench) -> None:
    """What an `append` costs the client when many are under way."""
    real, memory = await bench.compare(singles, 1024)
    cost = median([load.client_us for load in real])
    row(
        f"append 1024 B, {APPENDS_IN_FLIGHT} in flight",
        f"{cost:.2f} us of client CPU",
        "<= 5 us",
        ok=cost <= 5,
        note=f"{median([load.per_second for load in real]):,.0f}/s, memory "
        f"{median([load.per_second for load in memory]):,.0f}/s",
    )


async def lone_append(bench: Bench) -> None:
    """The latency of an append that is alone, beside a message without storing and a sync.

    All three in short turns: the machine's speed changes within seconds, and what is compared has
    to meet the same one.
    """
    payload, seconds = os.urandom(1024), bench.seconds / 8
    writers = [await new_ledger(at.client) for at in (bench.real, bench.memory)]
    turns: list[tuple[float, float, float]] = []
    latencies: list[float] = []
    syncs: list[float] = []
    for turn in range(TURNS + 1):
        real, memory = [
            await driven(partial(writer.append, payload), 1, 1, seconds) for writer in writers
        ]
        ping_pong = memory.percentile_us(0.5)
        sync = disk_alone(bench.root, 1024, 1, seconds / 2, pause_seconds=ping_pong / 1e6)
        if turn:  # the first one warms up
            turns.append((real.percentile_us(0.5), ping_pong, sync.p50_us))
            latencies += real.latencies
            syncs.append(sync.p99_us)
    for writer in writers:
        await writer.close()
    p50, ping_pong, one_sync = (median(list(each)) for each in zip(*turns, strict=True))
    bound = ping_pong + one_sync + 200
    low, middle, high = statistics.quantiles([a - b - c for a, b, c in turns], n=4)
    row(
        "lone append 1024 B, p50",
        f"{p50:.0f} us",
        f"<= {ping_pong:.0f} + {one_sync:.0f} + 200 = {bound:.0f} us",
        ok=p50 <= bound,
        note=f"beside the two {middle:.0f} us, in half of the turns {low:.0f} to {high:.0f}",
    )
    p99 = sorted(latencies)[int((len(latencies) - 1) * 0.99)] * 1e6
    row(
        "lone append 1024 B, p99",
        f"{p99:.0f} us = {p99 / p50:.1f} x p50",
        "<= 3 x p50",
        ok=p99 <= 3 * p50,
        note=f"of the sync alone {median(syncs):.0f} us = {median(syncs) / one_sync:.1f} x p50",
    )


async def amplification(bench: Bench) -> None:
    """What the bookie's process wrote to the device for a byte of payload, index included."""
    received = (BATCH_ENTRIES * 1024) * (1 << 11)  # 512 MiB: two checkpoints and more
    writer = await new_ledger(bench.real.client)
    payloads = [os.urandom(1024) for _ in range(BATCH_ENTRIES)]
    calls = iter(range(received // (BATCH_ENTRIES * 1024)))

    async def caller() -> None:
        for _ in calls:
            await writer.append_many(payloads)

    before = bench.real.bytes_written()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLS_IN_FLIGHT):
            tasks.create_task(caller())
    await writer.close()
    await asyncio.sleep(2)  # the checkpoint that the load made due
    packets = received // 1024 * (1024 + 36)
    written = bench.real.bytes_written() - before
    row(
        "bytes written per byte received",
        f"{written / packets:.3f}",
        "<= 1.1",
        ok=written <= 1.1 * packets,
        note=f"received with headers; {written / received:.3f} per byte of payload",
    )


async def round_robin(bench: Bench) -> None:
    """Batches of 256 entries of 1 KB, each to the next of some number of ledgers.

    The numbers of ledgers take turns. A round writes to each of them at least once. The ledgers are
    empty before the first round, so that round includes the cost of beginning them.
    """
    client = bench.real.client
    payloads = [os.urandom(1024) for _ in range(BATCH_ENTRIES)]
    everyone = {count: [await new_ledger(client) for _ in range(count)] for count in LEDGERS}
    rates: dict[int, list[float]] = {count: [] for count in LEDGERS}
    for _ in range(ROUNDS):
        for count, writers in everyone.items():
            await bench.real.settled()
            rates[count].append(await in_turn(writers, payloads, bench.seconds))
    for writers in everyone.values():
        for writer in writers:
            await writer.close()
    one, _, most = (median(rates[count]) for count in LEDGERS)
    row(
        "1, 100, 10 000 ledgers round-robin",
        f"{most:,.0f}/s = {most / one:.0%} of one",
        ">= 50% of one ledger",
        ok=most >= one / 2,
        note="; ".join(", ".join(f"{rate:,.0f}" for rate in rates[count]) for count in LEDGERS),
    )


async def in_turn(writers: list[WriterHandle], payloads: list[bytes], seconds: float) -> float:
    """Entries a second, each call to the next writer: so many seconds, and each at least once."""
    position = 0

    async def append() -> None:
        nonlocal position
        writer = writers[position % len(writers)]
        position += 1
        await writer.append_many(payloads)

    entries, elapsed = 0, 0.0
    while position < len(writers) or elapsed < seconds:
        load = await driven(append, BATCH_ENTRIES, CALLS_IN_FLIGHT, seconds)
        entries += load.entries
        elapsed += load.seconds
    return entries / elapsed


ROWS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "batches": lambda bench: throughput(bench, 1024, 0.7, 300_000),
    "small": lambda bench: throughput(bench, 100, 0.6, 1_000_000),
    "appends": many_appends,
    "lone": lone_append,
    "amplification": amplification,
    "much": after_much,
    "ledgers": round_robin,
}


async def measure(arguments: argparse.Namespace) -> None:
    """Every row that was asked for."""
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=arguments.directory))
    try:
        async with (
            served(root / "real", settings=arguments.settings) as real,
            served(root / "memory", memory=True, keeps=False) as memory,
        ):
            bench = Bench(real, memory, root, arguments.seconds)
            for name in arguments.only:
                await ROWS[name](bench)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each round")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--settings", default="", help="lines of the bookie's [storage] section")
    run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
