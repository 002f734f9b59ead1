"""Reading a file of blocks from the start or from the mark, and judging where it ends.

A block that does not validate is either the torn end of the last write, which nobody was told is
durable, or damage to something that was. The evidence is gathered here; the verdict is a table in
`bookie.formats.tail`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bookie.env import File
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
from bookie.formats.records import LinkRecord, parse_records

SCAN_BYTES = 8 * 1024 * 1024
_MAGIC_WORD = int.from_bytes(BLOCK_MAGIC, "little")


@dataclass(frozen=True, slots=True)
class ScannedBlock:
    """A valid block at `offset`; its records begin at `body_offset` of the file."""

    offset: int
    end: int
    header: BlockHeader
    body: bytes

    @property
    def body_offset(self) -> int:
        """Where the records begin in the file."""
        return self.offset + BLOCK_HEADER_SIZE_BYTES


def blocks(
    file: File, header: FileHeader, start: int, sequence_after: int
) -> Iterator[ScannedBlock]:
    """Valid blocks from `start` on, up to the first that is not.

    `sequence_after` is the sequence of the block before `start`; sequences rise, so that a stale
    block of the same file is no successor. After an interruption the caller asks `next_valid`.
    """
    size = file.size()
    offset = start
    while offset + BLOCK_HEADER_SIZE_BYTES <= size:
        block = read_block(file, header, offset, size)
        if block is None or block.header.sequence <= sequence_after:
            return
        yield block
        sequence_after = block.header.sequence
        offset = block.end


def read_block(file: File, header: FileHeader, offset: int, size: int) -> ScannedBlock | None:
    """The block at `offset`, or None when its header or body does not validate."""
    block = parse_block_header(file.pread(BLOCK_HEADER_SIZE_BYTES, offset), header.nonce)
    if block is None:
        return None
    if offset + BLOCK_HEADER_SIZE_BYTES + block.body_length > size:
        return None
    body = file.pread(block.body_length, offset + BLOCK_HEADER_SIZE_BYTES)
    if len(body) != block.body_length:
        return None
    if body_crc(header.nonce, block.sequence, [body]) != block.body_crc:
        return None
    end = offset + block_size_on_disk(block.body_length, header.alignment)
    return ScannedBlock(offset, end, block, body)


def later_headers(
    file: File, header: FileHeader, after: int, sequence_after: int
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
    file: File, header: FileHeader, after: int, sequence_after: int
) -> ScannedBlock | None:
    """The first whole valid block beyond `after`, to go on with behind a damaged region."""
    size = file.size()
    for offset, _ in later_headers(file, header, after, sequence_after):
        block = read_block(file, header, offset, size)
        if block is not None:
            return block
    return None


def link_of(file: File, header: FileHeader) -> LinkRecord | None:
    """What the first block of a file says about its predecessor, if there is such a block."""
    block = read_block(file, header, FILE_HEADER_SIZE_BYTES, file.size())
    if block is None:
        return None
    for _, record in parse_records(memoryview(block.body), block.header.record_count):
        return record if isinstance(record, LinkRecord) else None
    return None
