"""Consuming one partition with a cursor that remembers how far the application has come.

::

    async with consume(client, "orders", reading, cursor="billing") as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

**At least once**: a record counts as consumed when it is committed. After a crash, or when another
consumer took over, the records after the last commit come again. With automatic commits, a record
is committed at the earliest when the application asks for the one after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import BadRequestError, BookieError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.cursor_record import CursorRecord
from bookie.log.consume.partition_consumer import ConsumedBatch, PartitionConsumer
from bookie.log.log_client import LogClient
from bookie.log.read.reading import PartitionReading, locate_cursor
from bookie.log.read.start_position import LogStart, Place, checked_place
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.telemetry import event_log

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """When finished records are committed without a call; whatever comes first."""

    every_seconds: float = 5.0
    every_records: int = 1000

    def __post_init__(self) -> None:
        if self.every_seconds <= 0 or self.every_records < 1:
            raise BadRequestError("automatic commits need a time above 0 and a count of at least 1")


class RecordFlow:
    """Gives batches or single records to the application, and knows which it has finished.

    What was given out last is in the application's hand, until it asks for more.
    """

    def __init__(
        self,
        poll: Callable[[], tuple[PartitionConsumer, ConsumedBatch] | None],
        auto_commit: AutoCommit | None,
        on_hand_back: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_hand_back` is called when records of a stopped consumer are handed back."""
        self._poll = poll
        self._auto_commit = auto_commit
        self._on_hand_back = on_hand_back
        self.news = asyncio.Event()
        """Set when `poll` may have something."""
        self.in_hand: PartitionConsumer | None = None
        """Where the application's last record came from."""
        self._consumer: PartitionConsumer | None = None
        self._token = 0
        self._rest: Iterator[LogRecord] = iter(())
        """Records of `_consumer` that were not given out yet."""
        self._is_asked = False
        """Whether a task waits for the next record, or for the commit before it."""

    async def next_batch(self) -> ConsumedBatch:
        """The next records of one partition."""
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
        """The next record, its partition and its token."""
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
        """Return when the rest of a batch may be given out, or will never be."""
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
                await commit_finished([consumer])
            finally:
                self._is_asked = False


async def commit_finished(consumers: Iterable[PartitionConsumer]) -> None:
    """Commit what the application has finished. A failure is logged, and is harmless."""
    for consumer in consumers:
        try:
            await consumer.commit(consumer.finished)
        except BookieError as error:
            _log.warning("not_committed", partition=str(consumer.partition), reason=str(error))


async def commit_by_time(
    auto_commit: AutoCommit, consumers: Callable[[], Iterable[PartitionConsumer]]
) -> None:
    """Commit what is finished, again and again."""
    while True:
        await asyncio.sleep(auto_commit.every_seconds)
        await commit_finished(list(consumers()))


class LogConsumer:
    """The consumer of one partition: an async context manager, and an async iterator of records.

    Entering waits until no other consumer holds the cursor. Use it from one task at a time; any
    call may be cancelled, and loses nothing.
    """

    def __init__(
        self,
        client: LogClient,
        name: LogName,
        cursor: str,
        reading: PartitionReading,
        *,
        partition: int | None = None,
        start: Place | None = "earliest",
        auto_commit: AutoCommit | None = None,
    ) -> None:
        """`start` says where a new cursor begins; None refuses to make one."""
        self._client = client
        self._name = name
        self._cursor = cursor
        self._reading = reading
        self._partition = partition
        self._start = start
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
        """What is consumed."""
        return self._consumer.partition

    @property
    def token(self) -> int:
        """The epoch of the cursor: a fencing token, greater than that of every consumer before."""
        return self._consumer.cursor.token

    @property
    def position(self) -> int:
        """The offset after the last record that was given out: what `commit` commits."""
        return self._consumer.position

    @property
    def committed(self) -> int:
        """The offset that was committed last."""
        return self._consumer.cursor.committed

    async def lag(self) -> int:
        """How many entries are still to be given out; control records count, truncated do not.

        Raises:
            UnavailableError: the bookies did not tell where the partition ends.
        """
        earliest, end = await self._reading.bounds(self.partition)
        return max(0, end - max(self.position, earliest))

    @checked
    async def commit(self, up_to: LogRecord | LogPosition | int | None = None) -> None:
        """Mark records as consumed: all that were given out, or those up to a record, and it.

        A number is the offset of the next record to consume. What is before the last commit is
        committed already. It is durable when this returns.

        Raises:
            CursorLostError: another consumer has the cursor, or it was reset or deleted.
            BadRequestError: a position that was not given out yet.
            MetadataUnavailableError, SessionLostError: unknown whether it was committed; commit
                again.
        """
        self._client.require_here()
        await commit_up_to(self._consumer, up_to)

    def batches(self) -> AsyncIterator[ConsumedBatch]:
        """The same records in batches, which is faster."""
        return self._batches()

    async def _batches(self) -> AsyncIterator[ConsumedBatch]:
        while True:
            yield await self._flow.next_batch()

    async def next_batch(self) -> ConsumedBatch:
        """The next one of `batches`; waits for it, and raises what `__anext__` does."""
        _ = self._consumer
        return await self._flow.next_batch()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        """The next record; waits for it.

        Raises:
            CursorLostError: another consumer has the cursor, or it was reset or deleted.
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
        if not 0 <= (number or 0) < definition.partitions:
            raise BadRequestError(f"the log {self._name} has no partition {number}")
        return LogPartition(self._name, number or 0)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        consumer = self._consumer
        try:
            if self._committing is not None:
                self._committing.cancel()
                await commit_finished([consumer])
        finally:
            await consumer.release()


async def commit_up_to(
    consumer: PartitionConsumer, up_to: LogRecord | LogPosition | int | None
) -> None:
    """As `LogConsumer.commit`."""
    if up_to is None:
        offset = consumer.position
    elif isinstance(up_to, int):
        offset = up_to
        if offset < 0:
            raise BadRequestError(f"{offset} is not an offset in a log")
    elif up_to.partition != consumer.partition.number:
        raise BadRequestError(f"{consumer.partition} has no record of partition {up_to.partition}")
    else:
        offset = up_to.offset + 1
    if offset > consumer.position:
        raise BadRequestError(
            f"{consumer.partition} was consumed up to offset {consumer.position}, not {offset}"
        )
    await consumer.commit(offset)


def consume(
    client: LogClient,
    log: str,
    reading: PartitionReading,
    *,
    cursor: str,
    partition: int | None = None,
    start: LogStart = None,
    start_time: Moment | None = None,
    create: bool = True,
    auto_commit: AutoCommit | None = None,
) -> LogConsumer:
    """A consumer of one partition; enter it to hold the cursor.

    Args:
        client: what the log is reached by.
        log: its name.
        reading: how the partition is read.
        cursor: the name of the cursor. One consumer at a time holds it; others wait.
        partition: its number; needed if the log has several.
        start: where a new cursor begins; None: at the earliest record.
        start_time: or at the first record of this time or later.
        create: make the cursor if it does not exist.
        auto_commit: when finished records are committed without a call; None: never.

    Raises:
        BadRequestError: a name or the start is invalid.
    """
    name = LogName.parse(log)
    LogPartition(name).cursor_key(cursor)
    place = checked_place(start, start_time)
    return LogConsumer(
        client,
        name,
        cursor,
        reading,
        partition=partition,
        start=place if create else None,
        auto_commit=auto_commit,
    )
