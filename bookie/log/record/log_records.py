"""Decode many log records at once, or encode the first bytes of many log records, by NumPy.

Most batches contain only plain records: records without headers and without a producer. A batch of
plain records is decoded by a few C calls, and each `LogRecord` is made only when it is accessed.
The module :mod:`bookie.log.record.log_record` describes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from bookie.entry.digest import BytesLike
from bookie.entry.entry import Entries
from bookie.errors import FormatError
from bookie.log.record.log_record import (
    FOLLOWS_CONTROL,
    HAS_KEY,
    IS_LATE,
    LOG_RECORD_VERSION,
    NO_HEADERS,
    LogPosition,
    LogRecord,
    decode_log_record,
    is_control,
)

_FIXED = np.dtype(
    [
        ("version", "<u1"),
        ("flags", "<u1"),
        ("header_count", "<u2"),
        ("key_length", "<u4"),
        ("timestamp_ms", "<i8"),
    ]
)

FIXED_SIZE_BYTES = _FIXED.itemsize
LATE_SIZE_BYTES = 8


class RecordStarts(NamedTuple):
    """The encoded bytes that come before the keys of several records.

    The caller adds keys, headers and values.
    """

    fixed: bytes
    """The fixed parts of all records, `FIXED_SIZE_BYTES` for each record."""
    late: bytes
    """The greatest timestamps, `LATE_SIZE_BYTES` for each record.

    Only late records contain this part.
    """
    is_late: NDArray[np.bool_]
    greatest_ms: int
    """The greatest timestamp up to the last record."""


def record_starts(
    timestamps_ms: NDArray[np.int64],
    greatest_ms: int,
    has_key: NDArray[np.bool_],
    key_lengths: NDArray[np.int64],
    header_counts: NDArray[np.int64],
) -> RecordStarts:
    """Encode the bytes that come before the keys of records; no record has a producer.

    `greatest_ms` is the greatest timestamp of all records before these records. Each array has one
    element for each record, and must not be empty. A record without a key has the key length 0. The
    caller must ensure that each number of headers fits into 16 bits, and each key length into 32
    bits.
    """
    greatest = np.maximum(np.maximum.accumulate(timestamps_ms), greatest_ms)
    is_late = greatest > timestamps_ms
    fixed = np.zeros(len(timestamps_ms), _FIXED)
    fixed["version"] = LOG_RECORD_VERSION
    fixed["flags"] = has_key * HAS_KEY + is_late * IS_LATE
    fixed["header_count"] = header_counts
    fixed["key_length"] = key_lengths
    fixed["timestamp_ms"] = timestamps_ms
    late = greatest.astype("<i8").tobytes()
    return RecordStarts(fixed.tobytes(), late, is_late, int(greatest[-1]))


class RecordColumns(NamedTuple):
    """Consecutive plain records in one piece of memory, and the places of their parts.

    Each array has one element for each record. A record's key ends where its value begins.
    """

    data: BytesLike
    timestamps_ms: NDArray[np.int64]
    has_key: NDArray[np.bool_]
    starts: NDArray[np.int64]
    keys_at: NDArray[np.int64]
    values_at: NDArray[np.int64]
    ends: NDArray[np.int64]

    def part(self, begin: int, end: int) -> RecordColumns:
        """Return the records from index `begin` up to, but not including, `end`."""
        return RecordColumns._make((self.data, *(column[begin:end] for column in self[1:])))


def record_columns(
    data: BytesLike, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> RecordColumns | None:
    """Return the columns of plain records; None if `starts` is empty or a record is not plain.

    A record is not plain if it has headers, a producer or another version, is a control record, or
    is damaged.
    """
    if not len(starts) or int((ends - starts).min()) < FIXED_SIZE_BYTES:
        return None
    # The array has overlapping rows: one row begins at each byte of `data`. Indexing copies the
    # rows at `starts`.
    row = np.dtype((np.void, FIXED_SIZE_BYTES))
    count = len(data) - FIXED_SIZE_BYTES + 1
    fixed = np.ndarray(count, row, buffer=data, strides=(1,))[starts].view(_FIXED)
    words = fixed.view("<u8").reshape(-1, 2)[:, 0]  # all fields except the time
    # Usually the records differ only in time and value, so the first record's other fields are
    # valid for all records.
    kinds = fixed[:1] if (words == words[0]).all() else fixed
    flags = kinds["flags"]
    has_key = (flags & HAS_KEY) != 0
    key_lengths = kinds["key_length"].astype(np.int64)
    keys_at = starts + (FIXED_SIZE_BYTES + ((flags & IS_LATE) != 0) * LATE_SIZE_BYTES)
    values_at = keys_at + key_lengths
    is_other = (
        (kinds["version"] != LOG_RECORD_VERSION)
        | ((flags & ~np.uint8(HAS_KEY | IS_LATE | FOLLOWS_CONTROL)) != 0)
        | (~has_key & (key_lengths != 0))
        | (kinds["header_count"] != 0)
        | (values_at > ends)
    )
    if is_other.any():
        return None
    timestamps_ms = fixed["timestamp_ms"].astype(np.int64)
    has_key = np.broadcast_to(has_key, len(starts))
    return RecordColumns(data, timestamps_ms, has_key, starts, keys_at, values_at, ends)


_value_of = itemgetter(slice(FIXED_SIZE_BYTES, None))
"""Return the value of an encoded record that has only a timestamp and a value."""


class PlainRecords(Sequence[LogRecord]):
    """Consecutive plain records; each `LogRecord` is made only when it is accessed."""

    __slots__ = ("columns", "first", "payloads")

    def __init__(
        self, payloads: Sequence[bytes], columns: RecordColumns, first: LogPosition
    ) -> None:
        self.payloads = payloads
        self.columns = columns
        """The columns of the same records, for callers that need no record objects."""
        self.first = first

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, begin: int, end: int) -> PlainRecords:
        """Return the records from index `begin` up to, but not including, `end`."""
        ledger_id, entry_id, offset, partition = self.first
        first = LogPosition(ledger_id, entry_id + begin, offset + begin, partition)
        return PlainRecords(self.payloads[begin:end], self.columns.part(begin, end), first)

    def _values(self) -> Iterable[bytes]:
        at = self.columns.values_at - self.columns.starts
        if (at == FIXED_SIZE_BYTES).all():
            return map(_value_of, self.payloads)
        return [payload[begin:] for payload, begin in zip(self.payloads, at.tolist(), strict=True)]

    def _keys(self) -> Iterable[bytes | None]:
        _, _, has_key, starts, keys_at, values_at, _ = self.columns
        if not has_key.any():
            return repeat(None)
        begins, ends = (keys_at - starts).tolist(), (values_at - starts).tolist()
        return [
            payload[begin:end] if is_keyed else None
            for payload, is_keyed, begin, end in zip(
                self.payloads, has_key.tolist(), begins, ends, strict=True
            )
        ]

    def __iter__(self) -> Iterator[LogRecord]:
        ledger_id, entry_id, offset, partition = self.first
        count = len(self.payloads)
        return map(
            tuple.__new__,  # LogRecord's own `__new__` is Python code, and takes twice as long
            repeat(LogRecord),
            zip(
                self.columns.timestamps_ms.tolist(),
                self._values(),
                self._keys(),
                repeat(NO_HEADERS),
                repeat(None),
                repeat(ledger_id),
                range(entry_id, entry_id + count),
                range(offset, offset + count),
                repeat(partition),
                strict=False,  # some iterators have no end
            ),
        )

    @overload
    def __getitem__(self, index: int) -> LogRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LogRecord]: ...

    def __getitem__(self, index: int | slice) -> LogRecord | Sequence[LogRecord]:
        places = range(len(self.payloads))[index]
        if isinstance(places, int):
            return next(iter(self.part(places, places + 1)))
        if places.step == 1:
            return self.part(places.start, max(places.start, places.stop))
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        # `bookie.sync` compares each batch with an empty batch. This comparison must make no
        # `LogRecord`.
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"PlainRecords({list(self)!r})"


def decode_log_records(entries: Entries, first: LogPosition) -> Sequence[LogRecord]:
    """Return the records in `entries`, without control records.

    `first` is the position of the first entry; the other entries follow it.

    Raises:
        FormatError: an entry is not a log record, is damaged, or has a newer version.
    """
    payloads = entries.payloads
    columns = record_columns(*entries.located())
    if columns is not None:
        return PlainRecords(payloads, columns, first)
    ledger_id, entry_id, offset, partition = first
    records = []
    for at, payload in enumerate(payloads):
        here = LogPosition(ledger_id, entry_id + at, offset + at, partition)
        record = _decoded(payload, here)
        if not is_control(payload):
            records.append(record)
    return records


def _decoded(payload: bytes, at: LogPosition) -> LogRecord:
    try:
        return decode_log_record(payload, *at)
    except FormatError as error:
        raise type(error)(f"entry {at.entry_id} of ledger {at.ledger_id}: {error}") from error
