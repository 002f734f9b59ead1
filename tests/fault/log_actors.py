"""What works on logs in random episodes, and records all that it does: writers and readers.

The same actors run in the test's process and in processes of their own (`log_worker.py`), which may
be killed or stopped. Each records an operation when it calls it, and again when it has returned.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from bookie.api import BookKeeper, LogWriter
from bookie.env import gather
from bookie.errors import BookieError, LogTruncatedError
from bookie.log.catalog.logs import LogPartition
from bookie.log.log_client import LogClient
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogRecord
from bookie.log.write.writer import partition_of
from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    AnyLogEvent,
    ReadingBegan,
    ReadingEnded,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
)

Record = Callable[[AnyLogEvent], object]

PARTITIONS = 2
KEYS = 5
PATIENCE_SECONDS = 8.0
PAUSE_SECONDS_MAX = 0.01

_read: Callable[[], int] = time.monotonic_ns
_last = 0


def moment() -> int:
    """Now, in ns; later than every moment before in this process."""
    global _last  # noqa: PLW0603  (the clock of a process)
    _last = max(_last + 1, _read())
    return _last


@contextmanager
def moments_of(read: Callable[[], int]) -> Iterator[None]:
    """Take the moments from another clock while the block lasts."""
    global _read, _last
    before = _read, _last
    _read, _last = read, 0
    try:
        yield
    finally:
        _read, _last = before


def logs_of(bk: BookKeeper) -> LogClient:
    """What the client does with logs."""
    return bk._logs


def seen(records: Sequence[LogRecord]) -> tuple[SeenRecord, ...]:
    """Records as a history has them."""
    return tuple(
        SeenRecord(
            one.offset,
            one.value.decode(),
            None if one.key is None else one.key.decode(),
            one.ledger_id,
            one.entry_id,
        )
        for one in records
    )


async def pause(rng: random.Random, most: float = PAUSE_SECONDS_MAX) -> None:
    """A moment of a random length."""
    await asyncio.sleep(rng.uniform(0, most))


@dataclass(slots=True)
class WritingActor:
    """Opens a log again and again, and appends for as long as it owns it."""

    name: str
    bk: BookKeeper
    log: str
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = PAUSE_SECONDS_MAX
    """Between appends, at most."""
    opened: int = 0
    handle: str = ""
    number: int = 0
    sequence: int = 0
    unsettled: RecordsAppended | None = None
    """The numbered append that has to be sent again."""
    settled: list[RecordsAppended] = field(default_factory=list)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            is_eager = self.opened == 0 or self.unsettled is not None
            await pause(self.rng, 0.2 if is_eager else 0.8)
            with suppress(BookieError, TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    log = await self.bk.open_log(
                        self.log, owner=self.name, patience_seconds=PATIENCE_SECONDS
                    )
                self.opened += 1
                self.handle = f"{self.name}/{self.opened}"
                await self._own(log)

    async def _own(self, log: LogWriter) -> None:
        seconds = self.rng.uniform(0.3, 1.5)
        closes = self.rng.random() < 0.5
        with suppress(BookieError, TimeoutError):
            async with asyncio.timeout(seconds if closes else None):
                await self._append(log)
        # One that is not closed has ended by an error: another process owns a partition.
        with suppress(BookieError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await log.close()
                self.count("close")

    async def _append(self, log: LogWriter) -> None:
        """Append until an error; several calls at the same time. What is unsettled comes first."""
        if self.unsettled is not None:
            await self._append_numbered(log)
        while True:
            calls = [self._append_some(log) for _ in range(self.rng.randrange(2, 6))]
            if self.rng.random() < 0.4:
                calls.append(self._roll(log))
            await gather(calls)
            await pause(self.rng, self.pause_seconds)

    async def _roll(self, log: LogWriter) -> None:
        await log.roll()
        self.count("roll")

    async def _append_some(self, log: LogWriter) -> None:
        match self.rng.randrange(4):
            case 0:
                await self._append_with_key(log)
            case 1:
                await self._append_many(log)
            case _:
                await self._append_numbered(log)

    def _values(self, count: int) -> tuple[str, ...]:
        first, self.number = self.number, self.number + count
        return tuple(f"{self.name}:{number}" for number in range(first, first + count))

    async def _append_with_key(self, log: LogWriter) -> None:
        key = f"key-{self.rng.randrange(KEYS)}"
        partition = partition_of(key.encode(), PARTITIONS)
        event = self._event(log, partition, self._values(1), keys=(key,), is_spread=True)
        with self._recorded(event) as done:
            position = await log.append(event.values[0].encode(), key=key.encode())
            done(position.offset)

    async def _append_many(self, log: LogWriter) -> None:
        partition = self.rng.randrange(PARTITIONS)
        count = 100 if self.rng.random() < 0.1 else self.rng.randrange(1, 6)
        event = self._event(log, partition, self._values(count))
        values = [value.encode() for value in event.values]
        with self._recorded(event) as done:
            positions = await log.append_many(values, partition=partition)
            done(*(one.offset for one in positions))

    async def _append_numbered(self, log: LogWriter) -> None:
        """The producer has one append under way at a time, and gives none up."""
        if self.unsettled is not None and self.unsettled.handle == self.handle:
            return
        event = self.unsettled
        if event is None and self.settled and self.rng.random() < 0.3:
            event = self.rng.choice(self.settled[-50:])
        if event is None:
            event = self._event(log, 0, self._values(self.rng.randrange(1, 4)))
            event = replace(event, producer=self.name, sequence=self.sequence)
            self.sequence += len(event.values)
        is_repeat = bool(event.offsets)
        if event is self.unsettled or is_repeat:
            epoch, called = log.epoch(0), moment()
            event = replace(event, handle=self.handle, epoch=epoch, called=called)
            event = replace(event, offsets=(), outcome=EventOutcome.INFO)
            self.count("duplicate" if is_repeat else "retry")
        if not is_repeat:
            self.unsettled = event
        values = [value.encode() for value in event.values]
        with self._recorded(event) as done:
            producer = (event.producer, event.sequence)
            positions = await log.append_many(values, producer=producer, partition=0)
            done(*(one.offset for one in positions))
            if not is_repeat:
                offsets = tuple(one.offset for one in positions)
                self.settled.append(replace(event, offsets=offsets))
                self.unsettled = None

    def _event(
        self,
        log: LogWriter,
        partition: int,
        values: tuple[str, ...],
        *,
        keys: tuple[str | None, ...] = (),
        is_spread: bool = False,
    ) -> RecordsAppended:
        return RecordsAppended(
            partition=f"{self.log}#{partition}",
            handle=self.handle,
            epoch=log.epoch(partition),
            called=moment(),
            values=values,
            keys=keys,
            is_spread=is_spread,
        )

    @contextmanager
    def _recorded(self, event: RecordsAppended) -> Iterator[Callable[..., None]]:
        """An append between its call and its return; tell what is yielded the offsets."""

        def done(*offsets: int) -> None:
            nonlocal event
            event = replace(event, outcome=EventOutcome.OK, offsets=offsets, returned=moment())

        self.record(event)
        try:
            yield done
        except BaseException as error:
            event = replace(event, error=type(error).__name__, returned=moment())
            self.count("unknown append")
            raise
        finally:
            self.record(event)


@dataclass(slots=True)
class ReadingActor:
    """Follows a partition from its first record; after a failure it goes on where it was."""

    name: str
    logs: LogClient
    partition: LogPartition
    record: Record
    skips: bool
    count: Callable[[str], object] = lambda _: None
    next_offset: int = 0
    readings: int = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._follow()
            except LogTruncatedError as error:
                self.count("truncation met")
                self.next_offset = error.earliest_offset
            except BookieError:
                self.count("reading begun again")
            await asyncio.sleep(0.02)

    async def _follow(self) -> None:
        text = str(self.partition)
        definition = await self.logs.definition(self.partition.name)
        self.readings += 1
        handle = f"{self.name}/{self.readings}"
        reader = LogReader(
            self.logs,
            self.partition,
            definition,
            start=self.next_offset,
            follow=True,
            on_truncated="skip" if self.skips else "raise",
        )
        begun = ReadingBegan(
            partition=text, handle=handle, offset=self.next_offset, called=moment()
        )
        self.record(begun)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                at = moment()
                self.record(
                    RecordsRead(
                        partition=text,
                        handle=handle,
                        called=at,
                        returned=at,
                        outcome=EventOutcome.OK,
                        records=seen(batch),
                    )
                )
                if batch[0].offset > self.next_offset and self.skips:
                    self.count("gap")
                self.next_offset = batch[-1].offset + 1

    def ended(self, end_offset: int) -> None:
        """The partition ends there, and this actor has waited until it came so far."""
        if not self.readings:
            return  # there was nothing to read
        at = moment()
        self.record(
            ReadingEnded(
                partition=str(self.partition),
                handle=f"{self.name}/{self.readings}",
                next_offset=end_offset,
                called=at,
                returned=at,
            )
        )
