"""The columns of a read, and the encoding of these columns as Arrow batches.

Spark does not tell a Python source which columns a query uses. So the user chooses the columns by
the options ``columns`` and ``includeValue``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookie.entry.digest import BytesLike
from bookie.entry.entry import Entries, Entry
from bookie.errors import BadRequestError
from bookie.log.record.log_record import LogRecord
from bookie.log.record.log_records import PlainRecords, RecordColumns
from bookie.spark.options import SparkOptions

S = TypeVar("S")

BATCH_ROWS, BATCH_BYTES = 16384, 4 << 20
"""The largest numbers of rows and bytes in an Arrow batch; larger batches are slower."""

LARGE_BYTES = BATCH_BYTES // 4
"""A batch of at least this size is not joined with other batches: joining copies its bytes."""

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

LOG_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "log": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "ledgerId": LongType(),
    "entryId": LongType(),
    "headers": HEADERS,
}

LEDGER_COLUMNS: dict[str, DataType] = {
    "ledgerId": LongType(),
    "entryId": LongType(),
    "value": BinaryType(),
    "length": IntegerType(),
}


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of a read, in order, by their names in `LOG_COLUMNS` or `LEDGER_COLUMNS`."""

    names: tuple[str, ...]
    log_name: str = "log"
    """The name of the column with the log's name; ``topic`` for jobs that were made for Kafka."""

    def schema(self) -> StructType:
        """Return the schema of the columns, in Spark's types."""
        kinds = LOG_COLUMNS | LEDGER_COLUMNS
        renamed = {"log": self.log_name}
        return StructType([StructField(renamed.get(one, one), kinds[one]) for one in self.names])

    def arrow_schema(self) -> pa.Schema:
        """Return the exact Arrow schema that Spark requires for the columns."""
        return to_arrow_schema(self.schema(), timezone="UTC")


def take_log_columns(options: SparkOptions, *, is_kafkas: bool) -> SourceColumns:
    """Parse the options that choose the columns for a read of logs.

    Raises:
        BadRequestError: an option names a column that does not exist.
    """
    names = [one for one in LOG_COLUMNS if one != "headers"]
    if options.take_flag("includeHeaders", False):
        names.append("headers")
    log_name = "topic" if is_kafkas else "log"
    return SourceColumns(_chosen(options, names, {log_name: "log"}), log_name)


def take_ledger_columns(options: SparkOptions) -> SourceColumns:
    """Parse the options that choose the columns for a read of ledgers.

    Raises:
        BadRequestError: an option names a column that does not exist.
    """
    return SourceColumns(_chosen(options, list(LEDGER_COLUMNS), {}))


def _chosen(options: SparkOptions, names: list[str], aliases: dict[str, str]) -> tuple[str, ...]:
    if not options.take_flag("includeValue", True):
        names.remove("value")
    wanted = options.take_names("columns")
    if wanted is None:
        return tuple(names)
    known = {one.lower(): one for one in names} | aliases
    for one in wanted:
        if one.lower() not in known:
            raise BadRequestError(f"the option columns has {one}; there are {', '.join(names)}")
    return tuple(dict.fromkeys(known[one.lower()] for one in wanted))


class LogBatches:
    """Encodes the records of one partition as Arrow batches."""

    def __init__(self, columns: SourceColumns, log: str, partition: int) -> None:
        self._schema = columns.arrow_schema()
        self._names = columns.names
        self._log = log
        self._partition = partition

    def encode(self, records: Sequence[LogRecord]) -> Iterator[pa.RecordBatch]:
        """Yield the records as one or several Arrow batches."""
        if isinstance(records, PlainRecords):
            for part in _plain_parts(records):
                yield self._batch(_plain_columns(part, self._names), len(part))
            return
        for some in _parts(records, list(map(_size_of, records))):
            yield self._batch(_record_columns(some), len(some))

    def _batch(self, columns: dict[str, Any], count: int) -> pa.RecordBatch:
        arrays = []
        for name, field in zip(self._names, self._schema, strict=True):
            match name:
                case "log":
                    array = pa.repeat(pa.scalar(self._log, field.type), count)
                case "partition":
                    array = pa.repeat(pa.scalar(self._partition, field.type), count)
                case "timestamp":
                    array = pa.array(columns[name] * 1000, pa.int64()).cast(field.type)
                case _:
                    found = columns.get(name)
                    array = (
                        pa.nulls(count, field.type)
                        if found is None
                        else pa.array(found, field.type)
                    )
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class LedgerBatches:
    """Encodes the entries of one ledger as Arrow batches."""

    def __init__(self, columns: SourceColumns, ledger_id: int) -> None:
        self._schema = columns.arrow_schema()
        self._names = columns.names
        self._ledger_id = ledger_id

    def encode(self, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """Yield the entries as one or several Arrow batches."""
        whole = Entries.of(entries)
        for some in map(Entries.of, _parts(whole, list(map(len, whole.payloads)))):
            data, starts, ends = some.located()
            columns: dict[str, Any] = {
                "ledgerId": np.full(len(some), self._ledger_id),
                "entryId": np.array(some.ids, np.int64),
                "length": (ends - starts).astype(np.int32),
            }
            if "value" in self._names:
                places = pa.array(np.arange(1, 2 * len(some), 2))
                columns["value"] = _strings(data, starts, ends).take(places)
            arrays = [pa.array(columns[name]) for name in self._names]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches into larger batches, because each batch costs Spark some time."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        is_large = batch.nbytes >= LARGE_BYTES
        is_full = rows + len(batch) > BATCH_ROWS or size_bytes + batch.nbytes > BATCH_BYTES
        if waiting and (is_large or is_full):
            yield _one_batch(waiting)
            waiting, rows, size_bytes = [], 0, 0
        if is_large:
            yield batch
            continue
        waiting.append(batch)
        rows, size_bytes = rows + len(batch), size_bytes + batch.nbytes
    if waiting:
        yield _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _parts(items: Sequence[S], sizes: Sequence[int]) -> Iterator[Sequence[S]]:
    """Cut `items` into parts, each small enough for one batch; `sizes` has each item's bytes."""
    if len(items) <= BATCH_ROWS and sum(sizes) <= BATCH_BYTES:
        yield items
        return
    begin = size_bytes = 0
    for at, size in enumerate(sizes):
        if at > begin and (at - begin >= BATCH_ROWS or size_bytes + size > BATCH_BYTES):
            yield items[begin:at]
            begin, size_bytes = at, 0
        size_bytes += size
    yield items[begin:]


def _size_of(record: LogRecord) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers.items())
    return len(record.value) + len(record.key or b"") + headers


def _plain_parts(records: PlainRecords) -> Iterator[PlainRecords]:
    sizes = records.columns.ends - records.columns.keys_at
    if len(sizes) <= BATCH_ROWS and int(sizes.sum()) <= BATCH_BYTES:
        yield records
        return
    for places in _parts(range(len(sizes)), sizes.tolist()):
        yield records.part(places[0], places[-1] + 1)


def _plain_columns(records: PlainRecords, names: Sequence[str]) -> dict[str, Any]:
    count, first = len(records), records.first
    found: dict[str, Any] = {
        "offset": np.arange(first.offset, first.offset + count),
        "entryId": np.arange(first.entry_id, first.entry_id + count),
        "ledgerId": np.full(count, first.ledger_id),
        "timestamp": records.columns.timestamps_ms,
        "headers": [[]] * count,
    }
    if "key" in names or "value" in names:
        found["key"], found["value"] = _keys_and_values(records.columns)
    return found


def _keys_and_values(columns: RecordColumns) -> tuple[pa.Array | None, pa.Array]:
    """Return the keys and the values, which Arrow copies from the records' bytes."""
    _, _, has_key, _, keys_at, values_at, ends = columns
    strings = _strings(columns.data, keys_at, values_at, ends)
    places = np.arange(2, len(strings), 3)
    keys = strings.take(pa.array(places - 1, mask=~has_key)) if has_key.any() else None
    return keys, strings.take(pa.array(places))


def _strings(data: BytesLike, *ends: NDArray[np.int64]) -> pa.Array:
    """Return an Arrow array of the strings in `data`, without a copy.

    Each record has `len(ends)` strings.

    The strings follow each other without a gap. Each array in `ends` has, for one kind of string
    such as the keys, the position in `data` where each string ends.
    """
    kinds, count = len(ends), len(ends[0])
    places = np.zeros(kinds * count + 1, np.int32)
    for at, column in enumerate(ends, 1):
        places[at::kinds] = column
    buffers = [None, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), kinds * count, buffers)


def _record_columns(records: Iterable[LogRecord]) -> dict[str, Any]:
    timestamps, values, keys, headers, _, ledger_ids, entry_ids, offsets, _ = zip(
        *records, strict=True
    )
    return {
        "key": keys,
        "value": values,
        "offset": offsets,
        "entryId": entry_ids,
        "ledgerId": ledger_ids,
        "timestamp": np.array(timestamps, np.int64),
        "headers": [[{"key": k, "value": v} for k, v in one.items()] for one in headers],
    }
