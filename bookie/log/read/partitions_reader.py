"""Read several partitions at once. Only records of the same partition come in order.

For each partition, one task keeps one batch ready. If an iteration ends before the ready batch was
taken, the next iteration reads this batch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import BadRequestError
from bookie.log.background import Background
from bookie.log.catalog.logs import LogName, checked_partition
from bookie.log.log_client import LogClient
from bookie.log.read.reader import LogReader, OnTruncated
from bookie.log.read.start_position import LogStart, addressed_partition
from bookie.log.record.log_record import LogPosition, LogRecord


@dataclass(slots=True)
class _Lane:
    """The reader of one partition, and the batch that the reader has ready."""

    reader: LogReader
    batch: Sequence[LogRecord] = ()
    seeks: int = 0
    """The number of seeks of the reader before `batch` was read."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_valid(self) -> bool:
        """True if no seek has moved the reader since `batch` was read."""
        return self.seeks == self.reader.seeks


class PartitionsReader:
    """The merged readers of several partitions. Only one iteration may run at a time."""

    def __init__(self, readers: Iterable[LogReader]) -> None:
        self._readers = {reader.partition.number: reader for reader in readers}

    def __repr__(self) -> str:
        return f"<PartitionsReader {list(self._readers.values())}>"

    @property
    def log_id(self) -> str:
        return next(iter(self._readers.values())).log_id

    @property
    def next_offsets(self) -> Mapping[int, int | None]:
        """The `next_offset` of each partition's reader; records of a ready batch count as read."""
        return {number: reader.next_offset for number, reader in self._readers.items()}

    @checked
    def seek(
        self, to: LogStart = None, *, time: Moment | None = None, partition: int | None = None
    ) -> None:
        """Move the reader of one partition, or all readers, to a place: reading continues there.

        A `LogPosition` moves only the reader of its partition.

        Raises:
            BadRequestError: the place is not valid, or there is no such partition. BadRequestError
                is also raised if `to` is a position in another partition, or if `to` is an entry
                and `partition` is None.
        """
        partition = addressed_partition(to, partition)
        if partition is None and isinstance(to, tuple | list):
            raise BadRequestError(f"name the partition whose reader goes to {to}")
        for reader in self._chosen(partition):
            reader.seek(to, time=time)

    def _chosen(self, partition: int | None) -> list[LogReader]:
        if partition is None:
            return list(self._readers.values())
        reader = self._readers.get(partition)
        if reader is None:
            raise BadRequestError(f"partition {partition} is not among {list(self._readers)}")
        return [reader]

    async def lag(self) -> int:
        """Return the sum of `LogReader.lag` over all partitions."""
        return sum([await reader.lag() for reader in self._readers.values()])

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        return self.records()

    async def records(self) -> AsyncGenerator[LogRecord, None]:
        """Yield the records one by one. Raises the errors of `LogReader.batches`."""
        async with aclosing(self._batches()) as lanes:
            async for lane in lanes:
                batch, unread = lane.batch, 0
                try:
                    for record in batch:
                        if not lane.is_valid:
                            break
                        unread += 1
                        yield record
                finally:
                    # If the iteration ends here, the rest of the batch stays unread.
                    lane.batch = batch[unread:] if unread < len(batch) else ()

    async def batches(self) -> AsyncGenerator[Sequence[LogRecord], None]:
        """Yield batches, each of one partition. Raises the errors of `LogReader.batches`."""
        async with aclosing(self._batches()) as lanes:
            async for lane in lanes:
                batch, lane.batch = lane.batch, ()
                yield batch

    async def _batches(self) -> AsyncGenerator[_Lane, None]:
        """Yield the lane of each reader that has a batch ready; the caller must take the batch."""
        ready: asyncio.Queue[_Lane | Exception | None] = asyncio.Queue()
        lanes = [_Lane(reader) for reader in self._readers.values()]
        calls = [
            Background(lane.reader.pool, _fill(lane, ready), repr(lane.reader)) for lane in lanes
        ]
        running = len(calls)
        try:
            while running:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                    continue
                if item.is_valid:
                    yield item
                item.taken.set()
        finally:
            for call in calls:
                await call.close()
            for lane in lanes:
                if lane.batch and lane.is_valid:
                    lane.reader.seek(lane.batch[0].offset)


async def _fill(lane: _Lane, ready: asyncio.Queue[_Lane | Exception | None]) -> None:
    """Put `lane` into `ready` for each batch that its reader yields; put None or the error last."""
    try:
        async with aclosing(lane.reader.batches()) as batches:
            async for batch in batches:
                lane.batch, lane.seeks = batch, lane.reader.seeks
                ready.put_nowait(lane)
                await lane.taken.wait()
                lane.taken.clear()
                lane.batch = ()
        ready.put_nowait(None)
    except Exception as error:  # noqa: BLE001  (raised by the consumer of the queue)
        ready.put_nowait(error)


class ReaderKeywords(TypedDict, total=False):
    """The keyword arguments of `LogReader`."""

    start: LogStart
    start_time: Moment | None
    end: int | LogPosition | tuple[int, int] | None
    follow: bool
    password: bytes
    on_truncated: OnTruncated


async def open_reader(
    client: LogClient,
    name: LogName,
    partition: int | None = None,
    **keywords: Unpack[ReaderKeywords],
) -> LogReader | PartitionsReader:
    """Return a reader of a log or one of its partitions, as `BookKeeper.log_reader` describes.

    If `start` or `end` is an offset, this offset applies to each partition. If `start` or `end` is
    a position, the reader must read one partition only.

    Raises:
        NoSuchLogError: there is no such log.
        BadRequestError: a keyword is wrong, there is no such partition, or a position is given for
            several partitions or for another partition than its own.
    """
    definition = await client.definition(name)
    count = definition.partitions
    numbers = range(count) if partition is None else [partition]
    partitions = [checked_partition(name, number, count) for number in numbers]
    if len(partitions) > 1 and any(
        isinstance(keywords.get(at), tuple | list) for at in ("start", "end")
    ):
        raise BadRequestError(f"a position needs one of the {count} partitions of {name}")
    readers = [LogReader(client, one, definition, **keywords) for one in partitions]
    return readers[0] if len(readers) == 1 else PartitionsReader(readers)
