"""Reading a file of blocks from the start or from the mark, and judging where it ends.

A block that does not validate is either the torn end of the last write, which nobody was told is
durable, or damage to something that was. The evidence is gathered here; the verdict is a table in
`bookie.formats.tail`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bookie.env import Readable
from bookie.errors import FormatError
from bookie.formats.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER_SIZE_BYTES,
    BlockHeader,
    FileHeader,
    block_size_on_disk,
    body_crc,
    parse_block_header,
)
from bookie.formats.record_arrays import Ids, RecordArrays, parse_arrays
from bookie.formats.records import LinkRecord, RecordType, encode_link, parse_records

SCAN_BYTES = 8 * 1024 * 1024
GROUP_BYTES = 1024 * 1024
GROUP_BLOCKS = 4096
"""Small blocks are handled together until there are so many, or their bodies are so large."""

LINK_RECORD_SIZE_BYTES = len(encode_link(0, bytes(16), 0))
_MAGIC_WORD = int.from_bytes(BLOCK_MAGIC, "little")


@dataclass(frozen=True, slots=True)
class ScannedBlock:
    """A valid block at `offset`; its records begin at `body_offset` of the file."""

    offset: int
    end: int
    header: BlockHeader
    body: memoryview
    """A view of what was read ahead; it keeps all of that in memory."""

    @property
    def body_offset(self) -> int:
        """Where the records begin in the file."""
        return self.offset + BLOCK_HEADER_SIZE_BYTES


def blocks(
    file: Readable,
    header: FileHeader,
    start: int,
    sequence_after: int,
    ahead: int = SCAN_BYTES,
) -> Iterator[ScannedBlock]:
    """Valid blocks from `start` on, up to the first that is not.

    `sequence_after` is the sequence of the block before `start`, 0 if that is not known; sequences
    rise by one, so that no other block of the same file is a successor. After an interruption the
    caller asks `next_valid`.
    """
    size = file.size()
    offset, chunk, chunk_at = start, memoryview(b""), start
    while offset + BLOCK_HEADER_SIZE_BYTES <= size:
        inside = offset - chunk_at
        if inside + BLOCK_HEADER_SIZE_BYTES > len(chunk):
            chunk, chunk_at, inside = _chunk(file, offset, size, ahead), offset, 0
        found = parse_block_header(chunk[inside : inside + BLOCK_HEADER_SIZE_BYTES], header.nonce)
        if found is None or not _is_in_place(found, offset, sequence_after):
            return
        length = BLOCK_HEADER_SIZE_BYTES + found.body_length
        if offset + length > size:
            return
        if inside + length > len(chunk):
            wanted = max(ahead, length)
            chunk, chunk_at, inside = _chunk(file, offset, size, wanted), offset, 0
        body = chunk[inside + BLOCK_HEADER_SIZE_BYTES : inside + length]
        if not _is_intact(header, found, body):
            return
        end = offset + block_size_on_disk(found.body_length, header.alignment)
        yield ScannedBlock(offset, end, found, body)
        sequence_after = found.sequence
        offset = end


def _is_in_place(block: BlockHeader, offset: int, sequence_after: int) -> bool:
    """Whether a valid block belongs where it stands: sequences rise by one, syncs come before."""
    expected = sequence_after + 1 if sequence_after else block.sequence
    return block.sequence == expected and block.durable_upto <= offset


def left_by_no_crash(
    file: Readable, header: FileHeader, invalid_at: int, sequence_after: int, *, room_after: bool
) -> bool:
    """Whether no crash leaves what stands at `invalid_at`, behind the block `sequence_after`.

    That is another block of this file, or one that reaches beyond the end of the file; with
    `room_after` also that the file ends where there was room for one more block.
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
    """The block at `offset`, or None when its header or body does not validate."""
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
    """Neighbouring blocks, their records one after the other. Links are left out.

    A block that holds a single lone append costs as much as a large one; together they do not.
    """

    body: memoryview
    records: int
    starts: Ids
    """Where each block's records begin in `body`; blocks without records are left out."""
    counts: Ids
    """How many records each of them has."""
    places: Ids
    """Where each block's records begin in the file."""
    last: ScannedBlock

    def parse(self) -> RecordArrays:
        """The records of all blocks.

        Raises:
            FormatError: a block does not hold the records that it says.
        """
        parsed = parse_arrays(self.body, self.records)
        first_of_block = np.cumsum(self.counts) - self.counts
        if not np.array_equal(parsed.offsets[first_of_block], self.starts):
            raise FormatError(f"a block before {self.last.end} does not hold the records it says")
        return parsed

    def places_of(self, offsets: Ids) -> Ids:
        """Where in the file the bytes stand that are at `offsets` of `body`."""
        block = np.searchsorted(self.starts, offsets, "right") - 1
        return offsets - self.starts[block] + self.places[block]


def grouped(found: Iterable[ScannedBlock]) -> Iterator[BlockGroup]:
    """Blocks in groups, in order; a group is `GROUP_BYTES` large, or one block."""
    group: list[ScannedBlock] = []
    size = 0
    for block in found:
        group.append(block)
        size += len(block.body)
        if size >= GROUP_BYTES or len(group) >= GROUP_BLOCKS:
            yield _group(group)
            group, size = [], 0
    if group:
        yield _group(group)


def _group(found: list[ScannedBlock]) -> BlockGroup:
    bodies, counts, places = [], [], []
    for block in found:
        body, records, place = block.body, block.header.record_count, block.body_offset
        if records and body[0] == RecordType.LINK:
            body, records = body[LINK_RECORD_SIZE_BYTES:], records - 1
            place += LINK_RECORD_SIZE_BYTES
        if records:
            bodies.append(body)
            counts.append(records)
            places.append(place)
    joined = bodies[0] if len(bodies) == 1 else memoryview(b"".join(bodies))
    lengths = np.array(list(map(len, bodies)), np.int64)
    return BlockGroup(
        joined,
        sum(counts),
        np.cumsum(lengths) - lengths,
        np.array(counts, np.int64),
        np.array(places, np.int64),
        found[-1],
    )


def later_headers(
    file: Readable, header: FileHeader, after: int, sequence_after: int
) -> Iterator[tuple[int, BlockHeader]]:
    """Valid block headers at boundaries beyond `after`, whatever stands between."""
    size = file.size()
    step = header.alignment
    offset = after - after % step + step
    while offset < size:
        chunk = file.pread(min(SCAN_BYTES, size - offset), offset)
        usable = len(chunk) - len(chunk) % step
        words = np.frombuffer(chunk, np.dtype("<u4"), count=usable // 4)
        for index in np.flatnonzero(words[:: step // 4] == _MAGIC_WORD).tolist():
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
    """The first whole valid block beyond `after`, to go on with behind a damaged region."""
    size = file.size()
    for offset, _ in later_headers(file, header, after, sequence_after):
        block = read_block(file, header, offset, size)
        if block is not None:
            return block
    return None


def link_of(file: Readable, header: FileHeader) -> LinkRecord | None:
    """What the first block of a file says about its predecessor, if there is such a block."""
    block = read_block(file, header, FILE_HEADER_SIZE_BYTES, file.size())
    if block is None:
        return None
    for _, record in parse_records(block.body, block.header.record_count):
        return record if isinstance(record, LinkRecord) else None
    return None
