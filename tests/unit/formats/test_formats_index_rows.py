"""Rows of the index: round trips, and that damage is never taken for a row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from bookie.errors import ChecksumError, FormatError
from bookie.formats.index_rows import (
    FileRow,
    FileState,
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
from bookie.ids import MAX_ID

LEDGER = LedgerIndexRow(True, False, 1_700_000_000_000, b"k" * 32, b"packet", 5, 0, 9, 10, 1234)
ROWS: list[tuple[object, Callable[[Any], bytes], Callable[[bytes], object]]] = [
    (LEDGER, encode_ledger_row, decode_ledger_row),
    (LedgerIndexRow(), encode_ledger_row, decode_ledger_row),
    (LedgerIndexRow(limbo=True, key_digest=b""), encode_ledger_row, decode_ledger_row),
    (FileRow(1, FileState.SEALED, 2**30, 5), encode_file_row, decode_file_row),
    (Mark(7, 4096, 2**64 - 1, bytes(range(16))), encode_mark, decode_mark),
]


def sealed(body: bytes) -> bytes:
    """A row with a right checksum."""
    return struct.pack("<I", crc32c(body)) + body


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
    ("decode", "body", "message"),
    [
        (decode_ledger_row, b"", "too short"),
        (decode_ledger_row, encode_ledger_row(LEDGER)[4:] + b"x", "wrong length"),
        (decode_ledger_row, b"\2" + encode_ledger_row(LEDGER)[5:], "version 2"),
        (decode_file_row, bytes(19), "wrong length"),
        (decode_file_row, b"\2" + bytes(19), "version 2"),
        (decode_file_row, b"\1\1\2" + bytes(17), "unknown state"),
        (decode_mark, bytes(37), "wrong length"),
    ],
)
def test_sealed_nonsense_is_refused(
    decode: Callable[[bytes], object], body: bytes, message: str
) -> None:
    """A right checksum over something that is no row is a format error."""
    with pytest.raises(FormatError, match=message):
        decode(sealed(body))


def test_keys_sort_like_numbers() -> None:
    """Rows stand in the order of their ids."""
    ids = [0, 1, 255, 256, MAX_ID]
    assert [parse_ledger_key(key) for key in sorted(map(ledger_key, ids))] == ids
    numbers = [0, 1, 255, 256, 2**32 - 1]
    assert [parse_file_key(key) for key in sorted(map(file_key, numbers))] == numbers
    for parse in (parse_ledger_key, parse_file_key):
        with pytest.raises(FormatError, match="5 bytes"):
            parse(bytes(5))
