"""Log records: what round trips, and what is refused."""

from __future__ import annotations

import struct

import pytest

from bookie.errors import BadRequestError, FormatError
from bookie.log.record.log_record import (
    LogPosition,
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
    follows_control,
    greatest_timestamp_ms,
    is_control,
    plain_prefix,
    with_greatest,
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
    """The fixed part, then producer, key, headers, value; what is absent takes no room."""
    record = LogRecord(5, b"value", b"key", {"h": b"xy"}, Producer("app", 9))
    producer = struct.pack("<qH", 9, 3) + b"app"
    headers = struct.pack("<IHI", 9, 1, 2) + b"hxy"
    fixed = struct.pack("<BBHIq", 2, 3, 1, 3, 5)
    assert encode_log_record(record) == fixed + producer + b"key" + headers + b"value"
    assert (
        encode_log_record(LogRecord(5, b"value")) == struct.pack("<BBHIq", 2, 0, 0, 0, 5) + b"value"
    )


def test_a_record_that_was_read_has_its_position() -> None:
    """The position is not in the bytes: the reader of the entry supplies it."""
    read = FULL._replace(ledger_id=7, entry_id=3, offset=103, partition=2)
    assert encode_log_record(read) == encode_log_record(FULL)
    assert decode_log_record(encode_log_record(FULL), 7, 3, 103, 2) == read
    assert read.position == LogPosition(7, 3, 103, 2)
    assert FULL.position == LogPosition(-1, -1, -1, 0)


@pytest.mark.parametrize("record", [FULL, LogRecord(5, b"value")])
def test_a_late_record_tells_the_greatest_timestamp(record: LogRecord) -> None:
    """Its eight bytes lie between the fixed part and the producer's id."""
    punctual = encode_log_record(record)
    greatest_ms = record.timestamp_ms + 1
    late = encode_log_record(record, greatest_ms=greatest_ms)
    flags = punctual[1] | 4
    time = struct.pack("<q", greatest_ms)
    assert late == punctual[:1] + bytes([flags]) + punctual[2:16] + time + punctual[16:]
    assert decode_log_record(late) == record
    assert greatest_timestamp_ms(late) == greatest_ms
    assert greatest_timestamp_ms(memoryview(late)) == greatest_ms
    assert greatest_timestamp_ms(punctual) == record.timestamp_ms


@pytest.mark.parametrize("greatest_ms", [None, -(2**63), 4, 5])
def test_a_record_is_not_late_behind_smaller_timestamps(greatest_ms: int | None) -> None:
    """Its own timestamp is the greatest then, and nothing is added."""
    record = LogRecord(5, b"value")
    assert encode_log_record(record, greatest_ms=greatest_ms) == encode_log_record(record)


@pytest.mark.parametrize("record", [FULL, LogRecord(5, b"value")])
def test_the_greatest_timestamp_of_a_record_can_be_raised(record: LogRecord) -> None:
    """Nothing else of it changes, and it is never lowered."""
    now = record.timestamp_ms
    punctual = encode_log_record(record, follows_control=True)
    late = with_greatest(punctual, now + 3)
    assert late == encode_log_record(record, greatest_ms=now + 3, follows_control=True)
    later = encode_log_record(record, greatest_ms=now + 9, follows_control=True)
    assert with_greatest(late, now + 9) == later
    for same in (now, now - 1, -(2**63)):
        assert with_greatest(punctual, same) is punctual
    assert with_greatest(later, now + 3) is later
    with pytest.raises(FormatError):
        with_greatest(b"short", 1)


def test_smallest_timestamp_may_be_late() -> None:
    """No value of a timestamp means that there is none."""
    late = encode_log_record(LogRecord(-(2**63), b""), greatest_ms=-(2**63) + 1)
    assert greatest_timestamp_ms(late) == -(2**63) + 1
    assert decode_log_record(late) == LogRecord(-(2**63), b"")


def test_control_records_and_those_that_follow_them_are_told_apart() -> None:
    """A control record counts as following one."""
    plain = encode_log_record(FULL)
    follower = encode_log_record(FULL, follows_control=True)
    control = encode_log_record(FULL, is_control=True)
    both = encode_log_record(FULL, is_control=True, follows_control=True, greatest_ms=2**63 - 1)
    seen = [(is_control(data), follows_control(data)) for data in (plain, follower, control, both)]
    assert seen == [(False, False), (False, True), (True, True), (True, True)]
    for data in (plain, follower, control, both):
        assert decode_log_record(data) == FULL
    for data in (b"", b"\x02"):
        assert not is_control(data)
        assert not follows_control(data)


@pytest.mark.parametrize("greatest_ms", [None, 3, 9])
@pytest.mark.parametrize("follows", [False, True])
def test_a_prefix_serves_for_any_plain_record(greatest_ms: int | None, follows: bool) -> None:
    """It is what `encode_log_record` puts before the value."""
    prefix = plain_prefix(5, greatest_ms=greatest_ms, follows_control=follows)
    for value in (b"", b"value"):
        whole = encode_log_record(
            LogRecord(5, value), greatest_ms=greatest_ms, follows_control=follows
        )
        assert prefix + value == whole


@pytest.mark.parametrize("data", [b"", b"\x02", bytes(15), b"\x02\x04" + bytes(21)])
def test_no_time_is_read_from_what_is_too_short(data: bytes) -> None:
    """A late record is longer than another one."""
    with pytest.raises(FormatError, match="too few for a log record"):
        greatest_timestamp_ms(data)


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


def test_a_greatest_timestamp_that_does_not_fit_is_refused() -> None:
    """It is a number of 64 bits like the record's own."""
    with pytest.raises(BadRequestError):
        encode_log_record(LogRecord(0, b""), greatest_ms=2**63)


def fixed(version: int = 2, flags: int = 0, headers: int = 0, key: int = 0) -> bytes:
    """The fixed part of a record."""
    return struct.pack("<BBHIq", version, flags, headers, key, 0)


def producer(sequence: int, length: int) -> bytes:
    """The bytes before a producer's id."""
    return struct.pack("<qH", sequence, length)


def header(length: int, name: int, value: int) -> bytes:
    """The bytes before the first header: the length of all, then of its name and value."""
    return struct.pack("<IHI", length, name, value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter than its header"),
        (fixed()[:-1], "shorter than its header"),
        (fixed(version=3), "version 3"),
        (fixed(flags=32), "flags 32"),
        (fixed(flags=128), "flags 128"),
        (fixed(flags=4) + bytes(7), "announces 24"),
        (fixed(flags=1, key=1), "announces 17"),
        (fixed(flags=1, key=1, headers=1) + bytes(4), "announces 21"),
        (fixed(key=1) + b"k", "without a key"),
        (fixed(flags=2) + producer(0, 0)[:-1], "announces 26"),
        (fixed(flags=2) + producer(0, 1), "announces 27"),
        (fixed(flags=2) + producer(-1, 0), "sequence number -1"),
        (fixed(flags=2) + producer(0, 1) + b"\xff", "producer id is not UTF-8"),
        (fixed(headers=1) + bytes(3), "announces 20"),
        (fixed(headers=1) + header(7, 1, 0), "announces 27"),
        (fixed(headers=1) + struct.pack("<I", 5) + bytes(5), "do not fit"),
        (fixed(headers=1) + header(6, 1, 0), "do not fit"),
        (fixed(headers=1) + header(7, 0, 0) + b"x", "end before"),
        (fixed(headers=2) + header(12, 0, 0) + bytes(6), "two headers"),
        (fixed(headers=1) + header(7, 1, 0) + b"\xff", "header name is not UTF-8"),
    ],
)
def test_bad_records_are_refused(data: bytes, message: str) -> None:
    """Damaged and newer records are format errors."""
    with pytest.raises(FormatError, match=message):
        decode_log_record(data)


def first_version(
    flags: int = 0,
    headers: tuple[int, int] = (0, 0),
    key: int = 0,
    producer: tuple[int, int] = (0, 0),
    reserved: int = 0,
) -> bytes:
    """The fixed part of a record of version 1."""
    count, length = headers
    return struct.pack(
        "<BBHIIHHqq", 1, flags, count, key, length, producer[0], reserved, 0, producer[1]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (first_version()[:-1], "announces 32"),
        (first_version(flags=32), "flags 32"),
        (first_version(flags=4) + bytes(7), "announces 40"),
        (first_version(reserved=1), "without their parts"),
        (first_version(flags=1, key=1), "announces 33"),
        (first_version(key=1) + b"k", "without a key"),
        (first_version(producer=(1, 0)) + b"p", "without a producer"),
        (first_version(producer=(0, 1)), "without a producer"),
        (first_version(flags=2, producer=(0, -1)), "sequence number -1"),
        (first_version(flags=2, producer=(1, 0)) + b"\xff", "producer id is not UTF-8"),
        (first_version(headers=(1, 5)) + bytes(5), "do not fit"),
        (first_version(headers=(0, 1)) + b"x", "without their parts"),
    ],
)
def test_bad_records_of_version_1_are_refused(data: bytes, message: str) -> None:
    """They are held to what version 1 promised; good ones are among the golden bytes."""
    with pytest.raises(FormatError, match=message):
        decode_log_record(data)
