"""Index pages: keys in id order, slots, checksums, and the bulk paths."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c

from bookie.errors import ChecksumError, FormatError
from bookie.formats.pages import (
    SLOT,
    SLOTS_PER_PAGE,
    decode_page,
    empty_page,
    encode_dense_pages,
    encode_page,
    group_into_pages,
    make_slots,
    page_key,
    parse_page_key,
)
from bookie.ids import MAX_ID


def sealed(rest: bytes) -> bytes:
    """A page value with a right checksum."""
    return struct.pack("<I", crc32c(rest)) + rest


def test_keys_sort_like_ids() -> None:
    """Pages of a ledger are neighbours, in id order."""
    pairs = [(0, 0), (0, 1), (0, 300), (1, 0), (255, 7), (256, 0), (MAX_ID, MAX_ID >> 6)]
    keys = [page_key(*pair) for pair in pairs]
    assert keys == sorted(keys)
    assert [parse_page_key(key) for key in keys] == pairs


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (b"", "0 bytes"),
        (bytes(17), "17 bytes"),
        (b"\x80" + bytes(15), "names page"),
        (bytes(8) + b"\x02" + bytes(7), "names page"),
    ],
)
def test_impossible_keys_are_refused(key: bytes, message: str) -> None:
    """A key that no entry has is a format error."""
    with pytest.raises(FormatError, match=message):
        parse_page_key(key)


def test_page_is_stored_up_to_its_last_used_slot() -> None:
    """Trailing unused slots take no room; holes inside stay empty."""
    slots = empty_page()
    slots[1] = (3, 4096, 100)
    slots[4] = (2**32 - 1, 2**32 - 1, 2**32 - 1)
    data = encode_page(slots)
    assert len(data) == 4 + 5 * SLOT.itemsize
    decoded = decode_page(data)
    assert len(decoded) == SLOTS_PER_PAGE
    assert (decoded == slots).all()
    decoded[0] = (1, 2, 3)


def test_damaged_pages_fail_their_checksum() -> None:
    """No flipped bit and no cut goes unnoticed."""
    slots = empty_page()
    slots[1] = (3, 4096, 100)
    data = encode_page(slots)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            decode_page(bytes(damaged))
    for cut in (b"", data[:3], data[:-1]):
        with pytest.raises(ChecksumError):
            decode_page(cut)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (b"", "no number of slots"),
        (bytes(11), "no number of slots"),
        (b"\1" * 65 * 12, "no number of slots"),
        (bytes(12), "unused slot"),
    ],
)
def test_sealed_nonsense_is_refused(rest: bytes, message: str) -> None:
    """A right checksum over something that is no page is a format error."""
    with pytest.raises(FormatError, match=message):
        decode_page(sealed(rest))


def test_dense_pages_equal_single_ones() -> None:
    """The bulk encoder gives the same keys and values as one page at a time."""
    count = 3 * SLOTS_PER_PAGE
    slots = make_slots(9, np.arange(count) * 100, np.arange(count) + 32)
    slots[5] = (0, 0, 0)
    expected = [
        (page_key(7, 40 + i), encode_page(slots[i * SLOTS_PER_PAGE : (i + 1) * SLOTS_PER_PAGE]))
        for i in range(3)
    ]
    assert encode_dense_pages(7, 40, slots) == expected
    assert encode_dense_pages(7, 40, slots[:0]) == []


def test_entries_are_grouped_by_page() -> None:
    """Each touched page comes once, with positions and slots in order."""
    ids = np.array([0, 63, 64, 65, 200, MAX_ID], dtype=np.int64)
    slots = make_slots(np.arange(6), np.arange(6) * 10, np.arange(6) + 32)
    updates = list(group_into_pages(ids, slots))
    assert [(u.page_number, u.positions.tolist(), u.slots["file"].tolist()) for u in updates] == [
        (0, [0, 63], [0, 1]),
        (1, [0, 1], [2, 3]),
        (3, [8], [4]),
        (MAX_ID >> 6, [63], [5]),
    ]
    assert list(group_into_pages(ids[:0], slots[:0])) == []


def test_grouped_slots_fill_a_page() -> None:
    """A page is updated by assigning the slots at their positions."""
    ids = np.array([66, 70], dtype=np.int64)
    (update,) = group_into_pages(ids, make_slots(1, np.array([5, 6]), np.array([40, 50])))
    page = empty_page()
    page[update.positions] = update.slots
    assert decode_page(encode_page(page))[6].tolist() == (1, 6, 50)
