"""Many index pages at once, as one array of shape (pages, 64, 3): file, offset, size.

The same bytes as `bookie.formats.pages`, for the two places that handle hundreds of pages in one
go: a checkpoint and a range read. The work in Python is per page and makes no Python calls.
"""

from __future__ import annotations

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from bookie.errors import ChecksumError, FormatError
from bookie.formats.pages import SLOT, SLOTS_PER_PAGE

COLUMNS = 3
_CRC_SIZE_BYTES = 4
_PAGE_SIZE_BYTES = _CRC_SIZE_BYTES + SLOTS_PER_PAGE * SLOT.itemsize

Columns = NDArray[np.uint32]


def decode_pages(pairs: list[tuple[bytes, bytes]]) -> tuple[NDArray[np.int64], Columns]:
    """Page numbers and slots of `pairs` (key and value) of one ledger, in key order.

    Raises:
        ChecksumError: a page is damaged.
        FormatError: a page has a size that no page has.
    """
    padded = []
    for key, value in pairs:
        if int.from_bytes(value[:_CRC_SIZE_BYTES], "little") != crc32c(value[_CRC_SIZE_BYTES:]):
            raise ChecksumError(f"the index page {key.hex()} fails its checksum")
        if not 0 < len(value) - _CRC_SIZE_BYTES <= SLOTS_PER_PAGE * SLOT.itemsize:
            raise FormatError(f"the index page {key.hex()} has {len(value)} bytes")
        padded.append(value.ljust(_PAGE_SIZE_BYTES, b"\0"))
    words = np.frombuffer(b"".join(padded), np.dtype("<u4")).reshape(len(pairs), -1)
    keys = np.frombuffer(b"".join([key for key, _ in pairs]), np.dtype(">u8")).reshape(-1, 2)
    return keys[:, 1].astype(np.int64), words[:, 1:].reshape(len(pairs), SLOTS_PER_PAGE, COLUMNS)


def encode_pages(
    ledger_id: int, numbers: NDArray[np.int64], slots: Columns
) -> list[tuple[bytes, bytes]]:
    """Keys and values of the pages `numbers` (ascending), each with at least one used slot."""
    used = SLOTS_PER_PAGE - np.argmax(slots[:, ::-1, 2] > 0, axis=1)
    ends = (used * SLOT.itemsize).tolist()
    body = slots.astype("<u4", copy=False).tobytes()
    stride = SLOTS_PER_PAGE * SLOT.itemsize
    keys = np.empty((len(numbers), 2), np.dtype(">u8"))
    keys[:, 0] = ledger_id
    keys[:, 1] = numbers
    key_bytes = keys.tobytes()
    pairs = []
    for index, end in enumerate(ends):
        page = body[index * stride : index * stride + end]
        crc = crc32c(page).to_bytes(_CRC_SIZE_BYTES, "little")
        pairs.append((key_bytes[index * 16 : index * 16 + 16], crc + page))
    return pairs
