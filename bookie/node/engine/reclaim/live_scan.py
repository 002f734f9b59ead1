"""Scans a sealed file once, and finds its live entries with the index.

An entry in the file is alive if its slot in the index points to exactly this copy. The scan skips
blocks with a wrong CRC. The index still points to the entries in such blocks, so a read of one of
these entries is an I/O error.

Requests share the processor and the interpreter with the scan. So the scan works in short steps: it
reads a large block 1 MiB at a time, and examines a few records at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bookie.entry.batch import EntryBatch, batch_of
from bookie.env import Disk, File
from bookie.node.engine.files import read_header
from bookie.node.engine.format.arrays import U32, Ids
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    FileHeader,
    parse_block_header,
)
from bookie.node.engine.format.records import RECORD_HEADER_SIZE_BYTES, EntriesRecord, LinkRecord
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.scan import BlockGroup, BlockRun, next_valid, runs

STEP_BYTES = 1024 * 1024
"""The number of bytes to read or examine at once; a larger record is examined as a whole."""


@dataclass(frozen=True, slots=True)
class LiveEntries:
    """Entries of one ledger that are alive in a file, with their packets."""

    batch: EntryBatch
    file: int
    offsets: U32


@dataclass(slots=True)
class Found:
    """The findings of one step of a scan."""

    bytes_read: int = 0
    live: list[LiveEntries] = field(default_factory=list)
    ledgers: set[int] = field(default_factory=set)
    """Ledgers for which the step found other records than entries: keys, fences, LACs."""
    is_last: bool = False
    """True if the file was read to its end."""


def scan_live(disk: Disk, index: Index, number: int, path: str) -> Generator[Found, None, None]:
    """Read the file in small, blocking steps; yield the findings of each step.

    The last item has `is_last` set, if the file was read to its end.

    Raises:
        OSError: the file cannot be read.
        FormatError: the file's header is damaged, or a newer version wrote the file.
        CorruptionError: a page of the index is damaged.
    """
    file = disk.open(path)
    try:
        header = read_header(file)
        if header.number != number:
            return
        gone: dict[int, bool] = {}
        for item in _intact(file, header):
            if isinstance(item, int):
                yield Found(item)
                continue
            for group in item.groups():
                for piece in _pieces(group):
                    yield _look_at(index, number, piece, gone)
        yield Found(is_last=True)
    finally:
        file.close()


def _pieces(group: BlockGroup) -> Iterator[BlockGroup]:
    """Split a large block into groups of a few records."""
    body, records = group.body, group.records
    if len(body) <= STEP_BYTES or len(group.starts) > 1:
        yield group
        return
    begin = at = count = 0
    for number in range(1, records + 1):
        at += RECORD_HEADER_SIZE_BYTES + int.from_bytes(body[at + 4 : at + 8], "little")
        count += 1
        if number == records:
            # The remaining bytes belong to the last record, or the block is inconsistent.
            at = len(body)
        elif at - begin < STEP_BYTES:
            continue
        yield replace(
            group,
            body=body[begin:at],
            records=count,
            counts=np.array([count], np.int64),
            places=group.places + begin,
            offsets=None,
        )
        begin, count = at, 0


def _intact(file: File, header: FileHeader) -> Iterator[BlockRun | int]:
    """Yield all valid blocks, and skip damage; after each read, yield the number of bytes read."""
    ahead = _Ahead(file)
    offset, sequence = FILE_HEADER_SIZE_BYTES, 0
    while True:
        yield from ahead.fetch_block(header, offset)
        run = next(runs(ahead, header, offset, sequence, STEP_BYTES), None)
        if run is not None:
            offset, sequence = run.end, run.sequence
            yield run
            continue
        following = next_valid(file, header, offset, sequence)
        if following is None:
            return
        offset, sequence = following.offset, following.header.sequence - 1


class _Ahead:
    """Reads a part of a file ahead, in steps."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._at = 0
        self._data = memoryview(b"")

    def size(self) -> int:
        return self._size

    def pread(self, size: int, offset: int) -> memoryview:
        """Return up to `size` bytes at `offset` from the part that was fetched last."""
        start = offset - self._at
        return self._data[start : start + size]

    def fetch_block(self, header: FileHeader, offset: int) -> Iterator[int]:
        """Fetch the block at `offset`, if a block begins there; yields like `fetch`."""
        yield from self.fetch(BLOCK_HEADER_SIZE_BYTES, offset)
        found = parse_block_header(self.pread(BLOCK_HEADER_SIZE_BYTES, offset), header.nonce)
        if found is not None:
            yield from self.fetch(BLOCK_HEADER_SIZE_BYTES + found.body_length, offset)

    def fetch(self, size: int, offset: int) -> Iterator[int]:
        """Fetch at least `size` bytes at `offset`, or all bytes up to the end of the file.

        Each read takes at most `STEP_BYTES`. After each read, yield the number of bytes read.
        """
        end = self._at + len(self._data)
        if self._at <= offset and offset + size <= end:
            return
        known = self._data[offset - self._at :] if self._at <= offset < end else memoryview(b"")
        wanted = max(min(max(size, STEP_BYTES), self._size - offset), len(known))
        # Allocate a new buffer, because blocks already yielded are views of the old buffer.
        buffer = np.empty(wanted, np.uint8).data
        done = len(known)
        buffer[:done] = known
        while done < wanted:
            piece = self._file.pread(min(STEP_BYTES, wanted - done), offset + done)
            if not piece:
                # The file was cut meanwhile: the bookie cuts dead files to free their space.
                break
            buffer[done : done + len(piece)] = piece
            done += len(piece)
            yield len(piece)
        self._at, self._data = offset, buffer[:done]


def _look_at(index: Index, number: int, group: BlockGroup, gone: dict[int, bool]) -> Found:
    """Return the live entries in these blocks, and the ledgers that have other records in them."""
    found = Found()
    if not group.records:
        return found
    parsed = group.parse()
    found.ledgers = {
        record.ledger_id
        for record in parsed.others
        if not isinstance(record, LinkRecord | EntriesRecord)
    }
    if not len(parsed.entry_ids):
        return found
    places = group.places_of(parsed.packets)
    order = np.lexsort((parsed.entry_ids, parsed.ledger_ids))
    sorted_ledgers = parsed.ledger_ids[order]
    breaks = np.flatnonzero(sorted_ledgers[1:] != sorted_ledgers[:-1]) + 1
    for of_ledger in np.split(order, breaks):
        ledger_id = int(parsed.ledger_ids[of_ledger[0]])
        if ledger_id not in gone:
            row = index.ledger(ledger_id)
            # The pages of a deleted ledger will be removed, so its entries count as dead.
            gone[ledger_id] = row is None or row.deleted_at_ms is not None
        if gone[ledger_id]:
            continue
        ids, sizes = parsed.entry_ids[of_ledger], parsed.sizes[of_ledger].astype(np.uint32)
        slots = index.slots(ledger_id, ids)
        if slots is None:
            continue
        offsets = places[of_ledger]
        alive = slots.points_at(number, offsets, sizes)
        if alive.any():
            payload = gather(group.body, parsed.packets[of_ledger][alive], sizes[alive])
            batch = batch_of(ledger_id, ids[alive], sizes[alive], payload)
            found.live.append(LiveEntries(batch, number, offsets[alive].astype(np.uint32)))
    return found


def gather(body: bytes | memoryview, starts: Ids, sizes: U32) -> bytes:
    """Join the packets at `starts` in this order; copy adjacent packets as one piece."""
    ends = starts + sizes
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    begin = np.concatenate(([0], breaks))
    stop = np.concatenate((breaks, [len(starts)])) - 1
    view = memoryview(body)
    return b"".join(
        [
            view[first:last]
            for first, last in zip(starts[begin].tolist(), ends[stop].tolist(), strict=True)
        ]
    )
