"""Index pages: where 64 neighbouring entries of a ledger are stored.

Key of page ``entry id >> 6``: {ledger id u64, page number u64}, both big endian, so that the pages
of a ledger are neighbours in id order.

Value: {CRC-32C of the rest u32, slots}, little endian. Slot ``entry id & 63`` is {file number u32,
offset u32, size u32}; the offset is that of the packet in its file. Size 0 means that the entry is
not stored here (a packet is never empty). Slots after the last used one are not written, and a page
without a used slot is not stored at all.

Sixty-four slots cost 16 to 17 bytes an entry in LMDB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from bookie.errors import ChecksumError, FormatError
from bookie.formats.batch import Ids

SLOTS_PER_PAGE = 64
PAGE_SHIFT = 6
SLOT = np.dtype([("file", "<u4"), ("offset", "<u4"), ("size", "<u4")])
PAGE_KEY_SIZE_BYTES = 16

_CRC_SIZE_BYTES = 4
_FULL_PAGE = np.dtype([("crc", "<u4"), ("slots", SLOT, (SLOTS_PER_PAGE,))])
_KEY = struct.Struct(">QQ")
_CRC = struct.Struct("<I")

Slots = NDArray[np.void]


class PageUpdate(NamedTuple):
    """The slots of one page that change."""

    page_number: int
    positions: NDArray[np.int64]
    """Which slots, ascending: 0 … 63."""
    slots: Slots
    """Their new content, one for each position."""


def page_key(ledger_id: int, page_number: int) -> bytes:
    """The key of one page."""
    return _KEY.pack(ledger_id, page_number)


def parse_page_key(key: bytes) -> tuple[int, int]:
    """Ledger id and page number of a key.

    Raises:
        FormatError: the key has another size, or ids that do not exist.
    """
    if len(key) != PAGE_KEY_SIZE_BYTES:
        raise FormatError(f"a page key has {len(key)} bytes instead of {PAGE_KEY_SIZE_BYTES}")
    ledger_id, page_number = _KEY.unpack(key)
    if ledger_id >> 63 or page_number >> (63 - PAGE_SHIFT):
        raise FormatError(f"a page key names page {page_number} of ledger {ledger_id}")
    return ledger_id, page_number


def empty_page() -> Slots:
    """64 slots of a page that is not stored."""
    return np.zeros(SLOTS_PER_PAGE, dtype=SLOT)


def make_slots(
    files: NDArray[np.integer] | int,
    offsets: NDArray[np.integer],
    sizes: NDArray[np.integer],
) -> Slots:
    """Slots from columns; `files` may be one number for all. Numbers fit in 32 bits."""
    slots = np.empty(len(offsets), dtype=SLOT)
    slots["file"] = files
    slots["offset"] = offsets
    slots["size"] = sizes
    return slots


def decode_page(data: bytes | memoryview) -> Slots:
    """All 64 slots of a page, as an array that the caller may change.

    Raises:
        ChecksumError: the CRC is wrong.
        FormatError: the CRC is right, but no page has this size or ends in an unused slot.
    """
    rest = memoryview(data)[_CRC_SIZE_BYTES:]
    if len(data) < _CRC_SIZE_BYTES or _CRC.unpack_from(data)[0] != crc32c(rest):
        raise ChecksumError(f"an index page of {len(data)} bytes fails its checksum")
    used, odd = divmod(len(rest), SLOT.itemsize)
    if odd or not 1 <= used <= SLOTS_PER_PAGE:
        raise FormatError(f"an index page has {len(data)} bytes, which is no number of slots")
    slots = empty_page()
    slots[:used] = np.frombuffer(rest, dtype=SLOT)
    if not slots["size"][used - 1]:
        raise FormatError("an index page ends in an unused slot")
    return slots


def encode_page(slots: Slots) -> bytes:
    """The value of a page of 64 slots, of which at least one is used."""
    assert len(slots) == SLOTS_PER_PAGE
    used = np.flatnonzero(slots["size"])
    assert len(used), "a page without a used slot is deleted, not stored"
    rest = slots[: int(used[-1]) + 1].tobytes()
    return _CRC.pack(crc32c(rest)) + rest


def encode_dense_pages(
    ledger_id: int, first_page_number: int, slots: Slots
) -> list[tuple[bytes, bytes]]:
    """Keys and values of consecutive pages that are rewritten whole.

    Args:
        ledger_id: the ledger.
        first_page_number: number of the first page.
        slots: a multiple of 64 slots; the last one of every page is used.

    Returns:
        One pair for each page, in key order. The work in Python is per page, not per entry.
    """
    pages, odd = divmod(len(slots), SLOTS_PER_PAGE)
    assert not odd
    by_page = np.ascontiguousarray(slots).reshape(pages, SLOTS_PER_PAGE)
    assert by_page["size"][:, -1].all()
    bodies = _as_bytes(by_page)
    values = np.empty(pages, dtype=_FULL_PAGE)
    values["crc"] = list(map(crc32c, bodies))
    values["slots"] = by_page
    keys = np.empty((pages, 2), dtype=">u8")
    keys[:, 0] = ledger_id
    keys[:, 1] = np.arange(pages, dtype=np.int64) + first_page_number
    return list(zip(_as_bytes(keys), _as_bytes(values.reshape(pages, 1)), strict=True))


def group_into_pages(entry_ids: Ids, slots: Slots) -> Iterator[PageUpdate]:
    """Sort entries into the pages that hold them.

    Args:
        entry_ids: ascending and unique.
        slots: one for each id.

    Yields:
        One update for each page touched, in page order; its arrays are views. The work in Python is
        per page, not per entry.
    """
    if not len(entry_ids):
        return
    page_numbers = entry_ids >> PAGE_SHIFT
    positions = entry_ids & (SLOTS_PER_PAGE - 1)
    starts = np.flatnonzero(page_numbers[1:] != page_numbers[:-1]) + 1
    bounds = [0, *starts.tolist(), len(entry_ids)]
    touched = page_numbers[bounds[:-1]].tolist()
    for number, start, end in zip(touched, bounds, bounds[1:], strict=False):
        yield PageUpdate(number, positions[start:end], slots[start:end])


def _as_bytes(rows: NDArray[np.generic]) -> list[bytes]:
    """The bytes of each row of a contiguous two-dimensional array."""
    row = np.dtype((np.void, rows.itemsize * rows.shape[1]))
    pieces: list[bytes] = rows.view(row)[:, 0].tolist()
    return pieces
