"""Arrow batches become the records that they say, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import NO_TIME_MS
from bookie.log.record.log_record import LogRecord, encode_log_record
from bookie.log.write.writer import partition_of
from bookie.spark.sink_options import SinkColumns
from bookie.spark.sink_rows import (
    SinkRows,
    by_log,
    choose_partitions,
    encode_rows,
    read_rows,
)

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", "UTC")
Header = tuple[str, bytes]
Row = tuple[bytes, bytes | None, list[Header] | None, int | None]
"""Value, key, headers, time in ms."""

ROWS = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none()
        | st.lists(
            st.tuples(st.text(max_size=3), st.binary(max_size=4)),
            max_size=3,
            unique_by=lambda header: header[0],
        ),
        st.none() | st.integers(-(10**12), 10**13),
    ),
    min_size=1,
    max_size=20,
)


def headers_of(given: Sequence[Header] | None) -> list[dict[str, Any]] | None:
    """Headers as Arrow has them."""
    return None if given is None else [{"key": name, "value": value} for name, value in given]


def rows_of(rows: Sequence[Row], kept: set[str]) -> SinkRows:
    """The rows in columns; of the optional ones only `kept`."""
    values, keys, headers, times = zip(*rows, strict=True)
    micros = [None if at is None else at * 1000 + 999 for at in times]
    return SinkRows(
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()) if "key" in kept else None,
        pa.array(map(headers_of, headers), HEADERS) if "headers" in kept else None,
        pa.array(micros, pa.int64()).cast(TIME) if "timestamp" in kept else None,
    )


@given(ROWS, st.sets(st.sampled_from(["key", "headers", "timestamp"])), st.integers(1, 7))
def test_records_are_those_of_the_log(rows: list[Row], kept: set[str], piece: int) -> None:
    """In pieces or not, they have the bytes that a writer of the log gives them."""
    greatest_ms, found = NO_TIME_MS, []
    for some in rows_of(rows, kept).pieces(piece):
        payloads, greatest_ms = encode_rows(some, NOW_MS, greatest_ms)
        found += payloads
    expected, so_far = [], NO_TIME_MS
    for value, key, headers, at_ms in rows:
        record = LogRecord(
            NOW_MS if at_ms is None or "timestamp" not in kept else at_ms,
            value,
            key if "key" in kept else None,
            dict(headers or ()) if "headers" in kept else {},
        )
        expected.append(encode_log_record(record, greatest_ms=so_far))
        so_far = max(so_far, record.timestamp_ms)
    assert found == expected
    assert greatest_ms == so_far


@given(st.lists(st.integers(-2, 5), min_size=1))
def test_groups_keep_the_order(codes: list[int]) -> None:
    values = [b"%d" % place for place in range(len(codes))]
    rows = SinkRows(pa.array(values, pa.binary()))
    found = {code: some.value.to_pylist() for code, some in rows.groups(np.array(codes))}
    expected: Mapping[int, list[bytes]] = {
        code: [value for value, one in zip(values, codes, strict=True) if one == code]
        for code in set(codes)
    }
    assert found == expected


def test_groups_of_many_rows_keep_the_order() -> None:
    """Of few rows any sorting keeps it."""
    codes = np.arange(5000) * 7919 % 3
    rows = SinkRows(pa.array([b"%04d" % place for place in range(5000)], pa.binary()))
    for code, some in rows.groups(codes):
        expected = [b"%04d" % place for place in range(5000) if codes[place] == code]
        assert some.value.to_pylist() == expected


def test_partitions_by_column_then_key_then_turn() -> None:
    rows = SinkRows(
        pa.array([b""] * 4, pa.binary()),
        pa.array([b"a", b"a", None, b""], pa.binary()),
        partition=pa.array([2, None, None, None], pa.int32()),
    )
    chosen = choose_partitions(rows, 3, turn=1).tolist()
    assert chosen == [2, partition_of(b"a", 3), 1, partition_of(b"", 3)]


@pytest.mark.parametrize("number", [-1, 3])
def test_a_partition_that_does_not_exist(number: int) -> None:
    rows = SinkRows(pa.array([b""], pa.binary()), partition=pa.array([number], pa.int32()))
    with pytest.raises(BadRequestError, match=f"partition has {number}, and the log has 3"):
        choose_partitions(rows, 3, turn=0)


def test_rows_by_the_column_log() -> None:
    rows = SinkRows(pa.array([b"1", b"2", b"3"]), log=pa.array(["a", "b", "a"]))
    found = {log: some.value.to_pylist() for log, some in by_log(rows)}
    assert found == {"a": [b"1", b"3"], "b": [b"2"]}
    with pytest.raises(BadRequestError, match="null in the column log"):
        list(by_log(SinkRows(rows.value, log=pa.array(["a", None, "a"]))))


def test_text_is_its_utf_8_and_null_values_are_refused() -> None:
    batch = pa.record_batch({"value": pa.array(["ä", "b"]), "key": pa.array(["k", None])})
    rows = read_rows(batch, SinkColumns(value=0, key=1))
    assert (rows.value.to_pylist(), rows.key and rows.key.to_pylist()) == (
        ["ä".encode(), b"b"],
        [b"k", None],
    )
    with pytest.raises(BadRequestError, match="null in the column value"):
        read_rows(batch, SinkColumns(value=1))


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([("a", b"1"), ("a", b"2")], "two headers of one name"),
        ([("a", None)], "headers has a null"),
        ([(None, b"1")], "headers has a null"),
        ([("a" * 70_000, b"1")], "a header cannot be written"),
    ],
)
def test_headers_that_no_record_has(headers: list[Any], says: str) -> None:
    column = pa.array([headers_of(headers)], HEADERS)
    rows = SinkRows(pa.array([b""], pa.binary()), headers=column)
    with pytest.raises(BadRequestError, match=says):
        encode_rows(rows, NOW_MS, NO_TIME_MS)
