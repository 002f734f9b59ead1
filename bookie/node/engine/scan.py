"""Reads a file of blocks from its start or from the mark, and finds its end.

An invalid block is either the torn end of the last write, which was never reported as durable, or
damage to durable data. This module collects the facts about such a block;
`bookie.node.engine.format.tail` decides between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from bookie.entry.checksum import crc32c
from bookie.env import Readable
from bookie.errors import FormatError
from bookie.node.engine.format.arrays import Ids
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC_WORD,
    FILE_HEADER_SIZE_BYTES,
    BlockArrays,
    BlockHeader,
    FileHeader,
    block_size_on_disk,
    body_crc,
    parse_block_header,
    parse_block_headers,
)
from bookie.node.engine.format.record_arrays import RecordArrays, parse_arrays, walk_together
from bookie.node.engine.format.records import LinkRecord, RecordType, encode_link, parse_records

SCAN_BYTES = 8 * 1024 * 1024
GROUP_BYTES = 1024 * 1024
GROUP_BLOCKS = 4096
"""Small blocks are handled in groups of up to this many blocks and `GROUP_BYTES` bytes."""

LINK_RECORD_SIZE_BYTES = len(encode_link(0, bytes(16), 0))


@dataclass(frozen=True, slots=True)
class ScannedBlock:
    """A valid block at `offset`; its records begin at `body_offset` of the file."""

    offset: int
    end: int
    header: BlockHeader
    body: memoryview
    """A view of bytes that were read ahead; the view keeps all these bytes in memory."""

    @property
    def body_offset(self) -> int:
        return self.offset + BLOCK_HEADER_SIZE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """One or more consecutive valid blocks; `offset` is the start of the first block."""

    data: memoryview
    """A view of bytes that were read ahead, starting with the first block."""
    offset: int
    headers: BlockArrays
    bodies: list[memoryview]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def end(self) -> int:
        return self.offset + int(self.headers.ends[-1])

    @property
    def sequence(self) -> int:
        return int(self.headers.sequences[-1])

    def groups(self) -> Iterator[BlockGroup]:
        """Yield the blocks in order, in groups of about `GROUP_BYTES` or of one larger block."""
        sizes = np.cumsum(self.headers.body_lengths)
        counts = np.cumsum(self.headers.record_counts)
        offsets = self._record_offsets()
        start, before, records = 0, 0, 0
        while start < len(self):
            stop = int(np.searchsorted(sizes, before + GROUP_BYTES)) + 1
            stop = min(stop, len(self), start + GROUP_BLOCKS)
            until = int(counts[stop - 1])
            yield _group(self, start, stop, None if offsets is None else offsets[records:until])
            start, before, records = stop, int(sizes[stop - 1]), until

    def _record_offsets(self) -> Ids | None:
        """Return all record offsets in `data`; None if a search group by group is faster."""
        counts, lengths = self.headers.record_counts, self.headers.body_lengths
        if bool((lengths * counts[0] == lengths[0] * counts).all()):
            # The records probably have one size, so their places can be computed.
            return None
        starts = self.headers.starts + BLOCK_HEADER_SIZE_BYTES
        return walk_together(self.data, starts, starts + lengths, counts)


def runs(
    file: Readable, header: FileHeader, start: int, sequence_after: int, ahead: int = SCAN_BYTES
) -> Iterator[BlockRun]:
    """Yield the valid blocks from `start` on, up to the first invalid block.

    `sequence_after` is the sequence number of the block before `start`; 0 if unknown. Sequence
    numbers increase by one, so a block with an unexpected sequence number is invalid. After an
    invalid block, callers continue with `next_valid`.
    """
    size = file.size()
    offset, data = start, memoryview(b"")
    while offset + BLOCK_HEADER_SIZE_BYTES <= size:
        wanted = _first_length(data, header)
        if wanted > len(data):
            data = _chunk(file, offset, size, max(ahead, wanted))
            wanted = _first_length(data, header)
            if len(data) < wanted <= size - offset:
                data = _chunk(file, offset, size, wanted)
        run = _run(data, header, offset, sequence_after)
        if run is None:
            return
        yield run
        data = data[run.end - offset :]
        offset, sequence_after = run.end, run.sequence


def blocks(
    file: Readable, header: FileHeader, start: int, sequence_after: int
) -> Iterator[ScannedBlock]:
    """Yield the blocks of `runs` one by one, which is slow; for inspection only."""
    size = file.size()
    while (block := read_block(file, header, start, size)) is not None:
        if not _is_in_place(block.header, start, sequence_after):
            return
        yield block
        start, sequence_after = block.end, block.header.sequence


def _first_length(data: memoryview, header: FileHeader) -> int:
    """Return the length of the block at the start of `data`; for an invalid block, of a header.

    Raises:
        FormatError: the header is intact but has flags that this version does not know.
    """
    found = parse_block_header(data[:BLOCK_HEADER_SIZE_BYTES], header.nonce)
    return BLOCK_HEADER_SIZE_BYTES + (0 if found is None else found.body_length)


def _run(data: memoryview, header: FileHeader, offset: int, sequence_after: int) -> BlockRun | None:
    """Return the valid blocks at the start of `data`, which begins at `offset` of the file."""
    found = parse_block_headers(data, header.alignment, header.nonce)
    if found is None:
        return None
    if sequence_after and int(found.sequences[0]) != sequence_after + 1:
        return None
    rising = found.sequences - found.sequences[0] == np.arange(len(found), dtype=np.uint64)
    in_place = rising & (found.durable_upto <= (found.starts + offset).astype(np.uint64))
    found = found.first(_leading(in_place))
    begins = found.starts + BLOCK_HEADER_SIZE_BYTES
    ends = begins + found.body_lengths
    bodies = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    crcs = np.array(list(map(crc32c, bodies, found.body_seeds.tolist())), np.uint32)
    count = _leading(crcs == found.body_crcs)
    if count == 0:
        return None
    return BlockRun(data, offset, found.first(count), bodies[:count])


def _leading(answers: npt.NDArray[np.bool_]) -> int:
    """Count the True values before the first False."""
    return len(answers) if bool(answers.all()) else int(answers.argmin())


def _is_in_place(block: BlockHeader, offset: int, sequence_after: int) -> bool:
    """True if the sequence number and the `durable_upto` of a valid block fit its place."""
    expected = sequence_after + 1 if sequence_after else block.sequence
    return block.sequence == expected and block.durable_upto <= offset


def left_by_no_crash(
    file: Readable, header: FileHeader, invalid_at: int, sequence_after: int, *, room_after: bool
) -> bool:
    """True if a crash cannot have left the bytes at `invalid_at`.

    A crash never leaves a misplaced block of this file, or a block that exceeds the file's end.
    With `room_after`, the result is also True if the file has no room for another block.
    """
    found = parse_block_header(file.pread(BLOCK_HEADER_SIZE_BYTES, invalid_at), header.nonce)
    size = file.size()
    if found is None:
        return room_after and size < invalid_at + header.alignment
    end = invalid_at + BLOCK_HEADER_SIZE_BYTES + found.body_length
    return end > size or not _is_in_place(found, invalid_at, sequence_after)


def _chunk(file: Readable, offset: int, size: int, wanted: int) -> memoryview:
    return memoryview(file.pread(min(wanted, size - offset), offset))


def _is_intact(header: FileHeader, block: BlockHeader, body: memoryview) -> bool:
    if len(body) != block.body_length:
        return False
    return body_crc(header.nonce, block.sequence, [body]) == block.body_crc


def read_block(file: Readable, header: FileHeader, offset: int, size: int) -> ScannedBlock | None:
    """Read the block at `offset`; return None if its header or body is invalid."""
    block = parse_block_header(file.pread(BLOCK_HEADER_SIZE_BYTES, offset), header.nonce)
    if block is None:
        return None
    if offset + BLOCK_HEADER_SIZE_BYTES + block.body_length > size:
        return None
    body = memoryview(file.pread(block.body_length, offset + BLOCK_HEADER_SIZE_BYTES))
    if not _is_intact(header, block, body):
        return None
    end = offset + block_size_on_disk(block.body_length, header.alignment)
    return ScannedBlock(offset, end, block, body)


@dataclass(frozen=True, slots=True, eq=False)
class BlockGroup:
    """The records of neighbouring blocks in order, without LINK records.

    Blocks are grouped because parsing a block with a single append takes as long as parsing a large
    block.
    """

    body: memoryview
    records: int
    starts: Ids
    """The offset in `body` of each block's records; blocks without records are left out."""
    counts: Ids
    places: Ids
    """The offset in the file of each block's records."""
    end: int
    """The file offset at which the block after this group begins."""
    sequence: int
    offsets: Ids | None = None
    """The offset in `body` of each record, if these offsets are known."""

    def parse(self) -> RecordArrays:
        """Parse the records of all blocks in this group.

        Raises:
            FormatError: a block does not hold the records that its header states.
        """
        parsed = parse_arrays(self.body, self.records, self.offsets)
        first_of_block = np.cumsum(self.counts) - self.counts
        if not np.array_equal(parsed.offsets[first_of_block], self.starts):
            raise FormatError(f"a block before {self.end} does not hold the records it says")
        return parsed

    def places_of(self, offsets: Ids) -> Ids:
        """Turn `offsets` in `body` into offsets in the file."""
        block = np.searchsorted(self.starts, offsets, "right") - 1
        return offsets - self.starts[block] + self.places[block]


def grouped(found: Iterable[BlockRun]) -> Iterator[BlockGroup]:
    """Yield the groups of all runs, in order."""
    for run in found:
        yield from run.groups()


def _group(run: BlockRun, start: int, stop: int, offsets: Ids | None) -> BlockGroup:
    """Group the blocks `start` … `stop` (exclusive); `offsets` are the offsets of their records."""
    part = slice(start, stop)
    counts = run.headers.record_counts[part]
    begins = run.headers.starts[part] + BLOCK_HEADER_SIZE_BYTES
    lengths = run.headers.body_lengths[part]
    bodies = run.bodies[part]
    # Skip empty blocks: an empty block may have no type byte to read.
    filled = np.flatnonzero((counts > 0) & (lengths > 0))
    kinds = np.frombuffer(run.data, np.uint8)[begins[filled]]
    # Go backwards, so that earlier offsets stay valid.
    for index in filled[kinds == RecordType.LINK][::-1].tolist():
        bodies[index] = bodies[index][LINK_RECORD_SIZE_BYTES:]
        if offsets is not None:
            first = int(run.headers.record_counts[start : start + index].sum())
            offsets = _without_link(offsets, first, int(begins[index] + lengths[index]))
        counts = _changed(counts, index, -1)
        begins = _changed(begins, index, LINK_RECORD_SIZE_BYTES)
    if not bool(counts.all()):
        bodies = list(compress(bodies, (counts > 0).tolist()))
        begins, counts = begins[counts > 0], counts[counts > 0]
    sizes = np.array(list(map(len, bodies)), np.int64)
    starts = np.cumsum(sizes) - sizes
    if offsets is not None:
        offsets = offsets + np.repeat(starts - begins, counts)
    return BlockGroup(
        body=bodies[0] if len(bodies) == 1 else memoryview(b"".join(bodies)),
        records=int(counts.sum()),
        starts=starts,
        counts=counts,
        places=begins + run.offset,
        end=run.offset + int(run.headers.ends[stop - 1]),
        sequence=int(run.headers.sequences[stop - 1]),
        offsets=offsets,
    )


def _without_link(offsets: Ids, index: int, end: int) -> Ids | None:
    """Drop `offsets[index]` of a LINK whose block ends at `end`; None if no LINK is there."""
    following = int(offsets[index + 1]) if index + 1 < len(offsets) else end
    # The next record may be in a later block; then the LINK is the only record of its block.
    if min(following, end) - int(offsets[index]) != LINK_RECORD_SIZE_BYTES:
        return None
    return np.delete(offsets, index)


def _changed(values: Ids, index: int, difference: int) -> Ids:
    changed = values.copy()
    changed[index] += difference
    return changed


def later_headers(
    file: Readable, header: FileHeader, after: int, sequence_after: int
) -> Iterator[tuple[int, BlockHeader]]:
    """Yield the offset and the header of each later block; the bodies are not checked.

    A later block has a valid header at a block boundary after the offset `after`, and a sequence
    number above `sequence_after`.
    """
    size = file.size()
    step = header.alignment
    offset = after - after % step + step
    while offset < size:
        chunk = file.pread(min(SCAN_BYTES, size - offset), offset)
        usable = len(chunk) - len(chunk) % step
        words = np.frombuffer(chunk, np.dtype("<u4"), count=usable // 4)
        for index in np.flatnonzero(words[:: step // 4] == BLOCK_MAGIC_WORD).tolist():
            where = offset + index * step
            found = parse_block_header(file.pread(BLOCK_HEADER_SIZE_BYTES, where), header.nonce)
            if found is not None and found.sequence > sequence_after:
                yield where, found
        if not usable:
            return
        offset += usable


def next_valid(
    file: Readable, header: FileHeader, after: int, sequence_after: int
) -> ScannedBlock | None:
    """Find the first valid block beyond `after`, to continue after a damaged region."""
    size = file.size()
    for offset, _ in later_headers(file, header, after, sequence_after):
        block = read_block(file, header, offset, size)
        if block is not None:
            return block
    return None


def link_of(file: Readable, header: FileHeader) -> LinkRecord | None:
    """Return the LINK record of a file, which names the preceding file; None without a LINK."""
    block = read_block(file, header, FILE_HEADER_SIZE_BYTES, file.size())
    if block is None:
        return None
    for _, record in parse_records(block.body, block.header.record_count):
        return record if isinstance(record, LinkRecord) else None
    return None
