"""How fast a bookie starts: replay of a journal, rebuild of an index, a start with a full index.

    python -m tests.bench.bench_boot [--megabytes 256] [--entries 10000000] [--json FILE]

Each start is a process of its own. Replay and rebuild are measured on journal files of several
shapes, with an empty page cache. Two ceilings of the same file stand beside them: reading it from
the device, and reading it with a CRC over every byte. Replay also writes what it keeps and syncs
it; what that costs alone is the third column. Nothing is asserted; the table is for people.

A megabyte is 10**6 bytes of the files, headers and the zeros behind short blocks among them: all of
it is read. How much of it is payload is a column of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from bookie.config import StorageSettings
from bookie.daemon.loop import prepare_process
from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.env import PosixDisk, ThreadWorkers, system_environment
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.directories import locked_directories
from bookie.node.engine.engine import open_engine
from bookie.node.engine.files import create_file, file_name
from bookie.node.engine.format.blocks import (
    BlockHeader,
    FileHeader,
    FileKind,
    body_crc,
    encode_block_header,
    padding,
)
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.format.records import encode_entries_head
from bookie.node.engine.index.entry_index import CheckpointChange, LedgerChange
from bookie.node.engine.memtable import LocationTable
from bookie.telemetry import Metrics

IDENTITY = Identity("bench-1", "5c2b0c1e-0000-4000-8000-000000000001")
CHUNK_BYTES = 8 << 20
FILE_BYTES = 256 << 20
ENTRIES_PER_COMMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What a journal consists of."""

    what: str
    size_bytes: int
    """Of a payload, if it is not `mixed`; the packet has 36 more."""
    per_record: int
    records_per_block: int
    ledgers: int = 1
    mixed: bool = False
    """Whether sizes are drawn, from 1 byte to twice `size_bytes`."""


SHAPES = (
    Shape("1 KB, 256 to a record", 1024, 256, 4),
    Shape("1 KB, one to a record", 1024, 1, 330),
    Shape("1 KB, one to a record, 1000 ledgers", 1024, 1, 330, 1000),
    Shape("1 KB, one to a record, 10,000 ledgers", 1024, 1, 330, 10_000),
    Shape("1 KB, one to a block", 1024, 1, 1),
    Shape("1 KB, one to a block, 1000 ledgers", 1024, 1, 1, 1000),
    Shape("0 to 2 KB, one to a record", 1024, 1, 330, 10, mixed=True),
    Shape("0 to 2 KB, one to a block", 1024, 1, 1, 10, mixed=True),
    Shape("100 B, one to a record", 100, 1, 330),
    Shape("0 to 200 B, one to a record", 100, 1, 330, 10, mixed=True),
    Shape("100 B, one to a block", 100, 1, 1),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: megabytes a second of the journal's size on disk."""

    what: str
    entries: int
    megabytes: float
    payload_megabytes: float
    replay: float
    rebuild: float
    rebuild_of_logs: float
    read: float
    read_and_crc: float
    written_and_synced: float


@dataclass(frozen=True, slots=True)
class FullIndex:
    """Starts with a full index, in seconds."""

    entries: int
    ledgers: int
    index_megabytes: float
    clean_seconds: float
    after_crash_seconds: float


def _settings(root: Path) -> StorageSettings:
    return StorageSettings(journal_dir=root / "journal", ledgers_dir=root / "ledgers")


def started(root: Path) -> tuple[float, int]:
    """What `_boot` returns in a process of its own, as every start of a bookie is one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_start, root).result()


def _start(root: Path) -> tuple[float, int]:
    # As the daemon does.
    prepare_process()
    return asyncio.run(_boot(root))


async def _boot(root: Path) -> tuple[float, int]:
    """Start and stop; returns the seconds of the start and the entries that it replayed."""
    settings = _settings(root)
    async with ThreadWorkers() as workers:
        environment = system_environment(workers)
        with locked_directories(environment.disk, settings) as directories:
            async with open_engine(
                environment, settings, Metrics(), directories, IDENTITY
            ) as engine:
                return engine.report.seconds, engine.report.entries


def records(shape: Shape) -> Iterator[tuple[bytes, int]]:
    """ENTRIES records of the shape, without end, and how many bytes of each are the clients'.

    Each ledger's ids ascend.
    """
    digester = digester_for_key(DigestType.CRC32C, b"")
    longest = os.urandom(2 * shape.size_bytes)
    draw = Random(shape.what)
    number = 0
    while True:
        ledger_id, turn = number % shape.ledgers, number // shape.ledgers
        size = draw.randint(1, len(longest)) if shape.mixed else shape.size_bytes
        batch: EntryBatch = pack_batch(
            ledger_id, turn * shape.per_record, -1, 0, [longest[:size]] * shape.per_record, digester
        )
        record = encode_entries_head(batch, crc32c(batch.payload), False) + bytes(batch.payload)
        yield record, size * shape.per_record
        number += 1


def write_journals(directory: Path, shape: Shape, size: int) -> tuple[list[Path], int, int]:
    """Write journal files of `size` bytes together; returns paths, entries, bytes of payload."""
    source = records(shape)
    entries, payload_bytes, left, number = 0, 0, size, 1000
    paths = []
    while left > 0:
        header = FileHeader(FileKind.JOURNAL, number, os.urandom(16), 512)
        file = create_file(PosixDisk(), str(directory), header, FILE_BYTES)
        end, sequence = 4096, 0
        while end < min(FILE_BYTES - CHUNK_BYTES, left):
            sequence += 1
            found = [next(source) for _ in range(shape.records_per_block)]
            body = b"".join(record for record, _ in found)
            payload_bytes += sum(payload for _, payload in found)
            crc = body_crc(header.nonce, sequence, [body])
            head = encode_block_header(
                header.nonce, BlockHeader(sequence, end, len(body), shape.records_per_block, crc)
            )
            block = head + body
            block += padding(len(block), 512)
            file.pwritev([block], end)
            end += len(block)
            entries += shape.per_record * shape.records_per_block
        # A killed process leaves room behind its last block; a file that ends with it was cut.
        file.truncate(end + 4096)
        file.fdatasync()
        file.close()
        paths.append(directory / file_name(FileKind.JOURNAL, number))
        left -= end
        number += 1
    return paths, entries, payload_bytes


def _read(path: Path, *, crc: bool) -> None:
    file = PosixDisk().open(str(path))
    for offset in range(0, file.size(), CHUNK_BYTES):
        data = file.pread(CHUNK_BYTES, offset)
        if crc:
            crc32c(data)
    file.close()


def _write(path: Path, size: int) -> None:
    disk, target = PosixDisk(), str(path.with_suffix(".copy"))
    file = disk.create(target, 0)
    chunk = os.urandom(CHUNK_BYTES)
    for offset in range(0, size, CHUNK_BYTES):
        file.pwritev([chunk[: size - offset]], offset)
    file.fdatasync()
    file.close()
    disk.unlink(target)


def _drop(paths: list[Path]) -> None:
    for path in paths:
        file = PosixDisk().open(str(path))
        file.drop_cache()
        file.close()


def _ceiling(paths: list[Path], megabytes: float, *, crc: bool) -> float:
    _drop(paths)
    began = time.perf_counter()
    for path in paths:
        _read(path, crc=crc)
    return megabytes / (time.perf_counter() - began)


def measure(root: Path, shape: Shape, size: int) -> Row:
    """One shape of journal, replayed and rebuilt from."""
    started(root)
    paths, entries, payload_bytes = write_journals(root / "journal", shape, size)
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    read = _ceiling(paths, megabytes, crc=False)
    read_and_crc = _ceiling(paths, megabytes, crc=True)
    began = time.perf_counter()
    for path in paths:
        _write(path, path.stat().st_size)
    written = megabytes / (time.perf_counter() - began)
    kept = root.with_name(root.name + "-kept")
    shutil.copytree(root / "journal", kept)
    _drop(paths)
    replay_seconds, replayed = started(root)
    assert replayed == entries, (replayed, entries)
    # What the index lost is made again from the logs that the replay has written …
    logs = sorted((root / "ledgers" / "logs").glob("*.log"))
    log_megabytes = sum(path.stat().st_size for path in logs) / 1e6
    shutil.rmtree(root / "ledgers" / "index")
    _drop(logs)
    logs_seconds, _ = started(root)
    # … and from the journals as they were.
    shutil.rmtree(root / "ledgers")
    shutil.rmtree(root / "journal")
    shutil.move(kept, root / "journal")
    _drop(paths)
    rebuild_seconds, rebuilt = started(root)
    assert rebuilt == entries, (rebuilt, entries)
    return Row(
        shape.what,
        entries,
        megabytes,
        payload_bytes / 1e6,
        megabytes / replay_seconds,
        megabytes / rebuild_seconds,
        log_megabytes / logs_seconds,
        read,
        read_and_crc,
        written,
    )


async def fill_index(root: Path, entries: int, ledgers: int) -> None:
    """Put `entries` slots into the index of a stopped bookie, as checkpoints would have."""
    settings = _settings(root)
    each = entries // ledgers
    together = max(1, ENTRIES_PER_COMMIT // each)
    async with ThreadWorkers() as workers:
        environment = system_environment(workers)
        with locked_directories(environment.disk, settings) as directories:
            async with open_engine(
                environment, settings, Metrics(), directories, IDENTITY
            ) as engine:
                index = engine._booted.index
                mark = index.mark()
                assert mark is not None
                ids = np.arange(each, dtype=np.int64)
                table = LocationTable(
                    ids,
                    np.full(each, mark.file_number, np.uint32),
                    (ids * 1060 % (1 << 31)).astype(np.uint32),
                    np.full(each, 1060, np.uint32),
                )
                row = LedgerIndexRow(first_entry_id=0, last_entry_id=each - 1)
                for first in range(0, ledgers, together):
                    some = range(first, min(first + together, ledgers))
                    changes = [LedgerChange(ledger_id, row, table) for ledger_id in some]
                    index.commit(CheckpointChange(mark, changes))


def measure_full_index(root: Path, entries: int, ledgers: int) -> FullIndex:
    """Starts beside an index of `entries` entries: after a stop, and after a power cut."""
    asyncio.run(fill_index(root, entries, ledgers))
    clean, _ = started(root)
    size = (root / "ledgers" / "index" / "data.mdb").stat().st_size / 1e6
    (root / "ledgers" / "FAILED").touch()
    # A process that did not stop in order leaves room behind its last block.
    newest = max((root / "journal").glob("*.journal"))
    os.truncate(newest, newest.stat().st_size + 4096)
    asyncio.run(_forget_clean(root))
    crashed, _ = started(root)
    return FullIndex(entries, ledgers, size, clean, crashed)


async def _forget_clean(root: Path) -> None:
    from bookie.env import open_lmdb
    from bookie.node.engine.index.entry_index import META_CLEAN, TABLES, Index

    index = Index(open_lmdb(str(root / "ledgers" / "index"), 1 << 40, TABLES))
    index.put_meta({META_CLEAN: b"0"})
    index.close()


def table(rows: list[Row]) -> Table:
    """The rows for a terminal."""
    columns = ("journal", "MB", "payload", "entries", "replay MB/s", "rebuild MB/s", "of logs")
    result = Table(
        *columns, "read MB/s", "read + CRC", "write + sync", title="starts, cold page cache"
    )
    for row in rows:
        result.add_row(
            row.what,
            f"{row.megabytes:.0f}",
            f"{row.payload_megabytes / row.megabytes:.0%}",
            f"{row.entries:,}",
            *(
                f"{rate:,.0f}"
                for rate in (
                    row.replay,
                    row.rebuild,
                    row.rebuild_of_logs,
                    row.read,
                    row.read_and_crc,
                    row.written_and_synced,
                )
            ),
        )
    return result


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="size of each journal")
    parser.add_argument("--entries", type=int, default=10_000_000, help="entries of the full index")
    parser.add_argument(
        "--ledgers", type=int, nargs="+", default=[100, 10_000], help="of the full index"
    )
    parser.add_argument("--only", default="", help="only journals whose name has this in it")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bookie-bench-", dir=Path.cwd()))
    try:
        shapes = [shape for shape in SHAPES if arguments.only in shape.what]
        rows = [
            measure(root / str(number), shape, arguments.megabytes << 20)
            for number, shape in enumerate(shapes)
        ]
        console = Console(width=140)
        console.print(table(rows))
        starts = []
        for ledgers in arguments.ledgers if arguments.entries else ():
            full = measure_full_index(root / f"full-{ledgers}", arguments.entries, ledgers)
            starts.append(full)
            console.print(
                f"a start beside {full.entries:,} entries of {ledgers:,} ledgers in an index of "
                f"{full.index_megabytes:,.0f} MB: {full.clean_seconds:.2f} s after a stop, "
                f"{full.after_crash_seconds:.2f} s after a failed disk (pages are checked twice)"
            )
        if arguments.json:
            report = {"rows": list(map(asdict, rows)), "full": list(map(asdict, starts))}
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
