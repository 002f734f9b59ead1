"""Find the offsets and sizes of a log's records, for jobs that read with many tasks.

A survey neither fences nor writes anything. A later append, truncation or compaction may change the
results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from bookie.env import Moment, gather
from bookie.env.checked import checked
from bookie.errors import BookieError, NoSuchLedgerError
from bookie.ledger.connection.calls import Calls
from bookie.log.catalog.log_metadata import LogDefinition, LogRange
from bookie.log.catalog.logs import LogName, LogPartition, checked_partition
from bookie.log.head.log_ranges import runs_from
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.read.reader import LogReader
from bookie.log.read.reading import LogReading
from bookie.log.read.start_position import (
    LogStart,
    addressed_partition,
    after_vanished,
    checked_place,
)
from bookie.log.record.log_record import LogRecord

SAMPLE_ENTRIES = 64
"""The most entries of an open ledger that are read to estimate the mean entry size."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Consecutive entries of a partition, usually in one ledger."""

    offset: int
    end_offset: int
    size_bytes: int
    """Payload bytes; an estimate if the span is part of a range, or if its ledger is open."""


class LogSurvey:
    """Finds the offsets and sizes of one log's records. Create a survey by `open`."""

    def __init__(
        self, client: LogClient, name: LogName, definition: LogDefinition, password: bytes
    ) -> None:
        self.name = name
        self.definition = definition
        self._client = client
        self._password = password
        self._reading = LogReading(client, password)

    @classmethod
    async def open(cls, client: LogClient, name: LogName, password: bytes = b"") -> LogSurvey:
        """Create a survey of a log.

        Raises:
            NoSuchLogError: there is no such log.
        """
        return cls(client, name, await client.definition(name), password)

    async def bounds(self) -> Sequence[tuple[int, int]]:
        """Return each partition's earliest offset and the offset after its last confirmed record.

        Raises:
            NoSuchLogError: the log was deleted.
            NotEnoughBookiesError: too few bookies answered, so the end of a partition is unknown.
        """
        return await gather(self._reading.bounds(one) for one in self._partitions())

    @checked
    async def locate(
        self, partition: int, start: LogStart = None, *, time: Moment | None = None
    ) -> int:
        """Return the offset of `start`, or of the first record of `time` or later.

        If `start` is an offset, the call returns `start`, without a check that a record is there.

        Raises:
            LogTruncatedError: the entry at the position `start` was truncated.
            BadRequestError: there is no such partition, or `start` is not valid, or `start` is a
                position in another partition.
        """
        addressed_partition(start, partition)
        return await self._reading.locate(self._partition(partition), checked_place(start, time))

    @checked
    async def spans(self, partition: int, start: int, end: int) -> Sequence[LogSpan]:
        """Return the spans from `start` up to, but not including, `end`, in order, without a gap.

        All records before `end` must be confirmed; an end from `bounds` has this property.

        Raises:
            LogTruncatedError: `start` was truncated.
            BookieError: a read failed.
        """
        self._client.require_here()
        at = self._partition(partition)
        ranges = LogRanges(self._client.logs, at, self.definition.log_id)
        readers = LedgerReaders(self._client.ledgers, self._password)
        await ranges.refresh()
        found: list[LogSpan] = []
        while start < end:
            part = await ranges.from_offset(start)
            means = _mean_sizes(part)
            runs = runs_from(part, start, end)
            if not runs:  # the head does not name the ledger of the records yet
                found.append(LogSpan(start, end, 0))
                break
            for run in runs:
                last = run.last_entry_id
                count = end - run.offset if last is None else last - run.first_entry_id + 1
                mean = means.get(run.ledger_id)
                if mean is None:
                    try:
                        mean = await self._mean_size(
                            readers, run.ledger_id, run.first_entry_id, count
                        )
                    except NoSuchLedgerError:  # truncated or compacted after the head was read
                        await after_vanished(run.ledger_id, ranges, readers)
                        break
                start = run.offset + count
                found.append(LogSpan(run.offset, start, round(mean * count)))
        return found

    async def _mean_size(
        self, readers: LedgerReaders, ledger_id: int, first: int, count: int
    ) -> float:
        handle = await readers.open(ledger_id)
        sizes: list[int] = []
        # If this ledger has just been closed, some of the entries are in the next ledger.
        last = min(first + min(count, SAMPLE_ENTRIES) - 1, await handle.refresh())
        if last < first:
            return 0.0
        async with aclosing(handle.read_acknowledged(first, last)) as batches:
            async for batch in batches:
                sizes += [len(one.payload) for one in batch]
        return sum(sizes) / len(sizes)

    def _partitions(self) -> list[LogPartition]:
        return [LogPartition(self.name, number) for number in range(self.definition.partitions)]

    def _partition(self, number: int) -> LogPartition:
        return checked_partition(self.name, number, self.definition.partitions)


def _mean_sizes(ranges: Sequence[LogRange]) -> Mapping[int, float]:
    """Return, for each ledger that has a closed range, the mean payload bytes of an entry."""
    sizes: dict[int, tuple[int, int]] = {}
    for one in ranges:
        if one.count and one.size_bytes is not None:
            count, size_bytes = sizes.get(one.ledger_id, (0, 0))
            sizes[one.ledger_id] = count + one.count, size_bytes + one.size_bytes
    return {ledger: size_bytes / count for ledger, (count, size_bytes) in sizes.items()}


async def await_records(
    client: LogClient,
    offsets: Mapping[LogPartition, int],
    *,
    password: bytes = b"",
    timeout_seconds: float,
) -> bool:
    """Wait until any partition has a record at or after its offset in `offsets`.

    Return False after the timeout.

    Raises:
        NoSuchLogError: a log was deleted.
        BookieError: the errors of `LogReader.batches`.
    """
    async with Calls[BookieError | None]() as calls:
        for partition, offset in offsets.items():
            calls.start(
                _first_batch(client, partition, offset, password), name=f"news of {partition}"
            )
        try:
            async with asyncio.timeout(timeout_seconds):
                error = await calls.next()
        except TimeoutError:
            return False
    if error is not None:
        raise error
    return True


async def _first_batch(
    client: LogClient, partition: LogPartition, offset: int, password: bytes
) -> BookieError | None:
    try:
        definition = await client.definition(partition.name)
        reader = LogReader(
            client,
            partition,
            definition,
            start=offset,
            follow=True,
            password=password,
            on_truncated="skip",
        )
        batches: AsyncGenerator[Sequence[LogRecord], None] = reader.batches()
        async with aclosing(batches):
            await anext(batches)
    except BookieError as error:
        return error
    return None
