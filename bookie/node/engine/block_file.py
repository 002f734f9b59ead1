"""A file of blocks that is being written: a journal, an entry log, or the log of a compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie.env import File
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    BlockHeader,
    FileHeader,
    body_crc,
    encode_block_header,
    padding,
)
from bookie.node.engine.window import Buffer


@dataclass(slots=True)
class BlockFile:
    """The open file and its end. One thread at a time uses it."""

    file: File
    header: FileHeader
    end: int = FILE_HEADER_SIZE_BYTES
    """Where the next block begins, in bytes."""
    sequence: int = 0
    """Of the last block; the sequences of a journal go on in its next file."""

    @property
    def body_offset(self) -> int:
        """Where the body of the next block begins."""
        return self.end + BLOCK_HEADER_SIZE_BYTES

    def encode(self, body: Sequence[Buffer], records: int, durable_upto: int) -> list[Buffer]:
        """The next block, with its header and padding; `durable_upto` says how far a sync came."""
        nonce, sequence = self.header.nonce, self.sequence + 1
        length = sum(map(len, body))
        crc = body_crc(nonce, sequence, body)
        header = BlockHeader(sequence, durable_upto, length, records, crc)
        rest = padding(BLOCK_HEADER_SIZE_BYTES + length, self.header.alignment)
        return [encode_block_header(nonce, header), *body, rest]

    def write(self, block: Sequence[Buffer]) -> int:
        """Write what `encode` gave, not durable yet; returns the bytes that the file grew.

        Raises:
            OSError: the device failed or has no room; the end stays where it was.
        """
        size = self.file.pwritev(block, self.end)
        self.end += size
        self.sequence += 1
        return size
