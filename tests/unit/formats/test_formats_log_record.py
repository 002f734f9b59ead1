"""Log records: what round trips, and what is refused."""

from __future__ import annotations

import struct

import pytest

from bookie.errors import BadRequestError, FormatError
from bookie.formats.log_record import (
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
)

FULL = LogRecord(
    timestamp_ms=1_700_000_000_000,
    value=b"value",
    key=b"key",
    headers={"trace": b"\x00\x01", "ä": b""},
    producer=Producer("app-1", 42),
)


@pytest.mark.parametrize(
    "record",
    [
        FULL,
        LogRecord(0, b""),
        LogRecord(-(2**63), b"v", key=b""),
        LogRecord(2**63 - 1, b"v", producer=Producer("", 2**63 - 1)),
        LogRecord(1, b"v", headers={"": b"x"}),
    ],
)
def test_record_round_trip(record: LogRecord) -> None:
    """Every field survives; an empty key is not a missing one."""
    data = encode_log_record(record)
    assert decode_log_record(data) == record
    assert decode_log_record(memoryview(data)) == record


def test_record_layout() -> None:
    """The fixed part, then producer id, key, headers, value."""
    record = LogRecord(5, b"value", b"key", {"h": b"xy"}, Producer("app", 9))
    fixed = struct.pack("<BBHIIHHqq", 1, 3, 1, 3, 9, 3, 0, 5, 9)
    header = struct.pack("<HI", 1, 2) + b"hxy"
    assert encode_log_record(record) == fixed + b"app" + b"key" + header + b"value"


@pytest.mark.parametrize(
    "record",
    [
        LogRecord(2**63, b""),
        LogRecord(0, b"", headers={"x" * 65536: b""}),
        LogRecord(0, b"", headers={"\ud800": b""}),
        LogRecord(0, b"", headers={str(i): b"" for i in range(65536)}),
        LogRecord(0, b"", producer=Producer("x" * 65536, 0)),
        LogRecord(0, b"", producer=Producer("x", -1)),
        LogRecord(0, b"", producer=Producer("x", 2**63)),
    ],
)
def test_what_does_not_fit_is_refused(record: LogRecord) -> None:
    """A field that is too large for its place is the caller's error."""
    with pytest.raises(BadRequestError):
        encode_log_record(record)


def fixed(
    version: int = 1,
    flags: int = 0,
    headers: tuple[int, int] = (0, 0),
    key: int = 0,
    producer: tuple[int, int] = (0, 0),
    reserved: int = 0,
) -> bytes:
    """The fixed part of a record."""
    count, length = headers
    return struct.pack(
        "<BBHIIHHqq", version, flags, count, key, length, producer[0], reserved, 0, producer[1]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter than its header"),
        (fixed()[:-1], "shorter than its header"),
        (fixed(version=2), "version 2"),
        (fixed(flags=4), "flags 4"),
        (fixed(reserved=1), "does not know"),
        (fixed(flags=1, key=1), "announces 33"),
        (fixed(key=1) + b"k", "without a key"),
        (fixed(producer=(1, 0)) + b"p", "without a producer"),
        (fixed(producer=(0, 1)), "without a producer"),
        (fixed(flags=2, producer=(0, -1)), "sequence number -1"),
        (fixed(flags=2, producer=(1, 0)) + b"\xff", "producer id is not UTF-8"),
        (fixed(headers=(1, 5)) + bytes(5), "do not fit"),
        (fixed(headers=(1, 6)) + struct.pack("<HI", 1, 0), "do not fit"),
        (fixed(headers=(1, 7)) + struct.pack("<HI", 0, 0) + b"x", "end before"),
        (fixed(headers=(0, 1)) + b"x", "end before"),
        (fixed(headers=(2, 12)) + struct.pack("<HI", 0, 0) * 2, "two headers"),
        (fixed(headers=(1, 7)) + struct.pack("<HI", 1, 0) + b"\xff", "header name is not UTF-8"),
    ],
)
def test_bad_records_are_refused(data: bytes, message: str) -> None:
    """Damaged and newer records are format errors."""
    with pytest.raises(FormatError, match=message):
        decode_log_record(data)
