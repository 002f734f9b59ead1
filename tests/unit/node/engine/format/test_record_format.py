"""Records of a block: round trips, views of the bytes, and refusal of bad lengths."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.errors import FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.format.records import (
    DeletedRecord,
    EntriesRecord,
    FenceRecord,
    LacRecord,
    LedgerRecord,
    LimboRecord,
    LinkRecord,
    Record,
    encode_deleted,
    encode_entries_head,
    encode_fence,
    encode_lac,
    encode_ledger,
    encode_limbo,
    encode_link,
    parse_records,
)

CONTIGUOUS = pack_batch(
    7, 5, 4, 0, [b"one", b"", b"three"], digester_for_key(DigestType.CRC32C, b"")
)
WITH_GAPS = EntryBatch(
    7, 5, np.array([1, 90], dtype=np.int64), CONTIGUOUS.sizes, CONTIGUOUS.payload
)
SIMPLE: list[tuple[bytes, Record]] = [
    (encode_ledger(7, b"k" * 32), LedgerRecord(7, b"k" * 32)),
    (encode_ledger(0, b""), LedgerRecord(0, b"")),
    (encode_fence(MAX_ID, b"key"), FenceRecord(MAX_ID, b"key")),
    (encode_lac(7, b"packet"), LacRecord(7, b"packet")),
    (encode_deleted(7, 1_700_000_000_000), DeletedRecord(7, 1_700_000_000_000)),
    (encode_link(3, bytes(range(16)), 8192), LinkRecord(3, bytes(range(16)), 8192)),
    (encode_limbo(7, True), LimboRecord(7, True)),
    (encode_limbo(7, False), LimboRecord(7, False)),
]


def parse_one(body: bytes) -> Record:
    """The only record of a body."""
    ((offset, record),) = list(parse_records(memoryview(body), 1))
    assert offset == 0
    return record


def entries_record(batch: EntryBatch, recovery: bool = False) -> bytes:
    """A whole ENTRIES record."""
    return encode_entries_head(batch, crc32c(batch.payload), recovery) + bytes(batch.payload)


@pytest.mark.parametrize(("data", "record"), SIMPLE)
def test_simple_records_round_trip(data: bytes, record: Record) -> None:
    """A parser gives back the encoded records."""
    assert parse_one(data) == record


@pytest.mark.parametrize("batch", [CONTIGUOUS, WITH_GAPS])
@pytest.mark.parametrize("recovery", [True, False])
def test_entries_round_trip(batch: EntryBatch, recovery: bool) -> None:
    """Ids, sizes, payload, CRC and the recovery flag survive."""
    data = entries_record(batch, recovery)
    record = parse_one(data)
    assert isinstance(record, EntriesRecord)
    assert record.recovery is recovery
    assert record.payload_crc32c == crc32c(batch.payload)
    assert data[record.payload_offset :] == batch.payload
    assert record.batch.ledger_id == 7
    assert record.batch.is_contiguous == batch.is_contiguous
    assert record.batch.entry_ids().tolist() == batch.entry_ids().tolist()
    assert record.batch.sizes.tolist() == batch.sizes.tolist()
    assert record.batch.payload == batch.payload


def test_records_follow_each_other() -> None:
    """A body of many records yields them in order with their offsets, entries as views."""
    parts = [encode_fence(1, b""), entries_record(CONTIGUOUS), encode_limbo(2, True)]
    body = memoryview(b"".join(parts))
    parsed = list(parse_records(body, 3))
    assert [offset for offset, _ in parsed] == [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    entries = parsed[1][1]
    assert isinstance(entries, EntriesRecord)
    assert isinstance(entries.batch.payload, memoryview)
    assert entries.batch.payload.obj is body.obj
    end = entries.payload_offset + len(entries.batch.payload)
    assert body[entries.payload_offset : end] == CONTIGUOUS.payload
    assert list(parse_records(memoryview(b""), 0)) == []


def header(kind: int, length: int, flags: int = 0, reserved: int = 0) -> bytes:
    """A record header."""
    return struct.pack("<BBHI", kind, flags, reserved, length)


def entries(count: int, payload: int, body: bytes, flags: int = 1, reserved: int = 0) -> bytes:
    """An ENTRIES record whose numbers need not add up."""
    fixed = struct.pack("<qqIIII", 7, 0, count, 0, payload, reserved)
    return header(1, len(fixed) + len(body), flags) + fixed + body


@pytest.mark.parametrize(
    ("body", "count", "message"),
    [
        (b"", 1, "outside its block"),
        (header(2, 0)[:7], 1, "outside its block"),
        (header(2, 1), 1, "ends outside"),
        (header(2, 2**32 - 1), 1, "ends outside"),
        (encode_limbo(1, True), 0, "0 records end at 0"),
        (encode_limbo(1, True), 2, "outside its block"),
        (encode_limbo(1, True) + b"\0", 1, "their block has 17"),
        (header(0, 0), 1, "type 0"),
        (header(10, 0), 1, "type 10"),
        (header(7, 8, flags=1) + bytes(8), 1, "flags 1"),
        (header(7, 8, reserved=1) + bytes(8), 1, "newer version"),
        (header(7, 7) + bytes(7), 1, "should have 8"),
        (header(7, 8) + b"\xff" * 8, 1, "names ledger -1"),
        (header(8, 8) + b"\xff" * 8, 1, "names ledger -1"),
        (header(5, 15) + bytes(15), 1, "should have 16"),
        (header(6, 33) + bytes(33), 1, "should have 32"),
        (header(3, 9) + bytes(9), 1, "too short"),
        (header(3, 10) + struct.pack("<qH", 1, 1), 1, "1 bytes of content"),
        (header(3, 11) + struct.pack("<qH", 1, 0) + b"x", 1, "0 bytes of content"),
        (header(2, 10) + struct.pack("<qH", -1, 0), 1, "names ledger -1"),
        (header(1, 31, flags=1) + bytes(31), 1, "shorter than its own header"),
        (entries(1, 32, struct.pack("<I", 32) + bytes(32), flags=5), 1, "flags 5"),
        (entries(1, 32, struct.pack("<I", 32) + bytes(32), reserved=1), 1, "newer version"),
        (entries(1, 33, struct.pack("<I", 32) + bytes(32)), 1, "do not fill"),
        (entries(2**32 - 1, 32, bytes(36), flags=0), 1, "do not fill"),
        (entries(1, 32, struct.pack("<I", 33) + bytes(32)), 1, "add up to 33"),
        (entries(0, 0, b""), 1, "at least one"),
        (entries(0, 0, b"", flags=0), 1, "at least one"),
        (entries(2, 64, struct.pack("<IIq", 32, 32, 0) + bytes(64), flags=0), 1, "ascend"),
    ],
)
def test_malformed_bodies_are_refused(body: bytes, count: int, message: str) -> None:
    """Numbers that do not add up are a format error."""
    with pytest.raises(FormatError, match=message):
        list(parse_records(memoryview(body), count))
