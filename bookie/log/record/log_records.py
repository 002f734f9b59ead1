"""The records of consecutive entries, decoded together.

A reader gets entries in batches. Most batches hold plain records only, without headers and without
a producer. For them this takes a few C calls for a batch, and makes each `LogRecord` only when it
is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import overload

from bookie.entry.entry import Entries
from bookie.errors import FormatError
from bookie.log.record.log_record import (
    NO_HEADERS,
    LogPosition,
    LogRecord,
    decode_log_record,
    is_control,
)
from bookie.log.record.log_record_columns import FIXED_SIZE_BYTES, RecordColumns, record_columns

_value_of = itemgetter(slice(FIXED_SIZE_BYTES, None))
"""Of a record that has a timestamp and a value only."""


class PlainRecords(Sequence[LogRecord]):
    """Consecutive records without headers and producer; each is made on access."""

    __slots__ = ("columns", "first", "payloads")

    def __init__(
        self, payloads: Sequence[bytes], columns: RecordColumns, first: LogPosition
    ) -> None:
        self.payloads = payloads
        """The entries."""
        self.columns = columns
        """The same as they lie in memory: for those who make columns of them, not records."""
        self.first = first
        """Where the first of them is."""

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, begin: int, end: int) -> PlainRecords:
        """The records at these places; `end` is behind the last one."""
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
            tuple.__new__,  # the class's own is Python code, and takes twice as long
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
                strict=False,  # some repeat for ever
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
        # `bookie.sync` compares each batch with an empty one: that must make no records.
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"PlainRecords({list(self)!r})"


def decode_log_records(entries: Entries, first: LogPosition) -> Sequence[LogRecord]:
    """The records in consecutive entries, the first of them at `first`, without control records.

    Raises:
        FormatError: an entry is not a log record, damaged, or of a newer version.
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
