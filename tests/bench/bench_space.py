"""What a bookie's index takes on disk for each entry, and its anonymous memory afterwards.

    python -m tests.bench.bench_space [--only dense large interleaved lone] [--share 1.0] \
        [--directory DIR]

Loads of entries of 100 bytes: one ledger; a hundred, ten entries of each in turn; ledgers of one
entry. And one ledger of twenty million entries of 1 KB, which are 20 GB. `--share` makes every load
smaller. Size is measured after an orderly stop: the LMDB pages in use, and the file with its free
pages. Memory is the RssAnon of the process before that, at rest and at its peak. Last is the time
of a new start, from the call of the program until a client sees the bookie registered.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import lmdb

from bookie.daemon.loop import run
from bookie.ledger.write.handle import WriterHandle
from tests.bench.processes import Served, served

SIZE = 100
BATCH = 1000
WRITERS = 100
IN_FLIGHT = 64


async def _ledger(at: Served) -> WriterHandle:
    return await at.client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def dense(at: Served, entries: int) -> None:
    """One ledger."""
    writer = await _ledger(at)
    payloads = [os.urandom(SIZE)] * BATCH
    await _many(entries // BATCH, lambda _: writer.append_many(payloads))
    await writer.close()


async def large(at: Served, entries: int) -> None:
    """One ledger with entries of 1 KB: what matters is how much passes through."""
    writer = await _ledger(at)
    payloads = [os.urandom(1024)] * BATCH
    await _many(entries // BATCH, lambda _: writer.append_many(payloads))
    await writer.close()


async def interleaved(at: Served, entries: int) -> None:
    """A hundred ledgers, ten entries of each in turn."""
    writers = [await _ledger(at) for _ in range(WRITERS)]
    payloads = [os.urandom(SIZE)] * 10
    await _many(entries // 10, lambda n: writers[n % WRITERS].append_many(payloads))
    for writer in writers:
        await writer.close()


async def lone(at: Served, entries: int) -> None:
    """Ledgers of one entry."""

    async def one(_: int) -> None:
        writer = await _ledger(at)
        await writer.append(bytes(SIZE))
        await writer.close()

    await _many(entries, one)


async def _many(count: int, call: Callable[[int], Awaitable[object]]) -> None:
    """Make the calls 0 … count - 1, some of them under way at a time."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(caller())


def used_bytes(index: Path) -> dict[str, int]:
    """Bytes of LMDB pages in use, by table."""
    with lmdb.open(str(index.parent), readonly=True, max_dbs=8, lock=False) as environment:
        tables = {}
        for name in ("locations", "ledgers", "files", "meta"):
            handle = environment.open_db(name.encode(), create=False)
            with environment.begin() as txn:
                stat = txn.stat(handle)
            pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            tables[name] = pages * stat["psize"]
        return tables


LOADS: dict[str, tuple[Callable[[Served, int], Awaitable[None]], int]] = {
    "dense": (dense, 10_000_000),
    "large": (large, 20_000_000),
    "interleaved": (interleaved, 2_000_000),
    "lone": (lone, 100_000),
}
"""By name: a load, and its entries."""


async def _peak(at: Served, peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], at.anonymous_megabytes())
        await asyncio.sleep(0.2)


async def measure(arguments: argparse.Namespace) -> None:
    """Each load on a bookie of its own."""
    for name in arguments.only:
        load, all_entries = LOADS[name]
        entries = int(all_entries * arguments.share)
        root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=arguments.directory))
        peak = [0.0]
        try:
            async with served(root, settings=arguments.settings) as at:
                async with asyncio.TaskGroup() as tasks:
                    watcher = tasks.create_task(_peak(at, peak))
                    begin = time.perf_counter()
                    await load(at, entries)
                    elapsed = time.perf_counter() - begin
                    await asyncio.sleep(1)
                    watcher.cancel()
                rest = at.anonymous_megabytes()
            tables, file_bytes = used_bytes(at.index), at.index.stat().st_blocks * 512
            begin = time.perf_counter()
            async with served(root, settings=arguments.settings):
                started = time.perf_counter() - begin
            print(
                f"{name:12} {entries:,} entries in {elapsed:.0f} s: index "
                f"{sum(tables.values()) / entries:.1f} B an entry "
                f"({', '.join(f'{name} {size / entries:.1f}' for name, size in tables.items())}; "
                f"its file {file_bytes / entries:.1f}), "
                f"anonymous memory {rest:.0f} MB, at most {peak[0]:.0f} MB; "
                f"started again and registered in {started:.1f} s",
                flush=True,
            )
        finally:
            shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--share", type=float, default=1.0, help="of the entries of each load")
    parser.add_argument("--settings", default="", help="lines of the section [storage]")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
