"""Finds flipped bits in entries that have no digest; clients cannot check such entries.

Clients check the digests of entries. No request contains the digest type of a ledger. So a bookie
infers the digest type from the entries that it reads: from a valid CRC, or from entry sizes and the
length fields in packet headers. If a ledger has no digests, or an unknown digest type, the bookie
returns an entry only if the CRC of its block or of its record matches. Read threads share the
digest types that they inferred.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES, EntryBatch, headers_of
from bookie.entry.checksum import crc32c
from bookie.env import Buffer, File
from bookie.errors import FormatError
from bookie.node.engine.files import read_header
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BODY_SIZE_BYTES_MAX,
    FILE_HEADER_SIZE_BYTES,
    FileHeader,
    body_crc,
    parse_block_header,
)
from bookie.node.engine.format.records import EntriesRecord, parse_records

LEDGERS_MAX = 100_000
"""The largest number of ledgers whose digest sizes are remembered."""

SEARCH_BYTES = 64 * 1024
"""The number of bytes that one step reads when it searches for the start of a block."""

_CRC_BYTES = 4
_HMAC_BYTES = 20


class DigestSizes:
    """Remembers the digest size of each ledger; a size of 0 bytes means no digest.

    A remembered size above 0 bytes only means that entries have a digest; the true digest may be
    longer.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def protects(self, ledger_id: int, packet: Buffer) -> bool:
        """True if the ledger is known to have digests, or if `packet` contains a valid CRC."""
        size = self._sizes.get(ledger_id)
        if size is None and _has_crc(packet):
            size = _CRC_BYTES
            self.learn(ledger_id, size)
        return bool(size)

    def known(self, ledger_id: int) -> int | None:
        return self._sizes.get(ledger_id)

    def learn(self, ledger_id: int, size: int) -> None:
        if len(self._sizes) >= LEDGERS_MAX:
            self._sizes.clear()
        self._sizes[ledger_id] = size

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Forget these ledgers: new ledgers with the same ids may have other digest types."""
        for ledger_id in ledger_ids:
            self._sizes.pop(ledger_id, None)


def _has_crc(packet: Buffer) -> bool:
    """True if the packet has a correct digest of type CRC-32C or CRC-32."""
    view = memoryview(packet)
    if len(view) < PACKET_HEADER_SIZE_BYTES + _CRC_BYTES:
        # The packet is too short for a digest; the missing bytes would be read as the digest 0.
        return False
    head, at = view[:PACKET_HEADER_SIZE_BYTES], PACKET_HEADER_SIZE_BYTES
    if int.from_bytes(view[at : at + 4], "big") == crc32c(view[at + 4 :], crc32c(head)):
        return True
    return view[at : at + 8] == zlib.crc32(view[at + 8 :], zlib.crc32(head)).to_bytes(8, "big")


class BlockCheck:
    """Checks bytes of a file with the checksum of the block that contains the bytes."""

    def __init__(self, digests: DigestSizes, ledger_id: int) -> None:
        self._digests = digests
        self._ledger_id = ledger_id
        self._file: File | None = None
        self._header: FileHeader | None = None
        self._start = self._end = 0
        """Start and end of the body of the last block read."""
        self._sound: list[tuple[int, int]] = []
        """Start and end of each intact part of the last block body read."""

    def is_sound(self, file: File, offset: int, size: int) -> bool:
        """True if the checksum of the block, or of the record, proves the bytes at `offset` intact.

        Raises:
            OSError: the device failed.
        """
        if file is not self._file:
            self._file, self._header, self._end = file, None, 0
        end = offset + size
        while offset < end:
            if not self._start <= offset < self._end and not self._find(file, offset):
                return False
            stop = min(end, self._end)
            if not any(low <= offset and stop <= high for low, high in self._sound):
                return False
            # The bytes may be in several blocks, with a block header between two bodies.
            offset = stop
        return True

    def _find(self, file: File, offset: int) -> bool:
        """Read the block whose body contains `offset`; return False if no block is found."""
        try:
            header = self._header = self._header or read_header(file)
            for start in _candidates(file, offset, header.alignment):
                head = file.pread(BLOCK_HEADER_SIZE_BYTES, start)
                block = parse_block_header(head, header.nonce)
                if block is None:
                    continue
                self._start = start + BLOCK_HEADER_SIZE_BYTES
                self._end = self._start + block.body_length
                if offset >= self._end:
                    return False
                body = memoryview(file.pread(block.body_length, self._start))
                is_whole = (
                    len(body) == block.body_length
                    and body_crc(header.nonce, block.sequence, [body]) == block.body_crc
                )
                self._sound = [(self._start, self._end)] if is_whole else []
                if not is_whole or self._digests.known(self._ledger_id) is None:
                    self._look_through(body, block.record_count, is_whole=is_whole)
                return True
        except FormatError:
            pass
        return False

    def _look_through(self, body: memoryview, count: int, *, is_whole: bool) -> None:
        """Find the intact records in a damaged body; in an intact body, find the digest size.

        The search ends at the first record with a damaged header.
        """
        before: EntryBatch | None = None
        try:
            for _, record in parse_records(body, count):
                if not isinstance(record, EntriesRecord):
                    continue
                if record.batch.ledger_id != self._ledger_id:
                    continue
                if is_whole:
                    size = _digest_size(before, record.batch)
                    if size is not None:
                        self._digests.learn(self._ledger_id, size)
                        return
                    before = record.batch
                elif crc32c(record.batch.payload) == record.payload_crc32c:
                    start = self._start + record.payload_offset
                    self._sound.append((start, start + len(record.batch.payload)))
        except FormatError:
            return


def _candidates(file: File, offset: int, alignment: int) -> Iterator[int]:
    """Yield possible starts of the block whose body contains `offset`, nearest first."""
    lowest = max(offset - BODY_SIZE_BYTES_MAX - BLOCK_HEADER_SIZE_BYTES, FILE_HEADER_SIZE_BYTES)
    stop = offset // alignment * alignment + len(BLOCK_MAGIC)
    while stop > lowest:
        start = max(lowest, (stop - SEARCH_BYTES) // alignment * alignment)
        data = bytes(file.pread(stop - start, start))
        at = data.rfind(BLOCK_MAGIC)
        while at >= 0:
            if (start + at) % alignment == 0:
                yield start + at
            at = data.rfind(BLOCK_MAGIC, 0, at + len(BLOCK_MAGIC) - 1)
        # Blocks start at aligned offsets, so no magic number crosses the boundary of two pieces.
        stop = start


def _digest_size(before: EntryBatch | None, batch: EntryBatch) -> int | None:
    """Compute the digest size from sizes and length fields of adjacent entries, or return None."""
    ids, (_, _, _, lengths) = batch.entry_ids(), headers_of(batch)
    sizes = batch.sizes.astype(np.int64)
    if before is not None:
        last = before.entry_ids()[-1:], headers_of(before)[3][-1:], before.sizes[-1:]
        ids = np.concatenate((last[0], ids))
        lengths = np.concatenate((last[1], lengths))
        sizes = np.concatenate((last[2].astype(np.int64), sizes))
    follow = np.flatnonzero(ids[1:] - ids[:-1] == 1) + 1
    if ids[0] == 0:
        size = int(sizes[0] - lengths[0])
    elif len(follow):
        at = follow[0]
        size = int(sizes[at] - (lengths[at] - lengths[at - 1]))
    else:
        return None
    size -= PACKET_HEADER_SIZE_BYTES
    return size if size in (0, _HMAC_BYTES) else None
