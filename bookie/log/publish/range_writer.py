"""Write records of a transactional log to the writer's own ledgers, and cut them into ranges.

No reader sees a range before its publication (:mod:`bookie.log.publish.publisher`). An executor of
a pipeline writes records and cuts them into ranges. The executor sends each small `PendingRange` to
the driver, which publishes the range.

One ledger has the ranges of many batches. If the ledger is too large or too old for the log's
policy, or has failed, the next range begins in a new ledger. A sweep deletes a ledger that is older
than a day if no published range names it (:mod:`bookie.log.tidy.sweep`). So no range begins in a
ledger that is older than half a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from bookie.env import Moment, moment_ms
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClockError,
    LogClosedError,
    NoSuchLedgerError,
)
from bookie.ids import NO_ENTRY
from bookie.ledger.connection.arguments import Payload, checked_bytes, checked_payloads
from bookie.ledger.metadata import LedgerState
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_metadata import NO_TIME_MS, LogDefinition, LogMode, LogRange
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogPartition, checked_partition
from bookie.log.head.roll import RollLimits
from bookie.log.log_client import LogClient
from bookie.log.record.log_record import LogRecord, encode_log_record, plain_prefix
from bookie.log.record.record_encoder import LatestTime, NewRecord, as_record, checked_records
from bookie.telemetry import event_log

APPLICATION_TAG = "bookie.log.application"
"""The key of the application's id in the custom metadata of a publisher's ledgers."""

LEDGER_SECONDS_MAX = 12 * 3600
"""The greatest age of a ledger in which a range may begin.

A sweep deletes a ledger at twice this age, if no range names the ledger.
"""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class PendingRange:
    """Durable records that no reader sees before their publication.

    All fields are numbers, so a range can be sent as JSON (``PendingRange(**fields)``) or pickled.
    """

    partition: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    """The last entry of the range, inclusive."""
    end_ms: int
    """The greatest timestamp of the range's records."""
    size_bytes: int
    """Payload bytes of the range's entries."""

    def as_log_range(self) -> LogRange:
        """Convert to a range of a head. The range has no offset before its publication."""
        return LogRange(
            self.ledger_id,
            self.first_entry_id,
            self.last_entry_id,
            None,
            self.end_ms,
            self.size_bytes,
        )


_Encoded: TypeAlias = Callable[[int], tuple[list[bytes], int]]
"""A function that encodes an append; its argument is the range's greatest timestamp so far.

The function returns the entries, and the greatest timestamp including these entries.
"""


class RangeWriter:
    """Writes records of one partition. `open` makes a writer; `async with` closes the writer.

    Several tasks may append at once; the entries have the order of the calls. If an append fails or
    is cancelled, its whole range fails. After a failure, appends raise LogClosedError until
    `discard` or `cut` drops the failed range. A `cut` that drops a failed range also raises
    LogClosedError. Ranges that were cut before the failure stay valid and may be published.
    """

    def __init__(
        self,
        client: LogClient,
        partition: LogPartition,
        definition: LogDefinition,
        policy: LogPolicy,
        application_id: str,
        password: bytes = b"",
    ) -> None:
        self._client = client
        self._partition = partition
        self._roll_limits = RollLimits.of(policy, seconds_max=LEDGER_SECONDS_MAX)
        self._shape = client.shape(policy, password)
        self._tags = publisher_tags(partition, definition.log_id, application_id)
        self._ledger: WriterHandle | None = None
        self._created_at = 0.0
        self._latest = LatestTime(client.clock, policy.ahead_seconds or 0)
        self._range: _RangeInWork | None = None
        self._beginning = asyncio.Lock()
        """Held while a range begins, perhaps in a new ledger. The lock keeps appends in order."""
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        client: LogClient,
        partition: LogPartition,
        application_id: str,
        *,
        password: bytes = b"",
    ) -> RangeWriter:
        """Return a writer for an application. The writer creates a ledger at the first append.

        Raises:
            NoSuchLogError: there is no such log.
            BadRequestError: the log is not transactional, or has no such partition.
        """
        definition = await client.definition(partition.name)
        require_transactional(partition, definition)
        policy = await client.policy(partition.name)
        return cls(client, partition, definition, policy, application_id, password)

    async def append(
        self,
        value: Payload,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: Moment | None = None,
    ) -> None:
        """Write one record; return when it is durable. The default timestamp is the clock's time.

        Raises:
            BadRequestError: the record is too large, its timestamp is too far ahead of the clock,
                or the record cannot be encoded.
            LogClosedError: an earlier append of the range failed, or the writer is closed.
            BookieError: the errors of `WriterHandle.append`; such an error makes the range fail.
        """
        at_ms = None if timestamp is None else moment_ms(timestamp)
        given = {} if headers is None else headers
        await self.append_many([NewRecord(_value(value), key, given, at_ms)])

    async def append_many(self, records: Iterable[Payload | NewRecord]) -> int:
        """Write records in order; when all are durable, return their number.

        The default timestamp of a record is the clock's time. Values of type bytes are written
        faster than `NewRecord` objects. Raises the errors of `append`; after an error some of the
        records may be in the ledger.
        """
        given = checked_records(records)
        if not given:
            return 0
        await self._append(lambda end_ms: _encoded(given, self._client.clock.now_ms(), end_ms))
        return len(given)

    async def append_encoded(self, payloads: list[bytes], greatest_ms: int) -> None:
        """Write encoded records in order; return when all are durable.

        `greatest_ms` is the greatest timestamp of the range up to the last of these records. Each
        late record must contain the greatest timestamp so far
        (:mod:`bookie.log.record.log_record`). This call does not check that `payloads` are valid
        records. Raises the errors of `append`; after an error some of the records may be in the
        ledger.
        """
        payloads = checked_payloads(payloads)
        if type(greatest_ms) is not int:
            raise BadRequestError(f"greatest_ms must be ms since 1970, not {greatest_ms!r}")
        if payloads:
            await self._append(lambda _: (payloads, greatest_ms))

    async def _append(self, encoded: _Encoded) -> None:
        current, payloads, greatest_ms = await self._accept(encoded)
        # No `await` may come between these two lines: `cut` could then miss this append and lose
        # its records.
        await current.append(payloads, greatest_ms)

    async def _require_time(self, greatest_ms: int) -> None:
        """Raise BadRequestError if `greatest_ms` is too far ahead of the clock.

        If the clock was set after its last comparison with bookies' clocks, compare it again first.
        """
        try:
            self._latest.require(greatest_ms)
        except ClockError:
            await self._client.clocks.require_right(again=True)
            self._latest.compared()
            self._latest.require(greatest_ms)

    async def cut(self) -> PendingRange | None:
        """End the range; return it when all its entries are durable, or None if it is empty.

        The range contains all appends that were called before `cut`. Later appends begin another
        range. If `cut` is cancelled, the range may be lost.

        Raises:
            LogClosedError: an append of the range failed or was cancelled. Write the records of
                this range again, because the range is dropped.
        """
        self._client.require_here()
        async with self._beginning:  # wait behind the appends that wait for a ledger
            current, self._range = self._range, None
        if current is None:
            return None
        if current.under_way:
            await current.settled.wait()
        if current.error is not None:
            raise _failed(self._partition, current.error) from current.error
        return current.cut(self._partition)

    def discard(self) -> None:
        """Drop the records since the last `cut`, so that appends work again after a failure."""
        self._range = None

    async def aclose(self) -> None:
        """Close the ledger; drop the records since the last `cut`. A second call is no error."""
        self._client.require_here()
        self._is_closed = True
        self._range = None
        async with self._beginning:
            await self._leave_ledger()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _accept(self, encoded: _Encoded) -> tuple[_RangeInWork, list[bytes], int]:
        """Return the range for an append, the encoded entries, and their greatest timestamp.

        The caller must append the entries before its next `await`, to keep the order of calls.
        """
        self._client.require_here()
        # A lock admits its callers in order. While earlier appends wait, a later append or `cut`
        # waits behind these appends, even if the range has begun.
        async with self._beginning:
            if self._range is None:
                self._require_open()
                ledger = await self._ledger_for_range()
                self._require_open()
                self._range = _RangeInWork(ledger)
            current = self._range
            if current.error is not None:
                raise _failed(self._partition, current.error) from current.error
            payloads, greatest_ms = encoded(current.end_ms)
            await self._require_time(greatest_ms)
        return current, payloads, greatest_ms

    def _require_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"the writer of ranges of {self._partition} is closed")

    async def _ledger_for_range(self) -> WriterHandle:
        if self._ledger is not None and await self._is_due(self._ledger):
            await self._leave_ledger()
        if self._ledger is None:
            self._created_at = self._client.clock.monotonic()
            self._ledger = await self._client.create_ledger(self._shape, self._tags)
            self._latest.compared()
        return self._ledger

    async def _is_due(self, ledger: WriterHandle) -> bool:
        """True if the next range must begin in a new ledger."""
        age_seconds = self._client.clock.monotonic() - self._created_at
        if self._roll_limits.is_due(ledger.length, age_seconds) or ledger.failure is not None:
            return True
        try:
            # An abort may have deleted the ledger, so that its entries could never be published.
            found = await self._client.ledgers.ledgers.read(ledger.ledger_id)
        except NoSuchLedgerError:
            return True
        return found.value.state is not LedgerState.OPEN

    async def _leave_ledger(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        try:
            await ledger.close()
        except BookieError as error:
            # The ranges that were cut are durable even if their ledger stays open.
            _log.warning("log_ledger_not_closed", ledger_id=ledger.ledger_id, reason=str(error))


@dataclass(slots=True)
class _RangeInWork:
    """The range that gets the next appends."""

    ledger: WriterHandle
    end_ms: int = NO_TIME_MS
    first_entry_id: int = -1
    last_entry_id: int = NO_ENTRY
    count: int = 0
    size_bytes: int = 0
    under_way: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no append of the range is under way."""
    error: BaseException | None = None

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Count an append as under way in the `with` block; an error marks the range as failed."""
        self.under_way += 1
        self.settled.clear()
        try:
            yield
        except BaseException as error:
            self.error = self.error or error
            raise
        finally:
            self.under_way -= 1
            if not self.under_way:
                self.settled.set()

    async def append(self, payloads: list[bytes], greatest_ms: int) -> None:
        """Write entries; `greatest_ms` is the greatest timestamp up to the last of `payloads`."""
        self.end_ms = max(self.end_ms, greatest_ms)
        with self.appending():
            ids = await self.ledger.append_many(payloads)
            self.add(ids, sum(map(len, payloads)))

    def add(self, ids: range, size_bytes: int) -> None:
        self.first_entry_id = ids.start if not self.count else min(self.first_entry_id, ids.start)
        self.last_entry_id = max(self.last_entry_id, ids.stop - 1)
        self.count += len(ids)
        self.size_bytes += size_bytes

    def cut(self, partition: LogPartition) -> PendingRange | None:
        """Return the finished range, or None if it is empty; all appends must have ended."""
        if not self.count:
            return None
        expected = self.last_entry_id - self.first_entry_id + 1
        assert self.count == expected, "no other entries lie between those of a range"
        return PendingRange(
            partition.number,
            self.ledger.ledger_id,
            self.first_entry_id,
            self.last_entry_id,
            self.end_ms,
            self.size_bytes,
        )


def publisher_tags(
    partition: LogPartition, log_id: str, application_id: str
) -> Mapping[str, bytes]:
    """Return the custom metadata of ledgers that an application writes for a partition."""
    tags = LogClient.tags(partition, log_id)
    return {**tags, APPLICATION_TAG: application_id.encode()}


def require_transactional(partition: LogPartition, definition: LogDefinition) -> None:
    """Check that the log is transactional and has the partition.

    Raises:
        BadRequestError: the log has an exclusive writer, or has no such partition.
    """
    if definition.mode is not LogMode.TRANSACTIONAL:
        raise BadRequestError(
            f"the log {partition.name} has an exclusive writer, and this needs a transactional "
            "log: make another by `bookie log create NAME --transactional --partitions N`, or "
            "append by open_log"
        )
    checked_partition(partition.name, partition.number, definition.partitions)


def _encoded(
    records: list[Payload | NewRecord], now_ms: int, greatest_ms: int
) -> tuple[list[bytes], int]:
    """Return the encoded records, and the range's greatest timestamp after these records."""
    try:
        # For a `NewRecord`, which is a tuple, the addition raises TypeError.
        prefix = plain_prefix(now_ms, greatest_ms=greatest_ms)
        return [prefix + value for value in records], max(now_ms, greatest_ms)  # type: ignore[operator]
    except TypeError:
        pass
    payloads = []
    for one in records:
        value, key, headers, at_ms = as_record(one)
        record = LogRecord(now_ms if at_ms is None else at_ms, _value(value), key, headers)
        greatest_ms = max(greatest_ms, record.timestamp_ms)
        payloads.append(encode_log_record(record, greatest_ms=greatest_ms))
    return payloads, greatest_ms


def _value(value: Payload) -> bytes:
    return checked_bytes(value, "a value")


def _failed(partition: LogPartition, error: BaseException) -> LogClosedError:
    reason = str(error) or type(error).__name__
    return LogClosedError(
        f"the range of {partition} has failed, and nothing of it will be published; discard it and "
        f"write the batch again: {reason}"
    )
