"""What is still alive in a sealed file: its blocks are read once, the index says what counts.

An entry is alive in a file when its slot points at exactly this place of this file. Only blocks
whose CRC is right are looked at; what lies in a damaged one stays where it is, and the index keeps
pointing there, so that asking for it is an I/O error and never "no such entry".
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np

from bookie.env import Disk, File
from bookie.formats.batch import EntryBatch
from bookie.formats.blocks import FILE_HEADER_SIZE_BYTES, FileHeader
from bookie.formats.records import EntriesRecord, LinkRecord
from bookie.storage.files import read_header
from bookie.storage.index import Index
from bookie.storage.relocation import U32, Ids
from bookie.storage.scan import BlockGroup, BlockRun, grouped, next_valid, runs


@dataclass(frozen=True, slots=True)
class LiveEntries:
    """Entries of one ledger that are alive in a file, with their packets."""

    batch: EntryBatch
    file: int
    offsets: U32


@dataclass(slots=True)
class Found:
    """What one step of a survey found."""

    bytes_read: int = 0
    live: list[LiveEntries] = field(default_factory=list)
    ledgers: set[int] = field(default_factory=set)
    """Ledgers about which the file says more than what they contain: keys, fences, LACs."""
    is_last: bool = False
    """Whether the file was read to its end."""


def survey(disk: Disk, index: Index, number: int, path: str) -> Generator[Found, None, None]:
    """Read the file, a group of blocks at a time; the last item says that it was read to its end.

    Blocking; each step is short.

    Raises:
        OSError: the file cannot be read.
        FormatError: its header is damaged, or a newer version wrote it.
        CorruptionError: a page of the index is damaged.
    """
    file = disk.open(path)
    try:
        header = read_header(file)
        if header.number != number:
            return
        gone: dict[int, bool] = {}
        for group in grouped(_intact(file, header)):
            yield _look_at(index, number, group, gone)
        yield Found(is_last=True)
    finally:
        file.close()


def _intact(file: File, header: FileHeader) -> Iterator[BlockRun]:
    """Every valid block, whatever stands between them."""
    offset, sequence = FILE_HEADER_SIZE_BYTES, 0
    while True:
        for run in runs(file, header, offset, sequence):
            offset, sequence = run.end, run.sequence
            yield run
        following = next_valid(file, header, offset, sequence)
        if following is None:
            return
        offset, sequence = following.offset, following.header.sequence - 1


def _look_at(index: Index, number: int, group: BlockGroup, gone: dict[int, bool]) -> Found:
    """Find what is alive in these blocks."""
    found = Found(len(group.body))
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
            # Pages of a deleted ledger are on their way out; nobody will ask for them.
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


def batch_of(ledger_id: int, ids: Ids, sizes: U32, payload: bytes | memoryview) -> EntryBatch:
    """A batch of entries with ascending ids."""
    steps = np.diff(ids)
    contiguous = bool((steps == 1).all())
    return EntryBatch(ledger_id, int(ids[0]), None if contiguous else steps, sizes, payload)


def gather(body: bytes | memoryview, starts: Ids, sizes: U32) -> bytes:
    """The packets at `starts`, one after the other; neighbours are copied as one."""
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
