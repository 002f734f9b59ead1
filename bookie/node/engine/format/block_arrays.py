"""The headers of neighbouring blocks as arrays: lone appends leave a block each, of 512 bytes.

The rules of `blocks` for headers apply. Blocks are taken from the first on while each is whole,
intact and of this version. `parse_block_header` names the fault of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bookie.entry.checksum import crc32c, crcs_of_rows
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BODY_SIZE_BYTES_MAX,
)

_HEAD = np.dtype(
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
assert _HEAD.itemsize == BLOCK_HEADER_SIZE_BYTES

_MAGIC_WORD = int.from_bytes(BLOCK_MAGIC, "little")
_CRC_AT = BLOCK_HEADER_SIZE_BYTES - 4
_SEQUENCE = slice(16, 24)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockArrays:
    """Blocks that follow each other; one value for each of them."""

    starts: Ids
    """Where its header begins, from the beginning of what was parsed."""
    ends: Ids
    """Where the next block begins."""
    body_lengths: Ids
    record_counts: Ids
    sequences: npt.NDArray[np.uint64]
    durable_upto: npt.NDArray[np.uint64]
    body_crcs: npt.NDArray[np.uint32]
    body_seeds: npt.NDArray[np.uint32]
    """The checksum of nonce and sequence, with which that of the body begins."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, count: int) -> BlockArrays:
        """The first `count` of them."""
        return BlockArrays(*(getattr(self, column)[:count] for column in self.__slots__))


def parse_block_headers(data: memoryview, alignment: int, nonce: bytes) -> BlockArrays | None:
    """The blocks at the start of `data` whose headers are valid and whose bodies `data` holds.

    None if the first block is invalid. Bodies are not checked.
    """
    if len(data) < BLOCK_HEADER_SIZE_BYTES:
        return None
    places = (len(data) - BLOCK_HEADER_SIZE_BYTES) // alignment + 1
    everywhere = np.ndarray((places,), _HEAD, buffer=data, strides=(alignment,))
    likely = np.flatnonzero(everywhere["magic"] == _MAGIC_WORD)
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
    sequences = np.ascontiguousarray(_rows(heads)[:, _SEQUENCE])
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
    """The places reached from the first one; others hold a magic number inside a body."""
    after = dict(zip(likely.tolist(), following.tolist(), strict=True))
    place, chain = 0, []
    while place in after:
        chain.append(place)
        place = after[place]
    return np.array(chain, np.int64), np.array([*chain[1:], place], np.int64)


def _sound(heads: npt.NDArray[np.void], starts: Ids, size: int, nonce: bytes) -> int:
    """How many of the first headers are valid, with bodies that end within `size` bytes."""
    lengths = heads["body_length"].astype(np.int64)
    rows = np.ascontiguousarray(_rows(heads)[:, :_CRC_AT])
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
