"""What `bookie.sync` costs beside the async API: the same calls, one at a time, on one bookie.

    python -m tests.bench.bench_sync [--seconds 2] [--directory DIR]

Both clients live in the loop of `bookie.sync`, so they differ in the way between the threads only.
They take turns, and each figure is the median of its rounds. Nothing is asserted; the table is for
people.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bookie.sync
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.write.handle import WriterHandle
from bookie.sync.handles import SyncReader, SyncWriter
from bookie.sync.loop_thread import Resident, this_process
from tests.bench.bench_writes import new_ledger
from tests.bench.processes import served

ROUNDS = 5
BATCH_ENTRIES = 256
ENTRIES = 100_000
ONE_COPY: dict[str, Any] = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


async def appended(writer: WriterHandle, batch: list[bytes], seconds: float) -> float:
    """Calls a second of the async writer."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        await (writer.append_many(batch) if len(batch) > 1 else writer.append(batch[0]))
        calls += 1
    return calls / (time.perf_counter() - begin)


def appended_sync(writer: SyncWriter, batch: list[bytes], seconds: float) -> float:
    """Calls a second of the writer without a loop."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        _ = writer.append_many(batch) if len(batch) > 1 else writer.append(batch[0])
        calls += 1
    return calls / (time.perf_counter() - begin)


async def read(reader: ReaderHandle, *, whole_batches: bool) -> float:
    """Entries a second of the async reader."""
    begin, count = time.perf_counter(), 0
    if whole_batches:
        async for batch in reader.read_batches():
            count += len(batch)
    else:
        async for _ in reader.read():
            count += 1
    return count / (time.perf_counter() - begin)


def read_sync(reader: SyncReader, *, whole_batches: bool) -> float:
    """Entries a second of the reader without a loop."""
    begin = time.perf_counter()
    count = sum(map(len, reader.read_batches())) if whole_batches else sum(1 for _ in reader.read())
    return count / (time.perf_counter() - begin)


def row(what: str, one: Callable[[], float], other: Callable[[], float], unit: str) -> None:
    """Measure both in turns, and print."""
    one(), other()
    rates = [(one(), other()) for _ in range(ROUNDS)]
    plain, sync = (statistics.median(each) for each in zip(*rates, strict=True))
    more_us = (1 / sync - 1 / plain) * 1e6
    print(
        f"{what:34} async {plain:12,.0f}  sync {sync:12,.0f} {unit}/s = {sync / plain:4.0%}"
        f"   {more_us:+8.2f} us each",
        flush=True,
    )


def measure(root: Path, seconds: float) -> None:
    """Every row."""
    home = this_process.home()
    running = Resident(home, served(root))
    cluster = running.open()
    payload = os.urandom(1024)
    with bookie.sync.connect(cluster.uri) as bk:
        plain, sync = home.run(new_ledger(cluster.client)), bk.create_ledger(**ONE_COPY)
        for entries in (1, BATCH_ENTRIES):
            batch = [payload] * entries
            row(
                "append" if entries == 1 else f"append_many, {entries} entries of 1 KB",
                lambda batch=batch: home.run(appended(plain, batch, seconds)),  # type: ignore[misc]
                lambda batch=batch: appended_sync(sync, batch, seconds),  # type: ignore[misc]
                "calls",
            )
        home.run(plain.close())
        sync.close()
        with bk.create_ledger(**ONE_COPY) as writer:
            for _ in range(ENTRIES // BATCH_ENTRIES):
                writer.append_many([payload] * BATCH_ENTRIES)
        reader = home.run(cluster.client.open_ledger(writer.ledger_id))
        sync_reader = bk.open_ledger(writer.ledger_id)
        for whole in (True, False):
            row(
                "read_batches" if whole else "read",
                lambda whole=whole: home.run(read(reader, whole_batches=whole)),  # type: ignore[misc]
                lambda whole=whole: read_sync(sync_reader, whole_batches=whole),  # type: ignore[misc]
                "entries",
            )
    running.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each round of appends")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=arguments.directory) as directory:
        measure(Path(directory), arguments.seconds)


if __name__ == "__main__":
    main()
