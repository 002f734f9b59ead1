"""Read a stopped bookie's directories without changing any data; only lock files are written.

The inspection shows the valid blocks of a file, and the offset where these blocks end. The
inspection cannot decide if the block after this offset is torn or corrupt. Only the bookie's start
can decide if a block is torn or corrupt, because the start reads all files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bookie.cluster.cookie import Cookie, decode_cookie
from bookie.env import PosixDisk, open_lmdb
from bookie.errors import ConfigurationError
from bookie.ids import MAX_ID
from bookie.node.engine.files import parse_file_name, read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.records import (
    DeletedRecord,
    EntriesRecord,
    FenceRecord,
    LacRecord,
    LedgerRecord,
    LimboRecord,
    LinkRecord,
    Record,
    parse_records,
)
from bookie.node.engine.index.entry_index import TABLES, Index
from bookie.node.engine.scan import ScannedBlock, blocks, later_headers

INDEX_MAP_BYTES = 1 << 40
"""The bytes of address space reserved to read an index; the reservation uses no memory."""

COOKIE_BYTES_MAX = 64 * 1024
LEDGERS_PER_READ = 1024


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """One valid block: its offsets in the file, and its records as text."""

    offset: int
    end: int
    sequence: int
    durable_upto: int
    records: tuple[str, ...]
    entries: int


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The content of one journal file or entry log."""

    path: str
    kind: str
    number: int
    alignment: int
    size_bytes: int
    blocks: tuple[BlockSummary, ...]
    end: int
    """The offset of the first byte after the valid blocks at the file's start."""
    blocks_beyond: int
    """The number of valid block headers after `end`; if it is above 0, the file has a hole."""

    @property
    def entries(self) -> int:
        return sum(block.entries for block in self.blocks)


def inspect_file(path: Path) -> FileSummary:
    """Read a journal file or entry log from its start to the first block that is not valid.

    Raises:
        FormatError: the file is not a journal file or entry log, or a newer version wrote it.
        OSError: the file cannot be read.
    """
    file = PosixDisk().open(os.path.abspath(path))
    try:
        header = read_header(file)
        found = []
        end, sequence = FILE_HEADER_SIZE_BYTES, 0
        for block in blocks(file, header, end, sequence):
            found.append(_summarize(block))
            end, sequence = block.end, block.header.sequence
        beyond = sum(1 for _ in later_headers(file, header, end, sequence))
        return _file_summary(path, header, file.size(), found, end, beyond)
    finally:
        file.close()


def _file_summary(
    path: Path, header: FileHeader, size: int, found: list[BlockSummary], end: int, beyond: int
) -> FileSummary:
    kind = "journal" if header.kind is FileKind.JOURNAL else "log"
    return FileSummary(
        str(path), kind, header.number, header.alignment, size, tuple(found), end, beyond
    )


def _summarize(block: ScannedBlock) -> BlockSummary:
    records = [record for _, record in parse_records(block.body, block.header.record_count)]
    return BlockSummary(
        offset=block.offset,
        end=block.end,
        sequence=block.header.sequence,
        durable_upto=block.header.durable_upto,
        records=tuple(describe_record(record) for record in records),
        entries=sum(r.batch.count for r in records if isinstance(r, EntriesRecord)),
    )


def describe_record(record: Record) -> str:
    """Describe a record in one short line of text."""
    match record:
        case EntriesRecord():
            batch = record.batch
            recovery = ", recovery" if record.recovery else ""
            return (
                f"ENTRIES ledger {batch.ledger_id}, {batch.first_entry_id}…{batch.last_entry_id} "
                f"({batch.count} entries, {batch.payload_bytes} bytes{recovery})"
            )
        case LedgerRecord():
            return f"LEDGER ledger {record.ledger_id}, {_keyed(record.key)}"
        case FenceRecord():
            return f"FENCE ledger {record.ledger_id}, {_keyed(record.key)}"
        case LacRecord():
            return f"LAC ledger {record.ledger_id}, {len(record.packet)} bytes"
        case DeletedRecord():
            return f"DELETED ledger {record.ledger_id}"
        case LinkRecord():
            return f"LINK after file {record.predecessor_number}, end {record.predecessor_end}"
        case LimboRecord():
            entered = "LIMBO" if record.fences else "LIMBO_UNFENCED"
            return f"{entered if record.in_limbo else 'UNLIMBO'} ledger {record.ledger_id}"


def _keyed(key: bytes) -> str:
    # The output never shows the key, because a client with the key can write to the ledger.
    return "with a key" if key else "without a key"


def files_in(path: Path, kind: FileKind) -> list[Path]:
    """Return the files of one kind, sorted by number.

    If `path` is a file, the result is only this file. Otherwise the function searches the directory
    `path` and, for entry logs, also the subdirectory ``logs/``.

    Raises:
        ConfigurationError: there are no files of this kind.
    """
    if path.is_file():
        return [path]
    directories = [path, path / "logs"] if kind is FileKind.ENTRY_LOG else [path]
    found: list[tuple[int, Path]] = []
    for directory in directories:
        for child in directory.iterdir() if directory.is_dir() else ():
            parsed = parse_file_name(child.name)
            if parsed is not None and parsed[0] is kind:
                found.append((parsed[1], child))
    if not found:
        what = "journal file" if kind is FileKind.JOURNAL else "entry log"
        raise ConfigurationError(f"there is no {what} in {path}")
    return [child for _, child in sorted(found)]


@contextmanager
def opened_index(ledgers_dir: Path) -> Iterator[Index]:
    """Open the index in a stopped bookie's directory of ledgers for the duration of the block.

    Raises:
        ConfigurationError: there is no index.
        DirectoryLockedError: the bookie runs.
        CorruptionError: the index is damaged.
        FormatError: a newer version of bookie wrote the index.
    """
    index_dir = ledgers_dir / "index"
    if not (index_dir / "data.mdb").is_file():
        raise ConfigurationError(f"there is no index in {ledgers_dir}")
    lock = PosixDisk().lock(os.path.abspath(ledgers_dir / "LOCK"))
    try:
        index = Index(open_lmdb(str(index_dir), INDEX_MAP_BYTES, TABLES))
        try:
            index.check_format()
            yield index
        finally:
            index.close()
    finally:
        lock.close()


def entry_ranges(index: Index, ledger_id: int) -> Iterator[tuple[int, int]]:
    """Yield each range of consecutive entry ids of a ledger in the index, as (first, last).

    The ranges come in ascending order.
    """
    pending: tuple[int, int] | None = None
    following = 0
    while following <= MAX_ID:
        ids, following = index.entry_ids(ledger_id, following, MAX_ID)
        breaks = np.flatnonzero(np.diff(ids) > 1)
        firsts = ids[np.concatenate(([0], breaks + 1))] if len(ids) else ids
        lasts = ids[np.concatenate((breaks, [len(ids) - 1]))] if len(ids) else ids
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            if pending is not None and pending[1] + 1 == first:
                pending = (pending[0], last)
                continue
            if pending is not None:
                yield pending
            pending = (first, last)
    if pending is not None:
        yield pending


def read_cookie(directory: Path) -> Cookie:
    """Read the cookie in one directory.

    Raises:
        ConfigurationError: the directory has no cookie.
        FormatError: the cookie is damaged, or a newer version wrote it.
    """
    try:
        data = (directory / "COOKIE").read_bytes()[:COOKIE_BYTES_MAX]
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no cookie in {directory}") from error
    return decode_cookie(data)
