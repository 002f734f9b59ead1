"""Encode the records of a partition in order, each with the greatest timestamp so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from bookie.env import Clock
from bookie.env.clock import moment_text
from bookie.errors import BadRequestError, ClockError
from bookie.ids import MAX_ID
from bookie.ledger.connection.arguments import Payload, checked_bytes
from bookie.ledger.write.append_queue import NewEntries
from bookie.log.record.log_record import LogRecord, Producer, encode_log_record, plain_prefix
from bookie.log.record.producers import ProducerWindows, encode_producers

SNAPSHOT_ENTRIES = 10_000
"""The number of entries after which a snapshot of producers is due.

The next owner reads back at most this number of entries.
"""

_SHARED_FROM = 64
"""The fewest records that share one prefix.

Measurements show that a prefix for each of fewer records is as fast.
"""

DRIFT_SECONDS_MAX = 60.0
"""The tolerated drift of the wall clock from the monotonic clock since the last comparison."""

_NO_HEADERS: Mapping[str, bytes] = {}


class NewRecord(NamedTuple):
    """A record to append. If `timestamp_ms` is None, the record gets the time of the append."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = _NO_HEADERS
    timestamp_ms: int | None = None


class LatestTime:
    """The latest time that a record may have: the present time plus `ahead_seconds` of the policy.

    This class computes the present time: the wall clock's time at its last comparison with bookies,
    plus the monotonic clock's seconds since that comparison. Without `ahead_seconds`, any time is
    valid.
    """

    def __init__(self, clock: Clock, ahead_seconds: int) -> None:
        self._clock = clock
        self._ahead_seconds = ahead_seconds
        self._base_ms = float(MAX_ID)
        self.is_in_doubt = False
        """True if the wall clock must be compared with bookies before its next use."""
        self.compared()

    def compared(self) -> None:
        """Remember that the wall clock has just been compared with the clocks of bookies."""
        self.is_in_doubt = False
        if self._ahead_seconds:
            self._base_ms = self._offset_ms() + 1000 * self._ahead_seconds

    def _offset_ms(self) -> float:
        return self._clock.now_ms() - 1000 * self._clock.monotonic()

    def require(self, timestamp_ms: int) -> None:
        """Check that `timestamp_ms` is not later than the latest time.

        Raises:
            BadRequestError: the timestamp is later than the latest time.
            ClockError: the timestamp is later, and the wall clock was set since its last
                comparison. Compare the clock and try again.
        """
        if timestamp_ms - 1000 * self._clock.monotonic() > self._base_ms:
            drift_ms = self._offset_ms() - self._base_ms + 1000 * self._ahead_seconds
            if abs(drift_ms) > 1000 * DRIFT_SECONDS_MAX:
                self.is_in_doubt = True
                raise ClockError(
                    "this machine's clock has moved, or the machine was suspended; the clock is "
                    "compared with those of bookies now, so append again"
                )
            raise BadRequestError(
                f"a record has the time {timestamp_ms} ms ({moment_text(timestamp_ms)}), more than "
                f"{self._ahead_seconds} s ahead; times are ms since 1970, and the log's policy "
                "allows others by ahead_seconds"
            )


class RecordEncoder:
    """Encodes the records of one partition in order. A call that fails has encoded no record."""

    def __init__(
        self,
        clock: Clock,
        windows: ProducerWindows,
        greatest_ms: int,
        size_bytes_max: int,
        ahead_seconds: int = 0,
    ) -> None:
        """`greatest_ms` is the greatest timestamp in the partition so far."""
        self._clock = clock
        self.latest = LatestTime(clock, ahead_seconds)
        self.windows = windows
        self._greatest_ms = greatest_ms
        self._size_bytes_max = size_bytes_max
        self._has_producers = bool(windows)
        self._entries_since_snapshot = SNAPSHOT_ENTRIES

    def encode_many(
        self, records: Sequence[Payload | NewRecord], producer: Producer | None = None
    ) -> NewEntries:
        """Encode at least one record.

        `producer` has the first record's number; the other records have the numbers that follow.

        Raises:
            BadRequestError: a record does not fit into an entry, a field is of the wrong type, or a
                timestamp is too far ahead.
            ClockError: the wall clock must first be compared with bookies' clocks
                (`LatestTime.require`).
        """
        if producer is not None or list(map(type, records)).count(bytes) != len(records):
            return self._encode_each([as_record(one) for one in records], producer)
        now_ms = self._clock.now_ms()
        self.latest.require(now_ms)
        prefix = plain_prefix(
            now_ms, greatest_ms=self._greatest_ms, follows_control=self._has_producers
        )
        values = cast("list[bytes]", list(records))
        if len(values) >= _SHARED_FROM:
            encoded = self._checked(NewEntries.of(values, prefix))
        else:
            encoded = self._checked(NewEntries.of([prefix + value for value in values]))
        self._greatest_ms = max(self._greatest_ms, now_ms)
        self._entries_since_snapshot += len(encoded.payloads)
        return encoded

    def _encode_each(self, records: Sequence[NewRecord], producer: Producer | None) -> NewEntries:
        now_ms = self._clock.now_ms()
        greatest = self._greatest_ms
        tracks = self._has_producers or producer is not None
        payloads = []
        for index, (value, key, headers, timestamp_ms) in enumerate(records):
            at_ms = now_ms if timestamp_ms is None else timestamp_ms
            whose = producer and Producer(producer.producer_id, producer.sequence + index)
            record = LogRecord(at_ms, _checked(value), key, headers, whose)
            payloads.append(encode_log_record(record, greatest_ms=greatest, follows_control=tracks))
            greatest = max(greatest, at_ms)
        self.latest.require(max(one.timestamp_ms or now_ms for one in records))
        encoded = self._checked(NewEntries.of(payloads))
        self._greatest_ms, self._has_producers = greatest, tracks
        self._entries_since_snapshot += len(payloads)
        return encoded

    def _checked(self, new: NewEntries) -> NewEntries:
        size_max = self._size_bytes_max
        if new.total_bytes > size_max and new.greatest_bytes > size_max:
            raise BadRequestError(
                f"a record of {new.greatest_bytes} bytes, header included, is larger than the "
                f"{size_max} bytes that fit into an entry"
            )
        return new

    # -- snapshots of producers --------------------------------------------------------------------

    def begin_ledger(self) -> None:
        """Remember that the next records go to a new ledger, so a new snapshot is due.

        The creator of the ledger must have compared the wall clock with bookies' clocks.
        """
        self._entries_since_snapshot = SNAPSHOT_ENTRIES
        self.latest.compared()

    @property
    def is_snapshot_due(self) -> bool:
        """True if a snapshot must be appended before the records that were encoded last."""
        return self._has_producers and self._entries_since_snapshot >= SNAPSHOT_ENTRIES

    def snapshot(self) -> NewEntries:
        """Return a control record with a snapshot of the known producers, encoded as an entry."""
        self._entries_since_snapshot = 0
        at_ms = min(self._greatest_ms, self._clock.now_ms())
        record = LogRecord(at_ms, encode_producers(self.windows.state()))
        snapshot = encode_log_record(record, greatest_ms=self._greatest_ms, is_control=True)
        return NewEntries.of([snapshot])


def checked_records(records: object) -> list[Payload | NewRecord]:
    """Return `records` as a list, without checking each record.

    Raises:
        BadRequestError: `records` is a single value, or not iterable.
    """
    single = (str, bytes, bytearray, memoryview, NewRecord, Mapping)
    if not isinstance(records, Iterable) or isinstance(records, single):
        raise BadRequestError(
            f"records must be many, such as a list of bytes, not {type(records).__name__}"
        )
    return list(records)


def as_record(given: Payload | NewRecord) -> NewRecord:
    """Return `given` if it is a `NewRecord`; otherwise return a record with the value `given`."""
    return given if isinstance(given, NewRecord) else NewRecord(_checked(given))


def _checked(value: Payload) -> bytes:
    return value if type(value) is bytes else checked_bytes(value, "a record's value")
