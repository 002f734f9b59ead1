"""Index pages: each page holds the places of 64 neighbouring entries of a ledger.

The key of page ``entry id >> 6`` is {ledger id u64, page number u64}, both big endian. So the pages
of a ledger are adjacent, in the order of their entry ids.

The value is {CRC-32C of the key and the slots u32, slots}, little endian. The checksum covers the
key, so that a page under another page's key fails the check. Slot ``entry id & 63`` is {file number
u32, offset u32, size u32}; the offset is the place of the entry's packet in the file. Size 0 marks
an entry that is not stored on this bookie. The slots after the last used slot are not written. A
page without a used slot is not written.

With 64 slots in a page, LMDB needs 16 to 17 bytes for each entry.

A checkpoint or a range read handles hundreds of pages as one array of shape (pages, 64, 3): file,
offset, size. Therefore Python does work for each page, not for each entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bookie.entry.checksum import crc32c
from bookie.errors import ChecksumError, FormatError

SLOTS_PER_PAGE = 64
SLOT_SIZE_BYTES = 12
PAGE_KEY_SIZE_BYTES = 16
COLUMNS = 3

_PAGE_SHIFT = 6
_CRC_SIZE_BYTES = 4
_SLOTS_SIZE_BYTES = SLOTS_PER_PAGE * SLOT_SIZE_BYTES
_PAGE_SIZE_BYTES = _CRC_SIZE_BYTES + _SLOTS_SIZE_BYTES
EMPTY_SLOTS = bytes(_SLOTS_SIZE_BYTES)

_KEY = struct.Struct(">QQ")
_SLOT = struct.Struct("<III")

Slots = NDArray[np.uint32]
"""An array of shape (pages, 64, 3) with file, offset and size."""


def page_key(ledger_id: int, page_number: int) -> bytes:
    """Return the key of one page."""
    return _KEY.pack(ledger_id, page_number)


def parse_page_key(key: bytes) -> tuple[int, int]:
    """Return the ledger id and the page number in the key of a page.

    Raises:
        FormatError: the key has a wrong size, or an id in it is out of range.
    """
    if len(key) != PAGE_KEY_SIZE_BYTES:
        raise FormatError(f"a page key has {len(key)} bytes instead of {PAGE_KEY_SIZE_BYTES}")
    ledger_id, page_number = _KEY.unpack(key)
    if ledger_id >> 63 or page_number >> (63 - _PAGE_SHIFT):
        raise FormatError(f"a page key names page {page_number} of ledger {ledger_id}")
    return ledger_id, page_number


def is_page(key: bytes, value: bytes) -> bool:
    """True if the checksum in `value` shows that `value` is the page of this key."""
    crc = int.from_bytes(value[:_CRC_SIZE_BYTES], "little")
    return crc == crc32c(value[_CRC_SIZE_BYTES:], crc32c(key))


def decode_pages(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[NDArray[np.int64], Slots]:
    """Decode `pairs` of key and value into page numbers and slots, in the same order.

    The arrays may be read-only.

    Raises:
        ChecksumError: a page is damaged.
        FormatError: a key or a page has an invalid size.
    """
    padded = []
    for key, value in pairs:
        crc = int.from_bytes(value[:_CRC_SIZE_BYTES], "little")
        if crc != crc32c(value[_CRC_SIZE_BYTES:], crc32c(key)):
            raise ChecksumError(f"the index page {key.hex()} fails its checksum")
        size = len(value) - _CRC_SIZE_BYTES
        if not 0 < size <= _SLOTS_SIZE_BYTES or size % SLOT_SIZE_BYTES:
            raise FormatError(f"the index page {key.hex()} has {len(value)} bytes")
        if len(key) != PAGE_KEY_SIZE_BYTES:
            raise FormatError(f"the index page {key.hex()} has a key that no page has")
        padded.append(value.ljust(_PAGE_SIZE_BYTES, b"\0"))
    words = np.frombuffer(b"".join(padded), np.dtype("<u4"))
    words = words.reshape(len(padded), _PAGE_SIZE_BYTES // 4)
    keys = np.frombuffer(b"".join([key for key, _ in pairs]), np.dtype(">u8")).reshape(-1, 2)
    return keys[:, 1].astype(np.int64), words[:, 1:].reshape(-1, SLOTS_PER_PAGE, COLUMNS)


def slot_of(slots: bytes, entry_id: int) -> tuple[int, int, int] | None:
    """Return file, offset and size of an entry from its page's slots; None if it is not stored."""
    slot: tuple[int, int, int] = _SLOT.unpack_from(
        slots, (entry_id & SLOTS_PER_PAGE - 1) * SLOT_SIZE_BYTES
    )
    return slot if slot[2] else None


def encode_pages(
    ledger_ids: int | NDArray[np.int64], numbers: NDArray[np.int64], slots: Slots
) -> list[tuple[bytes, bytes]]:
    """Encode the pages `numbers` as keys and values; each page has at least one used slot.

    `ledger_ids` is one ledger id for all pages, or an array with the ledger id of each page. The
    keys are in ascending order if the ledger ids and the page numbers are in ascending order.
    """
    used = SLOTS_PER_PAGE - np.argmax(slots[:, ::-1, 2] > 0, axis=1)
    ends = (used * SLOT_SIZE_BYTES).tolist()
    body = slots.astype("<u4", copy=False).tobytes()
    keys = np.empty((len(numbers), 2), np.dtype(">u8"))
    keys[:, 0] = ledger_ids
    keys[:, 1] = numbers
    key_bytes = keys.tobytes()
    pairs = []
    for index, end in enumerate(ends):
        start = index * _SLOTS_SIZE_BYTES
        page = body[start : start + end]
        key_at = index * PAGE_KEY_SIZE_BYTES
        key = key_bytes[key_at : key_at + PAGE_KEY_SIZE_BYTES]
        pairs.append((key, crc32c(page, crc32c(key)).to_bytes(_CRC_SIZE_BYTES, "little") + page))
    return pairs
