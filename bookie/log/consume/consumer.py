"""The consumer of one partition, with a cursor that remembers the application's progress.

::

    async with LogConsumer(client, "orders", reading, cursor="billing") as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

**At least once**: a record counts as consumed when the record is committed. The records after the
last commit are delivered again after a crash, or when another consumer takes the cursor. An
automatic commit includes a record only after the application has asked for the next record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Self

from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import BadRequestError
from bookie.log.catalog.logs import LogName, LogPartition, checked_name, checked_partition
from bookie.log.consume.commit import AutoCommit
from bookie.log.consume.cursors import CursorRecord
from bookie.log.consume.partition_consumer import ConsumedBatch, PartitionConsumer
from bookie.log.log_client import LogClient
from bookie.log.read.reading import LogReading, locate_cursor
from bookie.log.read.start_position import LogStart, Place, addressed_partition, checked_place
from bookie.log.record.log_record import LogPosition, LogRecord


class RecordFlow:
    """Gives out batches or single records, and notes which records the application has finished.

    The application finishes a batch or a record by asking for the next batch or record.
    """

    def __init__(
        self,
        poll: Callable[[], tuple[PartitionConsumer, ConsumedBatch] | None],
        auto_commit: AutoCommit | None,
        on_hand_back: Callable[[], object] = lambda: None,
    ) -> None:
        """`poll` returns a consumer and its next batch, or None if no batch is ready.

        `on_hand_back` is called when the application finishes records of a stopped consumer.
        """
        self._poll = poll
        self._auto_commit = auto_commit
        self._on_hand_back = on_hand_back
        self.news = asyncio.Event()
        """Set when a call of `poll` may return a batch."""
        self.in_hand: PartitionConsumer | None = None
        """The consumer that gave out the record on which the application works now."""
        self._consumer: PartitionConsumer | None = None
        self._token = 0
        self._rest: Iterator[LogRecord] = iter(())
        """Records of `_consumer` that have not been given out yet."""
        self._is_asked = False
        """True while a task waits for the next record, or for a commit before that record."""

    async def next_batch(self) -> ConsumedBatch:
        await self._hand_back()
        while True:
            consumer = self._consumer
            if consumer is not None:
                await self._until_certain(consumer)
            records = () if consumer is None or consumer.is_over else tuple(self._rest)
            self._consumer = None
            if consumer is not None and records:
                self._give(consumer, records[-1])
                return ConsumedBatch(consumer.partition, self._token, records)
            await self._fetch()

    async def next_record(self) -> tuple[PartitionConsumer, int, LogRecord]:
        await self._hand_back()
        while True:
            consumer = self._consumer
            if consumer is not None and not consumer.may_give:
                await self._until_certain(consumer)
            if consumer is not None and not consumer.is_over:
                record = next(self._rest, None)
                if record is not None:
                    self._give(consumer, record)
                    return consumer, self._token, record
            await self._fetch()

    async def _until_certain(self, consumer: PartitionConsumer) -> None:
        """Wait until `consumer.may_give` or `consumer.is_over` is true."""
        while not (consumer.may_give or consumer.is_over):
            self.news.clear()
            await self.news.wait()

    def _give(self, consumer: PartitionConsumer, last: LogRecord) -> None:
        consumer.position = last.offset + 1
        self.in_hand = consumer

    async def _fetch(self) -> None:
        self._consumer = None
        self._is_asked = True
        try:
            while True:
                self.news.clear()
                found = self._poll()
                if found is not None:
                    self._consumer, batch = found
                    self._token, self._rest = batch.token, iter(batch.records)
                    return
                await self.news.wait()
        finally:
            self._is_asked = False

    async def _hand_back(self) -> None:
        if self._is_asked:
            raise BadRequestError("another task waits for a record; use it from one task at a time")
        consumer, self.in_hand = self.in_hand, None
        if consumer is None:
            return
        consumer.finished = consumer.position
        if consumer.is_over:
            self._on_hand_back()
        auto = self._auto_commit
        if auto and consumer.finished - consumer.cursor.committed >= auto.every_records:
            self._is_asked = True
            try:
                await consumer.commit_finished()
            finally:
                self._is_asked = False


async def commit_by_time(
    auto_commit: AutoCommit, consumers: Callable[[], Iterable[PartitionConsumer]]
) -> None:
    """Commit the finished records of all `consumers` at regular intervals, until cancellation."""
    while True:
        await asyncio.sleep(auto_commit.every_seconds)
        for consumer in list(consumers()):
            await consumer.commit_finished()


class LogConsumer:
    """The consumer of one partition: an async context manager, and an async iterator of records.

    `async with` waits until no other consumer holds the cursor. Use the consumer from one task at a
    time. If a call is cancelled, no record is lost: the next call returns the same record.
    """

    def __init__(
        self,
        client: LogClient,
        log: str,
        reading: LogReading,
        *,
        cursor: str,
        partition: int | None = None,
        start: LogStart = None,
        start_time: Moment | None = None,
        create: bool = True,
        auto_commit: AutoCommit | None = None,
    ) -> None:
        """The arguments are those of `BookKeeper.consume`.

        Raises:
            BadRequestError: a name or the start is invalid, or the start is a position in another
                partition.
        """
        self._client = client
        self._name = LogName.parse(log)
        self._cursor = checked_name(cursor, "a cursor")
        self._reading = reading
        self._partition = addressed_partition(start, partition)
        place = checked_place(start, start_time)
        self._start: Place | None = place if create else None
        """The place at which a new cursor begins; None if the cursor must already exist."""
        self._auto_commit = auto_commit
        self._flow = RecordFlow(self._poll, auto_commit)
        self._entered: PartitionConsumer | None = None
        self._committing: asyncio.Task[None] | None = None

    @property
    def _consumer(self) -> PartitionConsumer:
        if self._entered is None:
            raise BadRequestError("enter the consumer with `async with` first")
        return self._entered

    @property
    def partition(self) -> LogPartition:
        return self._consumer.partition

    @property
    def token(self) -> int:
        """The epoch of the cursor: a fencing token. Every former consumer had a smaller token."""
        return self._consumer.cursor.token

    @property
    def position(self) -> int:
        """The offset after the last record that was given out; ``commit()`` commits this offset."""
        return self._consumer.position

    @property
    def committed(self) -> int:
        """The committed offset of the cursor: the next consumer continues there."""
        return self._consumer.cursor.committed

    async def lag(self) -> int:
        """Return the number of confirmed entries that were not given out yet.

        The number includes control records, but not truncated entries.

        Raises:
            UnavailableError: too few bookies answered, so the end of the partition is unknown.
        """
        earliest, end = await self._reading.bounds(self.partition)
        return max(0, end - max(self.position, earliest))

    @checked
    async def commit(self, up_to: LogRecord | LogPosition | int | None = None) -> None:
        """Mark all given-out records as consumed, or all records up to and including `up_to`.

        If `up_to` is an offset, the records before this offset are marked. An offset below the
        committed offset is ignored. The commit is durable when the call returns.

        Raises:
            CursorLostError: another consumer has the cursor, or the cursor was reset or deleted.
            NoSuchLogError: the log was deleted.
            BadRequestError: `up_to` was not given out yet, or is in another partition.
            MetadataUnavailableError, SessionLostError: the store did not answer; commit again,
                because the outcome is unknown.
        """
        self._client.require_here()
        await self._consumer.commit_up_to(up_to)

    def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Yield batches of records. Batches are faster than single records."""
        return self._batches()

    async def _batches(self) -> AsyncIterator[ConsumedBatch]:
        while True:
            yield await self._flow.next_batch()

    async def next_batch(self) -> ConsumedBatch:
        """Wait for the next batch and return it. Raises the errors of `__anext__`."""
        _ = self._consumer
        return await self._flow.next_batch()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        """Wait for the next record and return it.

        Raises:
            CursorLostError: another consumer has the cursor, or the cursor was reset or deleted.
            LogTruncatedError: the cursor's next record was truncated; reset the cursor.
            NoSuchLogError: the log was deleted.
        """
        _ = self._consumer
        return (await self._flow.next_record())[2]

    def _poll(self) -> tuple[PartitionConsumer, ConsumedBatch] | None:
        self._client.require_here()
        batch = self._consumer.take()
        return None if batch is None else (self._consumer, batch)

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise BadRequestError("the consumer was entered before; make another")
        partition = await self._find_partition()
        participant = await self._client.participant()
        consumer = PartitionConsumer(
            self._client,
            participant,
            CursorRecord(self._client, partition, self._cursor),
            self._reading,
            self._flow.news.set,
        )
        start = self._start
        await consumer.hold(
            None if start is None else partial(locate_cursor, self._reading, partition, start)
        )
        self._entered = consumer
        if self._auto_commit is not None:
            self._committing = participant.spawn(
                commit_by_time(self._auto_commit, lambda: [consumer])
            )
        return self

    async def _find_partition(self) -> LogPartition:
        definition = await self._client.definition(self._name)
        number = self._partition
        if number is None and definition.partitions > 1:
            raise BadRequestError(
                f"the log {self._name} has {definition.partitions} partitions: name one, or join a "
                "group, which shares them"
            )
        return checked_partition(self._name, number or 0, definition.partitions)

    async def __aexit__(self, *_: object) -> None:
        consumer = self._consumer
        try:
            if self._committing is not None:
                self._committing.cancel()
                await consumer.commit_finished()
        finally:
            await consumer.close()
