"""A publisher of a transactional log in random episodes, which records all that it does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from bookie.errors import BookieError, LogError, RequestError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.publish.publisher import LogPublisher
from bookie.log.publish.range_writer import PendingRange, RangeWriter
from tests.fault.log_actors import PARTITIONS, Record, moment, pause
from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import BatchPublished

Values = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(slots=True)
class Batch:
    """What was written for a batch."""

    number: int
    values: Values
    ranges: list[PendingRange]


@dataclass(slots=True)
class PublishingActor:
    """Writes batches and publishes each until it knows that it is published."""

    application: str
    logs: LogClient
    log: str
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = 0.2
    """Between two batches, at most."""
    number: int = 0
    batch: int = 0
    """The batch to publish now. One that may be published already is written once more."""

    async def run(self) -> None:
        """Until it is cancelled."""
        name = LogName.parse(self.log)
        publisher = LogPublisher(self.logs, name)
        async with AsyncExitStack() as stack:
            writers: list[RangeWriter] = []
            for number in range(PARTITIONS):
                partition = LogPartition(name, number)
                opened = await self._opened(partition)
                writers.append(await stack.enter_async_context(opened))
            while True:
                await self._publish(publisher, writers, self.batch)
                self.batch += self.rng.randrange(1, 3)
                await pause(self.rng, self.pause_seconds)

    async def _opened(self, partition: LogPartition) -> RangeWriter:
        while True:
            with suppress(BookieError):
                return await RangeWriter.open(self.logs, partition, self.application)
            await asyncio.sleep(0.05)

    async def _publish(
        self, publisher: LogPublisher, writers: list[RangeWriter], number: int
    ) -> None:
        """Come to the end of one batch, whatever fails meanwhile."""
        batch = await self._written(writers, number)
        if self.rng.random() < 0.1:
            with suppress(BookieError):
                await publisher.abort(batch.ranges)
                self.count("abort")
            batch = await self._written(writers, number)
        while True:
            if self.rng.random() < 0.1:
                await self._give_up(publisher, batch)
            if self.rng.random() < 0.1:
                # As a new driver does that knows nothing of the former one's outcome.
                batch = await self._written(writers, number)
            if await self._call(publisher, batch) is not None:
                break
            await pause(self.rng, 0.05)
        if self.rng.random() < 0.2:
            again = await self._written(writers, number)
            if await self._call(publisher, again) is False:
                self.count("batch dropped")

    async def _give_up(self, publisher: LogPublisher, batch: Batch) -> None:
        """A driver that dies while it publishes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0, 0.01)):
                await self._call(publisher, batch)
        self.count("publication given up")

    async def _call(self, publisher: LogPublisher, batch: Batch) -> bool | None:
        """Publish; None after an error.

        After an error of the request or of the log, nothing was published. After another error,
        such as of a lost session, the outcome is unknown.
        """
        event = BatchPublished(
            partition=self.log,
            handle=self.application,
            called=moment(),
            application=self.application,
            batch=batch.number,
            values=batch.values,
        )
        self.record(event)
        try:
            was_new = await publisher.publish(self.application, batch.number, batch.ranges)
        except BookieError as error:
            is_certain = isinstance(error, RequestError | LogError)
            outcome = EventOutcome.FAIL if is_certain else EventOutcome.INFO
            name = type(error).__name__
            self.record(replace(event, outcome=outcome, error=name, returned=moment()))
            self.count("publication failed")
            return None
        done = replace(event, outcome=EventOutcome.OK, was_new=was_new, returned=moment())
        self.record(done)
        self.count("batch published" if was_new else "batch answered")
        return was_new

    async def _written(self, writers: list[RangeWriter], number: int) -> Batch:
        """Records of a batch in one partition or both, as ranges that are durable."""
        touched = self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
        values: list[tuple[str, tuple[str, ...]]] = []
        ranges: list[PendingRange] = []
        for one in touched:
            found: tuple[str, ...] = ()
            for _ in range(self.rng.randrange(1, 3)):
                some, cut = await self._range(writers[one])
                found += some
                ranges.append(cut)
            values.append((f"{self.log}#{one}", found))
        return Batch(number, tuple(values), ranges)

    async def _range(self, writer: RangeWriter) -> tuple[tuple[str, ...], PendingRange]:
        while True:
            count = self.rng.randrange(1, 6)
            first, self.number = self.number, self.number + count
            values = tuple(f"{self.application}:{one}" for one in range(first, first + count))
            try:
                await writer.append_many([value.encode() for value in values])
                cut = await writer.cut()
            except BookieError:
                writer.discard()
                await pause(self.rng, 0.1)
                continue
            assert cut is not None
            return values, cut
