"""Rows of the index: round trips, and that damage is never taken for a row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from crc32c import crc32c

from bookie.errors import ChecksumError, FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.format.index_rows import (
    FileRow,
    FileState,
    HeldIn,
    LedgerIndexRow,
    Mark,
    decode_file_row,
    decode_ledger_row,
    decode_mark,
    encode_file_row,
    encode_ledger_row,
    encode_mark,
    file_key,
    ledger_key,
    parse_file_key,
    parse_ledger_key,
)

HELD = HeldIn((1, 2**32 - 1), (5, 7))
DELETED = LedgerIndexRow(True, False, 1_700_000_000_000, b"k" * 32, b"packet", 5, 0, 9, 0, 0, HELD)
LEDGER = LedgerIndexRow(True, False, None, b"k" * 32, b"packet", 5, 0, 9, 10, 1234)
encode_ledger = partial(encode_ledger_row, 7)
decode_ledger = partial(decode_ledger_row, 7)
encode_file = partial(encode_file_row, 3)
decode_file = partial(decode_file_row, 3)
ROWS: list[tuple[object, Callable[[Any], bytes], Callable[[bytes], object]]] = [
    (LEDGER, encode_ledger, decode_ledger),
    (DELETED, encode_ledger, decode_ledger),
    (LedgerIndexRow(), encode_ledger, decode_ledger),
    (
        LedgerIndexRow(fenced=True, key_digest=b"k" * 32, reclaimed=True),
        encode_ledger,
        decode_ledger,
    ),
    (LedgerIndexRow(limbo=True, key_digest=b""), encode_ledger, decode_ledger),
    (FileRow(1, FileState.SEALED, 2**30, 5), encode_file, decode_file),
    (Mark(7, 4096, 2**64 - 1, bytes(range(16))), encode_mark, decode_mark),
]


def sealed(key: bytes, body: bytes) -> bytes:
    """A row with a right checksum."""
    return struct.pack("<I", crc32c(key + body)) + body


@pytest.mark.parametrize(("row", "encode", "decode"), ROWS)
def test_rows_round_trip_and_show_damage(
    row: object, encode: Callable[[Any], bytes], decode: Callable[[bytes], object]
) -> None:
    """A row comes back equal; any flipped bit or cut fails its checksum."""
    data = encode(row)
    assert decode(data) == row
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            decode(bytes(damaged))
    for cut in (b"", data[:-1]):
        with pytest.raises(ChecksumError):
            decode(cut)


@pytest.mark.parametrize(
    ("decode", "key", "body", "message"),
    [
        (decode_ledger, ledger_key(7), b"", "too short"),
        (decode_ledger, ledger_key(7), encode_ledger(LEDGER)[4:] + b"x", "wrong length"),
        (decode_ledger, ledger_key(7), b"\2" + encode_ledger(LEDGER)[5:], "version 2"),
        (decode_file, file_key(3), bytes(19), "wrong length"),
        (decode_file, file_key(3), b"\2" + bytes(19), "version 2"),
        (decode_file, file_key(3), b"\1\1\2" + bytes(17), "unknown state"),
        (decode_mark, b"", bytes(37), "wrong length"),
    ],
)
def test_sealed_nonsense_is_refused(
    decode: Callable[[bytes], object], key: bytes, body: bytes, message: str
) -> None:
    """A right checksum over something that is no row is a format error."""
    with pytest.raises(FormatError, match=message):
        decode(sealed(key, body))


def test_a_row_under_another_key_is_damage() -> None:
    """Otherwise the fence of one ledger could stand for that of another."""
    with pytest.raises(ChecksumError):
        decode_ledger_row(8, encode_ledger(LEDGER))
    with pytest.raises(ChecksumError):
        decode_file_row(4, encode_file(FileRow(1, FileState.SEALED, 2**30, 5)))


def test_keys_sort_like_numbers() -> None:
    """Rows stand in the order of their ids."""
    ids = [0, 1, 255, 256, MAX_ID]
    assert [parse_ledger_key(key) for key in sorted(map(ledger_key, ids))] == ids
    numbers = [0, 1, 255, 256, 2**32 - 1]
    assert [parse_file_key(key) for key in sorted(map(file_key, numbers))] == numbers
    for parse in (parse_ledger_key, parse_file_key):
        with pytest.raises(FormatError, match="5 bytes"):
            parse(bytes(5))
