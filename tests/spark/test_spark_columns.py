"""Arrow batches of records and entries, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest

from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import Entries, Entry, pack_batch, verify_batch
from bookie.log.record.log_record import LogPosition, LogRecord, encode_log_record
from bookie.log.record.log_records import PlainRecords, decode_log_records
from bookie.spark.columns import (
    BATCH_BYTES,
    BATCH_ROWS,
    LEDGER_COLUMNS,
    LOG_COLUMNS,
    LedgerBatches,
    LogBatches,
    SourceColumns,
    joined,
)

ALL = SourceColumns(tuple(LOG_COLUMNS))


def plain(
    values: Sequence[bytes], offset: int = 0, keys: Sequence[bytes | None] = ()
) -> Sequence[LogRecord]:
    """Records from an offset on; the entry with the same number has each."""
    payloads = [
        encode_log_record(LogRecord(5, value, key), greatest_ms=5 + (key == b"late"))
        for value, key in zip_longest(values, keys)
    ]
    entries = Entries(range(offset, offset + len(values)), payloads)
    found = decode_log_records(entries, LogPosition(7, offset, offset, 3))
    assert isinstance(found, PlainRecords)
    return found


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows."""
    return [row for batch in batches for row in batch.to_pylist()]


def encode(records: Sequence[LogRecord], columns: SourceColumns = ALL) -> list[pa.RecordBatch]:
    """Batches whose schema is the one that Spark wants."""
    found = list(LogBatches(columns, "orders", 3).encode(records))
    assert all(one.schema.equals(columns.arrow_schema()) for one in found)
    return found


def test_plain_records_are_encoded_like_others() -> None:
    """They have a way of their own, because they are most."""
    records = plain([b"a", b"", b"ccc"], offset=9)
    found = rows_of(encode(records))
    assert found == rows_of(encode(list(records)))
    assert [row["value"] for row in found] == [b"a", b"", b"ccc"]
    assert [(row["offset"], row["entryId"], row["ledgerId"]) for row in found] == [
        (9, 9, 7),
        (10, 10, 7),
        (11, 11, 7),
    ]


def test_keys_and_late_records() -> None:
    """An empty key is none that is missing."""
    records = plain([b"a", b"", b"ccc", b"d"], 0, [b"k", None, b"", b"late"])
    found = rows_of(encode(records))
    assert found == rows_of(encode(list(records)))
    assert [row["key"] for row in found] == [b"k", None, b"", b"late"]
    assert [row["value"] for row in found] == [b"a", b"", b"ccc", b"d"]
    assert rows_of(encode(records[1:3])) == found[1:3]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([10] * 5, 1),
        ([0] * (BATCH_ROWS * 2 + 1), 3),
        ([BATCH_BYTES // 2 - 100] * 5, 3),
        ([BATCH_BYTES * 2, 1, BATCH_BYTES * 2], 3),
    ],
)
def test_large_batches_are_cut(sizes: list[int], batches: int) -> None:
    """By rows and by bytes; a record that is larger than the bound is alone. None is lost."""
    columns = SourceColumns(("offset", "value"))
    records = plain([bytes(size) for size in sizes])
    for form in (records, list(records)):
        found = encode(form, columns)
        assert len(found) == batches
        rows = rows_of(found)
        assert [row["offset"] for row in rows] == list(range(len(sizes)))
        assert [len(row["value"]) for row in rows] == sizes


def test_small_batches_are_put_together() -> None:
    columns = SourceColumns(("offset", "value"))
    small = [encode(plain([bytes(1000)] * 100, at), columns)[0] for at in range(0, 10_000, 100)]
    found = list(joined(iter(small)))
    assert rows_of(found) == rows_of(small)
    assert len(found) == 3  # 10 MB
    assert all(one.nbytes <= BATCH_BYTES for one in found)
    large = encode(plain([bytes(1000)] * 1100, 10_000), columns)[0]
    assert [len(one) for one in joined([small[0], large, small[1]])] == [100, 1100, 100]
    assert list(joined(iter(()))) == []


def test_entries_of_a_ledger() -> None:
    columns = SourceColumns(tuple(LEDGER_COLUMNS))
    (batch,) = LedgerBatches(columns, 7).encode([Entry(4, b"a"), Entry(5, b"")])
    assert batch.schema.equals(columns.arrow_schema())
    assert batch.to_pylist() == [
        {"ledgerId": 7, "entryId": 4, "value": b"a", "length": 1},
        {"ledgerId": 7, "entryId": 5, "value": b"", "length": 0},
    ]


def test_entries_of_a_large_ledger_are_cut() -> None:
    """The entries come with their packets, as a reader gets them."""
    columns = SourceColumns(("entryId", "value"))
    digester = digester_for_key(DigestType.CRC32C, b"")
    payloads = [bytes([at]) * (BATCH_BYTES // 20) for at in range(60)]
    entries = verify_batch(pack_batch(7, 5, -1, 0, payloads, digester), digester)
    found = list(LedgerBatches(columns, 7).encode(entries))
    assert len(found) == 3
    expected = [{"entryId": 5 + at, "value": one} for at, one in enumerate(payloads)]
    assert rows_of(found) == expected
