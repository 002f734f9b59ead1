"""Journal files and entry logs: a file header, then blocks of records.

All numbers are little endian. A file is {header, block, block, …}; every block starts at a multiple
of the file's alignment.

**File header**, 4096 bytes:

====== ===== ===================================================================
offset bytes meaning
====== ===== ===================================================================
0      8     magic ``b"BOOKIEFL"``
8      4     format version (u32)
12     4     kind (u32): 1 journal, 2 entry log
16     8     file number (u64)
24     16    nonce: random, new for each file
40     4     alignment of blocks in bytes (u32): 512 … 4096, a power of two
44     4048  zeros
4092   4     CRC-32C of bytes 0 … 4092 (u32)
====== ===== ===================================================================

The magic, the version field and the place of the CRC are the same in every format version. So a
reader can distinguish damage from a newer version.

**Block**: one group commit, made of a header, a body, and zeros up to the alignment.

====== ===== ===================================================================
offset bytes meaning
====== ===== ===================================================================
0      4     magic ``b"blok"``
4      2     flags (u16), 0
6      2     reserved (u16), 0
8      4     body length in bytes (u32): 8 MiB normally, never above 64 MiB
12     4     number of records in the body (u32)
16     8     sequence (u64): rises by one from block to block, also across journals
24     8     durable_upto (u64): this file was known to be synced up to this offset
             when the block was written
32     4     CRC-32C of the nonce, the sequence (u64) and the body
36     4     CRC-32C of the nonce and bytes 0 … 36
40     …     body: records (see :mod:`bookie.node.engine.format.records`)
====== ===== ===================================================================

Both CRCs include the nonce, so old blocks that an earlier file left on the device are invalid. The
body's CRC includes the sequence, so a body under another block's header is invalid. Zeros are not a
valid block, because the magic is not zero.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bookie.entry.checksum import crc32c, crcs_of_rows
from bookie.entry.digest import BytesLike
from bookie.errors import FormatError, NewerFormatError
from bookie.node.engine.format.arrays import U32, Ids

FORMAT_VERSION = 1
"""The format version that this code writes, and the newest version that this code reads."""

FILE_MAGIC = b"BOOKIEFL"
BLOCK_MAGIC = b"blok"
FILE_HEADER_SIZE_BYTES = 4096
BLOCK_HEADER_SIZE_BYTES = 40
NONCE_SIZE_BYTES = 16
ALIGNMENTS_BYTES = (512, 1024, 2048, 4096)
BODY_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""The largest valid body length; a larger one means damage: writers end a block near 8 MiB."""

_FILE_HEADER = struct.Struct("<8sIIQ16sI")
_BLOCK_HEADER = struct.Struct("<4sHHIIQQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_CRC_AT = FILE_HEADER_SIZE_BYTES - 4
_ZEROS = bytes(max(ALIGNMENTS_BYTES))

_HEADS = np.dtype(
    [
        ("magic", "<u4"),
        ("flags", "<u2"),
        ("reserved", "<u2"),
        ("body_length", "<u4"),
        ("record_count", "<u4"),
        ("sequence", "<u8"),
        ("durable_upto", "<u8"),
        ("body_crc", "<u4"),
        ("crc", "<u4"),
    ]
)
assert _HEADS.itemsize == BLOCK_HEADER_SIZE_BYTES
BLOCK_MAGIC_WORD = int.from_bytes(BLOCK_MAGIC, "little")
_SEQUENCE_BYTES = slice(16, 24)


class FileKind(enum.IntEnum):
    """The kind of a file of blocks: journal or entry log."""

    JOURNAL = 1
    ENTRY_LOG = 2


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 4096 bytes of a journal file or entry log."""

    kind: FileKind
    number: int
    nonce: bytes
    """16 random bytes that differ in every file."""
    alignment: int
    """Blocks start at multiples of this many bytes."""

    def encode(self) -> bytes:
        assert len(self.nonce) == NONCE_SIZE_BYTES
        assert self.alignment in ALIGNMENTS_BYTES
        head = _FILE_HEADER.pack(
            FILE_MAGIC, FORMAT_VERSION, self.kind, self.number, self.nonce, self.alignment
        ).ljust(_CRC_AT, b"\0")
        return head + _U32.pack(crc32c(head))


class BlockHeader(NamedTuple):
    """The fields of a block's header."""

    sequence: int
    durable_upto: int
    """The file was synced up to this offset when the block was written."""
    body_length: int
    record_count: int
    body_crc: int


def decode_file_header(data: BytesLike) -> FileHeader:
    """Decode the file header at the start of `data`, which may be longer than a header.

    Raises:
        FormatError: the data is not the header of a bookie's file, a newer version wrote it, or it
            is damaged. The message gives the reason.
    """
    if len(data) < FILE_HEADER_SIZE_BYTES:
        raise FormatError(f"a file of {len(data)} bytes is shorter than a file header")
    magic, version, kind, number, nonce, alignment = _FILE_HEADER.unpack_from(data)
    if magic != FILE_MAGIC:
        raise FormatError("not a bookie journal or log file: it starts with other bytes")
    (crc,) = _U32.unpack_from(data, _CRC_AT)
    if crc != crc32c(memoryview(data)[:_CRC_AT]):
        raise FormatError("the file header is damaged: its checksum is wrong")
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"the file was written by a newer version: format {version}, "
            f"and this program reads up to {FORMAT_VERSION}"
        )
    if version == 0 or kind not in set(FileKind) or alignment not in ALIGNMENTS_BYTES:
        raise FormatError(
            f"the file header makes no sense: version {version}, kind {kind}, alignment {alignment}"
        )
    return FileHeader(FileKind(kind), number, nonce, alignment)


def encode_block_header(nonce: bytes, header: BlockHeader) -> bytes:
    """Return the 40 bytes of a block's header, for the file with this `nonce`."""
    assert 0 <= header.body_length <= BODY_SIZE_BYTES_MAX
    head = _BLOCK_HEADER.pack(
        BLOCK_MAGIC,
        0,
        0,
        header.body_length,
        header.record_count,
        header.sequence,
        header.durable_upto,
        header.body_crc,
    )
    return head + _U32.pack(crc32c(head, crc32c(nonce)))


def parse_block_header(data: BytesLike, nonce: bytes) -> BlockHeader | None:
    """Parse the block header at the start of `data`; None if invalid, or if of another file.

    The body is not checked: the caller must compare the :func:`body_crc` of the body with the
    checksum in the header.

    Raises:
        FormatError: the header is intact but has flags that this version does not know.
    """
    if len(data) < BLOCK_HEADER_SIZE_BYTES:
        return None
    magic, flags, reserved, body_length, record_count, sequence, durable_upto, crc_of_body = (
        _BLOCK_HEADER.unpack_from(data)
    )
    # Cheap checks come first: the search for later blocks tries every aligned offset.
    if magic != BLOCK_MAGIC or body_length > BODY_SIZE_BYTES_MAX:
        return None
    (crc,) = _U32.unpack_from(data, _BLOCK_HEADER.size)
    if crc != crc32c(memoryview(data)[: _BLOCK_HEADER.size], crc32c(nonce)):
        return None
    if flags or reserved:
        raise FormatError(f"block {sequence} has flags that this version does not know")
    return BlockHeader(sequence, durable_upto, body_length, record_count, crc_of_body)


def body_crc(nonce: bytes, sequence: int, buffers: Iterable[BytesLike]) -> int:
    """Compute the checksum of a body that is spread over `buffers`, without joining them."""
    crc = crc32c(nonce + _U64.pack(sequence))
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc


def block_size_on_disk(body_length: int, alignment: int) -> int:
    """Return the number of bytes from the start of a block to the start of the next block."""
    return -(-(BLOCK_HEADER_SIZE_BYTES + body_length) // alignment) * alignment


def padding(size: int, alignment: int) -> bytes:
    """Return the zeros that fill `size` bytes up to a multiple of the alignment."""
    return _ZEROS[: -size % alignment]


@dataclass(frozen=True, slots=True, eq=False)
class BlockArrays:
    """The headers of consecutive blocks as arrays, with one value for each block.

    Each single append writes a block of 512 bytes; one Python object per block would slow down a
    start.
    """

    starts: Ids
    """The offset of each block's header in the parsed data."""
    ends: Ids
    """The offset at which the following block begins."""
    body_lengths: Ids
    record_counts: Ids
    sequences: npt.NDArray[np.uint64]
    durable_upto: npt.NDArray[np.uint64]
    body_crcs: U32
    body_seeds: U32
    """The checksum of nonce and sequence: the start value for the checksum of the body."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, count: int) -> BlockArrays:
        return BlockArrays(*(getattr(self, column)[:count] for column in self.__slots__))


def parse_block_headers(data: memoryview, alignment: int, nonce: bytes) -> BlockArrays | None:
    """Parse the leading block headers of `data`, up to an invalid header or an incomplete body.

    The result is None if the first block is invalid or has unknown flags; `parse_block_header` then
    raises an error for the flags. The checksums of bodies are not checked.
    """
    if len(data) < BLOCK_HEADER_SIZE_BYTES:
        return None
    places = (len(data) - BLOCK_HEADER_SIZE_BYTES) // alignment + 1
    everywhere = np.ndarray((places,), _HEADS, buffer=data, strides=(alignment,))
    likely = np.flatnonzero(everywhere["magic"] == BLOCK_MAGIC_WORD)
    if not len(likely) or likely[0] != 0:
        return None
    lengths = everywhere["body_length"][likely].astype(np.int64)
    following = likely + -(-(BLOCK_HEADER_SIZE_BYTES + lengths) // alignment)
    if not np.array_equal(following[:-1], likely[1:]):
        likely, following = _chain(likely, following)
    heads = everywhere[likely]
    starts = likely * alignment
    count = _sound(heads, starts, len(data), nonce)
    if count == 0:
        return None
    heads = heads[:count]
    sequences = np.ascontiguousarray(_rows(heads)[:, _SEQUENCE_BYTES])
    return BlockArrays(
        starts=starts[:count],
        ends=following[:count] * alignment,
        body_lengths=heads["body_length"].astype(np.int64),
        record_counts=heads["record_count"].astype(np.int64),
        sequences=heads["sequence"],
        durable_upto=heads["durable_upto"],
        body_crcs=heads["body_crc"],
        body_seeds=crcs_of_rows(sequences, crc32c(nonce)),
    )


def _chain(likely: Ids, following: Ids) -> tuple[Ids, Ids]:
    """Keep the blocks that form a chain from offset 0 on; other offsets are inside block bodies."""
    after = dict(zip(likely.tolist(), following.tolist(), strict=True))
    place, chain = 0, []
    while place in after:
        chain.append(place)
        place = after[place]
    return np.array(chain, np.int64), np.array([*chain[1:], place], np.int64)


def _sound(heads: npt.NDArray[np.void], starts: Ids, size: int, nonce: bytes) -> int:
    """Count the leading valid headers whose bodies end within `size` bytes."""
    lengths = heads["body_length"].astype(np.int64)
    rows = np.ascontiguousarray(_rows(heads)[:, : _BLOCK_HEADER.size])
    sound = (
        (crcs_of_rows(rows, crc32c(nonce)) == heads["crc"])
        & (lengths <= BODY_SIZE_BYTES_MAX)
        & (starts + BLOCK_HEADER_SIZE_BYTES + lengths <= size)
        & (heads["flags"] == 0)
        & (heads["reserved"] == 0)
    )
    return len(heads) if bool(sound.all()) else int(sound.argmin())


def _rows(heads: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    return heads.view(np.uint8).reshape(len(heads), BLOCK_HEADER_SIZE_BYTES)
