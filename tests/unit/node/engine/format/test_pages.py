"""Index pages: keys in id order, slots, checksums."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c

from bookie.errors import ChecksumError, FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.format.pages import (
    SLOT_SIZE_BYTES,
    SLOTS_PER_PAGE,
    decode_pages,
    encode_pages,
    page_key,
    parse_page_key,
    slot_of,
)

KEY = page_key(7, 3)


def sealed(rest: bytes, key: bytes = KEY) -> bytes:
    """A page value with a right checksum."""
    return struct.pack("<I", crc32c(key + rest)) + rest


def one_page() -> bytes:
    """The value of a page with slot 1 used."""
    slots = np.zeros((1, SLOTS_PER_PAGE, 3), np.uint32)
    slots[0, 1] = (3, 4096, 100)
    ((_, value),) = encode_pages(7, np.array([3]), slots)
    return value


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


def test_pages_are_stored_up_to_their_last_used_slot() -> None:
    """Trailing unused slots take no room; holes inside stay empty."""
    slots = np.zeros((2, SLOTS_PER_PAGE, 3), np.uint32)
    slots[0, 1] = (3, 4096, 100)
    slots[0, 4] = (2**32 - 1, 2**32 - 1, 2**32 - 1)
    slots[1, :] = (5, 6, 7)
    pairs = encode_pages(7, np.array([3, MAX_ID >> 6]), slots)
    assert [key for key, _ in pairs] == [page_key(7, 3), page_key(7, MAX_ID >> 6)]
    sizes = [4 + 5 * SLOT_SIZE_BYTES, 4 + SLOTS_PER_PAGE * SLOT_SIZE_BYTES]
    assert [len(value) for _, value in pairs] == sizes
    numbers, decoded = decode_pages(pairs)
    assert numbers.tolist() == [3, MAX_ID >> 6]
    assert (decoded == slots).all()
    for number, page in zip([3, MAX_ID >> 6], slots, strict=True):
        expected = [tuple(slot) if slot[2] else None for slot in page.tolist()]
        first = number * SLOTS_PER_PAGE
        alone = [slot_of(page.tobytes(), first + slot) for slot in range(SLOTS_PER_PAGE)]
        assert alone == expected


def test_no_pages_at_all() -> None:
    """An empty list becomes empty bytes."""
    numbers, slots = decode_pages([])
    assert (len(numbers), slots.shape) == (0, (0, SLOTS_PER_PAGE, 3))
    assert encode_pages(7, numbers, slots) == []


def test_a_page_under_another_key_is_damage() -> None:
    """Of the same ledger or of another one."""
    decode_pages([(KEY, one_page())])
    for key in (page_key(7, 4), page_key(8, 3)):
        with pytest.raises(ChecksumError):
            decode_pages([(key, one_page())])


def test_damaged_pages_fail_their_checksum() -> None:
    """Each flipped bit and each cut is noticed."""
    data = one_page()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            decode_pages([(KEY, bytes(damaged))])
    for cut in (b"", bytes(4), data[:3], data[:-1]):
        with pytest.raises(ChecksumError):
            decode_pages([(KEY, data), (KEY, cut)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, sealed(b"")),
        (KEY, sealed(bytes(11))),
        (KEY, sealed(b"\1" * 65 * SLOT_SIZE_BYTES)),
        (KEY[:-1], sealed(one_page()[4:], KEY[:-1])),
    ],
)
def test_sealed_nonsense_is_refused(key: bytes, value: bytes) -> None:
    """A right checksum over something that is no page is a format error."""
    with pytest.raises(FormatError, match=key.hex()):
        decode_pages([(key, value)])
