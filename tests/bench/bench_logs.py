"""How fast logs are, beside ledgers on the same bookie in the same run.

    python -m tests.bench.bench_logs [--megabytes 256] [--records 10000000] [--ranges 1000000]
                                     [--ledgers 10000] [--only ROW ...] [--directory DIR]

Nothing is asserted. One real bookie; client and bookie share the machine. A row that reads compares
a log with a ledger of the same values; so does `write`. `takeover` opens a log of many ledgers
whose owner is still there. `seek` finds times in a log of many records, `ranges` opens
a log of many ranges, and `tail` compares how late a follower is with a lone append.
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
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from bookie.api import BookKeeper, LogPolicy
from bookie.daemon.loop import run
from bookie.env import gather
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.catalog.log_metadata import LogHead, LogMode, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head.chain import seal, with_published
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogRecord, plain_prefix
from bookie.log.record.record_encoder import NewRecord
from bookie.metadata.model import NOT_EXISTS
from tests.bench.bench_reads import fill
from tests.bench.processes import Served, served

ROUNDS = 9
LONE_APPENDS = 1000
ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

T = TypeVar("T")


async def reader_of(client: BookKeeper, name: str, **options: object) -> LogReader:
    """A reader of the first partition, as if nothing had been read before."""
    log = LogName.parse(name)
    logs = client._logs
    return LogReader(logs, LogPartition(log), await logs.definition(log), **options)  # type: ignore[arg-type]


async def fill_log(client: BookKeeper, name: str, size: int, total_bytes: int) -> None:
    """A closed log of `total_bytes` in values of `size`, in two ledgers."""
    await client.create_log(name, policy=ONE_COPY)
    per_call = max(1, min(1024, (1 << 20) // size))
    values = [os.urandom(size) for _ in range(per_call)]
    calls = max(4, total_bytes // (per_call * size))
    async with client.open_log(name) as writer:
        await gather(writer.append_many(values) for _ in range(calls // 2))
        await writer.roll()
        await gather(writer.append_many(values) for _ in range(calls // 2))


async def per_second(
    batches: AsyncGenerator[Sequence[T], None], look: Callable[[Sequence[T]], int]
) -> float:
    """Entries or records a second."""
    count = 0
    begin = time.perf_counter()
    async with aclosing(batches):
        async for batch in batches:
            count += look(batch)
    return count / (time.perf_counter() - begin)


def payloads(batch: Sequence[object]) -> int:
    """Look at each entry."""
    return sum(len(entry.payload) > 0 for entry in batch)  # type: ignore[attr-defined]


def values(batch: Sequence[LogRecord]) -> int:
    """Look at each record."""
    return sum(len(record.value) > 0 for record in batch)


async def reads(at: Served, size: int, total_bytes: int) -> None:
    """Whole ledgers and logs, as batches, and record by record."""
    total = total_bytes if size >= 1000 else total_bytes // 4
    stored: ReaderHandle = await fill(at, size + len(plain_prefix(0)), total)
    name = f"read-{size}"
    await fill_log(at.client, name, size, total)
    for what, look_entry, look_record in (("batches", len, len), ("each", payloads, values)):
        ledger, log = [], []
        for _ in range(ROUNDS + 1):
            ledger.append(await per_second(stored.read_batches(), look_entry))
            reader = await reader_of(at.client, name)
            log.append(await per_second(reader.batches(), look_record))
        of_ledger, of_log = statistics.median(ledger[1:]), statistics.median(log[1:])
        shares = sorted(one / other for one, other in zip(log[1:], ledger[1:], strict=True))
        print(
            f"read {size} B, {what:8} log {of_log:10,.0f} /s   ledger {of_ledger:10,.0f} /s   "
            f"round by round {shares[0]:.0%} to {shares[-1]:.0%}, "
            f"median {statistics.median(shares):.0%}",
            flush=True,
        )


async def writes(at: Served, size: int, total_bytes: int) -> None:
    """Batches of appends to a ledger and to a log, in turns."""
    per_call = max(1, min(1024, (1 << 20) // size))
    data = [os.urandom(size) for _ in range(per_call)]
    calls = max(4, total_bytes // (ROUNDS * per_call * size))

    async def rate(append_many: Callable[[list[bytes]], Coroutine[None, None, object]]) -> float:
        begin = time.perf_counter()
        await gather(append_many(data) for _ in range(calls))
        return calls * per_call / (time.perf_counter() - begin)

    name = f"write-{size}"
    await at.client.create_log(name, policy=ONE_COPY)
    ledger_rates, log_rates, shares = [], [], []
    async with (
        at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger,
        at.client.open_log(name) as log,
    ):
        for _ in range(ROUNDS + 1):
            ledger_rates.append(await rate(ledger.append_many))
            log_rates.append(await rate(log.append_many))
            shares.append(log_rates[-1] / ledger_rates[-1])
    shares = sorted(shares[1:])
    print(
        f"append_many {size} B: log {statistics.median(log_rates[1:]):10,.0f} /s   "
        f"ledger {statistics.median(ledger_rates[1:]):10,.0f} /s   round by round "
        f"{shares[0]:.0%} to {shares[-1]:.0%}, median {statistics.median(shares):.0%}",
        flush=True,
    )


async def takeovers(at: Served, count: int) -> None:
    """Open a log that has many ledgers, whose owner is still there."""
    name = "takeover"
    await at.client.create_log(name, policy=ONE_COPY)
    logs, partition = at.client._logs.logs, LogPartition(LogName.parse(name))
    log_id = (await logs.read(partition.name)).value.log_id
    head, version = LogHead(log_id), NOT_EXISTS
    for start in range(0, count, 256):
        more = [LogRange(number, 0, 0, None, 0, 100) for number in range(start, start + 256)]
        head, sealed = seal(with_published(head, more))
        version = (await logs.write_head(partition, head, version, sealed=sealed)).version
    # The last range is of a ledger that exists: its owner may have kept something in it.
    taken = []
    writer = await at.client.open_log(name)
    for _ in range(ROUNDS):
        await writer.append(b"x")
        begin = time.perf_counter()
        writer = await at.client.open_log(name)
        taken.append(1000 * (time.perf_counter() - begin))
    await writer.close()
    print(
        f"takeover of a log with {count:,} ledgers: p50 {statistics.median(taken):.0f} ms, "
        f"at most {max(taken):.0f} ms",
        flush=True,
    )


async def seeks(at: Served, records: int) -> None:
    """Seeks by time in a log of so many records, in some ledgers; one in a hundred is late."""
    await at.client.create_log("seek", policy=ONE_COPY)
    draw = random.Random(1)
    begin = time.perf_counter()
    per_call = 4096

    def batch(first: int) -> list[NewRecord]:
        return [
            NewRecord(b"12345678", timestamp_ms=one - (one % 100 == 0) * 50)
            for one in range(first, first + per_call)
        ]

    async with at.client.open_log("seek") as writer:
        for group in range(0, records, 8 * per_call):
            firsts = range(group, group + 8 * per_call, per_call)
            await gather(writer.append_many(batch(first)) for first in firsts)
            if group // (8 * per_call) % 40 == 39:
                await writer.roll()
        end = writer.next_offset()
        elapsed = time.perf_counter() - begin
        print(f"seek: {end:,} records in {elapsed:.0f} s", flush=True)
        took = []
        for _ in range(200):
            wanted = draw.randrange(end)
            reader = await reader_of(at.client, "seek", start_time=wanted)
            begin = time.perf_counter()
            async with aclosing(reader.records()) as found:
                record = await anext(found)
            took.append(1000 * (time.perf_counter() - begin))
            assert record.timestamp_ms >= wanted
        print(
            f"seek by time, first record: p50 {statistics.median(took):6.1f} ms   "
            f"p99 {sorted(took)[-2]:6.1f} ms",
            flush=True,
        )


async def ranges(at: Served, count: int) -> None:
    """Open a log of so many ranges at each kind of place; each range has one entry."""
    logs = at.client._logs
    name = LogName.parse("ranges")
    definition = await logs.create(name, mode=LogMode.TRANSACTIONAL, policy=ONE_COPY)
    ledger = await at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    for first in range(0, count, 4096):
        await ledger.append_many([plain_prefix(at) for at in range(first, first + 4096)])
    head, version = LogHead(definition.log_id), NOT_EXISTS
    for first in range(0, count, 4096):
        new = [LogRange(ledger.ledger_id, at, at, 0, at, 32) for at in range(first, first + 4096)]
        head, sealed = seal(with_published(head, new))
        written = await logs.logs.write_head(LogPartition(name), head, version, sealed=sealed)
        version = written.version
    print(f"ranges: {len(head.ranges):,} in the head, {head.next_chunk:,} chunks", flush=True)
    end = head.ranges[-1].end_offset or 0
    places: dict[str, dict[str, object]] = {
        "earliest": {},
        "latest": {"start": end - 1},
        "an offset": {"start": end // 3},
        "a time": {"start_time": end // 7},
    }
    for place, options in places.items():
        reader = await reader_of(at.client, "ranges", **options)
        begin = time.perf_counter()
        async with aclosing(reader.records()) as found:
            await anext(found)
        print(f"open at {place:10} {1000 * (time.perf_counter() - begin):7.1f} ms", flush=True)
    reader = await reader_of(at.client, "ranges", end=100_000)
    rate = await per_second(reader.batches(), len)
    print(f"read ranges of one entry: {rate:,.0f} /s", flush=True)


async def tail(
    what: str, append: Callable[[bytes], Awaitable[object]], followed: AsyncIterator[object]
) -> None:
    """From the call of a lone append to its return, and to the record at a follower."""
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def follow() -> None:
        async for _ in followed:
            arrived.put_nowait(time.perf_counter())

    append_ms, tail_ms = [], []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        for _ in range(LONE_APPENDS):
            begin = time.perf_counter()
            await append(bytes(100))
            append_ms.append(1000 * (time.perf_counter() - begin))
            tail_ms.append(1000 * (await arrived.get() - begin))
        task.cancel()
    print(
        f"tail of a {what:6}: lone append p50 {statistics.median(append_ms):.2f} ms, "
        f"at a follower p50 {statistics.median(tail_ms):.2f} ms",
        flush=True,
    )


async def tails(at: Served) -> None:
    """A ledger's tail, and a log's."""
    ledger = await at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    handle = await at.client.open_ledger(ledger.ledger_id)
    await tail("ledger", ledger.append, handle.tail())
    await at.client.create_log("tail", policy=ONE_COPY)
    reader = await reader_of(at.client, "tail", follow=True)
    async with at.client.open_log("tail") as writer:
        await tail("log", writer.append, reader.records())


async def measure(arguments: argparse.Namespace) -> None:
    """Every row that was asked for."""
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=arguments.directory))
    try:
        async with served(root) as at:
            if "write" in arguments.only:
                for size in (100, 1024):
                    await writes(at, size, arguments.megabytes << 20)
            if "takeover" in arguments.only:
                await takeovers(at, arguments.ledgers)
            if "read" in arguments.only:
                for size in (100, 1024):
                    await reads(at, size, arguments.megabytes << 20)
            if "tail" in arguments.only:
                await tails(at)
            if "ranges" in arguments.only:
                await ranges(at, arguments.ranges)
            if "seek" in arguments.only:
                await seeks(at, arguments.records)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--ranges", type=int, default=1_000_000)
    parser.add_argument(
        "--only", nargs="+", default=["write", "takeover", "read", "tail", "ranges", "seek"]
    )
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
