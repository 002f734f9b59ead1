"""Converts Arrow batches to payloads of log records, mostly without Python code for each row.

Arrow joins the parts of all records in C. Two cases need Python code for each row. Headers are
encoded in Python. In a log of several partitions, Python computes the CRC32C of each key, which
chooses the partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bookie.errors import BadRequestError
from bookie.log.record.log_record import encode_headers, plain_prefix
from bookie.log.record.log_records import FIXED_SIZE_BYTES, LATE_SIZE_BYTES, record_starts
from bookie.log.write.writer import partition_of
from bookie.spark.sink_options import SinkColumns

_HEADERS_MAX = 2**16 - 1


@dataclass(frozen=True, slots=True)
class SinkRows:
    """The rows of one Arrow batch, as columns; a missing column is None."""

    value: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None
    timestamp: pa.Array | None = None
    log: pa.Array | None = None
    partition: pa.Array | None = None
    place: pa.Array | None = None
    """The number of each row in its batch, for error messages."""

    def take(self, places: NDArray[np.int64]) -> SinkRows:
        """Return the rows whose indexes are in `places`, in the same order."""
        some = pa.array(places)
        return SinkRows(*(None if one is None else one.take(some) for one in self._columns()))

    def pieces(self, rows: int) -> Iterator[SinkRows]:
        """Yield the same rows in pieces of at most `rows` rows."""
        if len(self.value) <= rows:
            yield self
            return
        for start in range(0, len(self.value), rows):
            columns = (None if one is None else one.slice(start, rows) for one in self._columns())
            yield SinkRows(*columns)

    def _columns(self) -> tuple[pa.Array | None, ...]:
        known = self.value, self.key, self.headers, self.timestamp, self.log, self.partition
        return (*known, self.place)

    def groups(self, codes: NDArray[np.int64]) -> Iterator[tuple[int, SinkRows]]:
        """Yield each distinct value of `codes`, with the rows that have this code.

        `codes` has one code for each row. Within a group, the rows keep their order.
        """
        first = int(codes[0])
        if (codes == first).all():
            yield first, self
            return
        order = np.argsort(codes, kind="stable")
        found, starts = np.unique(codes[order], return_index=True)
        for code, places in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield code, self.take(places)


def read_rows(batch: pa.RecordBatch, columns: SinkColumns) -> SinkRows:
    """Return the rows of an Arrow batch, with the columns that a sink uses.

    Raises:
        BadRequestError: a value is null, or a column that only the log sets is not empty.
    """

    def column(place: int | None) -> pa.Array | None:
        return None if place is None else batch.column(place)

    value = _as_binary(batch.column(columns.value))
    if value.null_count:
        raise BadRequestError(
            "a row has a null in the column value; filter such rows out, or write "
            "coalesce(value, lit(''))"
        )
    for name, place in columns.filled_by_log:
        if batch.column(place).null_count < batch.num_rows:
            raise BadRequestError(
                f"the log fills the column {name}; insert without it: INSERT INTO t (key, value) …"
            )
    key = column(columns.key)
    return SinkRows(
        value,
        None if key is None else _as_binary(key),
        column(columns.headers),
        column(columns.timestamp),
        column(columns.log),
        column(columns.partition),
        pa.array(np.arange(batch.num_rows)),
    )


def by_log(rows: SinkRows) -> Iterator[tuple[str, SinkRows]]:
    """Yield the rows, grouped by the column ``log``.

    Raises:
        BadRequestError: the column is null in a row.
    """
    assert rows.log is not None
    if rows.log.null_count:
        raise BadRequestError(
            'a row has a null in the column log; set .option("log", NAME), or fill the column'
        )
    coded = rows.log.dictionary_encode()
    names = coded.dictionary.to_pylist()
    for code, some in rows.groups(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)):
        yield names[code], some


def choose_partitions(rows: SinkRows, partitions: int, turn: int) -> NDArray[np.int64]:
    """Return each row's partition.

    The number in the column ``partition`` is the row's partition. If this number is null or absent,
    the key determines the partition. A row that has neither a number nor a key goes to partition
    `turn`.

    Raises:
        BadRequestError: the column ``partition`` has a number that the log does not have.
    """
    chosen = np.full(len(rows.value), turn, np.int64)
    if partitions > 1 and rows.key is not None and rows.key.null_count < len(rows.key):
        keys = rows.key.to_pylist()
        chosen[:] = [turn if key is None else partition_of(key, partitions) for key in keys]
    if rows.partition is not None:
        said = pc.fill_null(rows.partition, -1).to_numpy(zero_copy_only=False)
        is_said = pc.is_valid(rows.partition).to_numpy(zero_copy_only=False)
        wrong = said[is_said & ((said < 0) | (said >= partitions))]
        if len(wrong):
            raise BadRequestError(
                f"the column partition has {wrong[0]}, and the log has {partitions} partitions, "
                "from 0 on"
            )
        chosen[is_said] = said[is_said]
    return chosen


def encode_rows(rows: SinkRows, now_ms: int, greatest_ms: int) -> tuple[list[bytes], int]:
    """Return the records' payloads, and the maximum of `greatest_ms` and the records' timestamps.

    Raises:
        BadRequestError: the headers of a row cannot be written.
    """
    if rows.key is None and rows.headers is None and rows.timestamp is None:
        prefix = pa.scalar(plain_prefix(now_ms, greatest_ms=greatest_ms), pa.binary())
        return _join(prefix, rows.value), max(now_ms, greatest_ms)
    count = len(rows.value)
    none = np.zeros(count, np.int64)
    counts, packed = (none, None) if rows.headers is None else _pack_headers(rows.headers)
    is_keyed = np.zeros(count, np.bool_)
    if rows.key is not None:
        is_keyed = rows.key.is_valid().to_numpy(zero_copy_only=False)
    starts = record_starts(
        _milliseconds(rows, now_ms),
        greatest_ms,
        is_keyed,
        none if rows.key is None else _lengths(rows.key),
        counts,
    )
    parts = [_fixed_width(starts.fixed, FIXED_SIZE_BYTES, count)]
    if starts.is_late.any():
        late = _fixed_width(starts.late, LATE_SIZE_BYTES, count)
        parts.append(pc.if_else(pa.array(starts.is_late), late, _nothing()))
    parts += [one for one in (rows.key, packed) if one is not None]
    return _join(*parts, rows.value), starts.greatest_ms


def _nothing() -> pa.Scalar:
    """Return an empty bytes scalar.

    The scalar is not a constant of the module, because Arrow imports pandas when it makes its first
    scalar, and this takes time.
    """
    return pa.scalar(b"", pa.binary())


def _join(*parts: Any) -> list[bytes]:
    joined = pc.binary_join_element_wise(
        *parts, _nothing(), null_handling="replace", null_replacement=b""
    )
    found: list[bytes] = joined.to_pylist()
    return found


def _as_binary(column: pa.Array) -> pa.Array:
    """Return a text column as binary UTF-8, without a copy."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _fixed_width(data: bytes, width: int, count: int) -> pa.Array:
    kind = pa.binary(width)
    fixed = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
    return fixed.cast(pa.binary())


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def latest_row(rows: SinkRows) -> int | None:
    """Return the index of the row with the greatest timestamp; None if no row has a timestamp."""
    if rows.timestamp is None or rows.timestamp.null_count == len(rows.timestamp):
        return None
    found: int = pc.index(rows.timestamp, pc.max(rows.timestamp)).as_py()
    return found


def _milliseconds(rows: SinkRows, now_ms: int) -> NDArray[np.int64]:
    if rows.timestamp is None:
        return np.full(len(rows.value), now_ms, np.int64)
    microseconds = rows.timestamp.cast(pa.timestamp("us", rows.timestamp.type.tz)).cast(pa.int64())
    filled = pc.fill_null(microseconds, now_ms * 1000).to_numpy(zero_copy_only=False)
    return filled // 1000  # type: ignore[no-any-return]


def _pack_headers(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the number of headers of each row, and each row's encoded headers."""
    given = column.to_pylist()
    counts = np.array([len(one or ()) for one in given], np.int64)
    return counts, pa.array(list(map(_packed, given)), pa.binary())


def _packed(headers: list[dict[str, Any]] | None) -> bytes:
    if not headers:
        return b""
    for header in headers:
        if header is None or header["key"] is None or header["value"] is None:
            raise BadRequestError(
                "the column headers has a null in a row; filter such headers out: "
                "filter(headers, lambda h: h.key.isNotNull() & h.value.isNotNull())"
            )
    by_name = {header["key"]: header["value"] for header in headers}
    if len(by_name) < len(headers):
        raise BadRequestError(
            "a row has two headers of one name, and a record has one of each; rename the second"
        )
    if len(by_name) > _HEADERS_MAX:
        raise BadRequestError(f"a row has {len(by_name)} headers, the most is {_HEADERS_MAX}")
    try:
        return encode_headers(by_name)
    except (struct.error, UnicodeEncodeError) as error:
        raise BadRequestError(f"a header cannot be written: {error}") from error
