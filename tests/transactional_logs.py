"""Transactional logs in tests that need no bookies: ledgers are mere metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar, cast

from bookie.env import Clock, SystemClock
from bookie.errors import BookieUnreachableError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.log.catalog.log_metadata import LogMode, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import CREATED_TAG, LogClient
from bookie.log.publish.publisher import LogPublisher
from bookie.log.publish.range_writer import PendingRange, publisher_tags
from bookie.metadata.store import MetadataStore
from bookie.wire.commands import Info
from tests.conformance.faulty_store import FaultyStore

T = TypeVar("T")

NOON_MS = 1_800_000_000_000
ORDERS = LogName("default", "orders")
APPLICATION = "spark-1"


class SetClock(SystemClock):
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.ms = NOON_MS

    def now_ms(self) -> int:
        """What the test says."""
        return self.ms

    def monotonic(self) -> float:
        """Seconds that go as the wall clock does."""
        return self.ms / 1000


class TimeTellers:
    """Bookies that tell the time, and nothing else: the directory and the pool of a client."""

    def __init__(self, *clocks: Clock | None) -> None:
        """A clock for each bookie; None for one that does not answer."""
        self.clocks = {f"b{number}": clock for number, clock in enumerate(clocks)}

    def all(self) -> Mapping[str, Clock | None]:
        """Those that are registered."""
        return self.clocks

    def connection(self, bookie_id: str) -> TimeTellers:
        """One of them, as `TimeTellers` of its clock alone."""
        return TimeTellers(self.clocks[bookie_id])

    def channel(self) -> TimeTellers:
        """The bookie itself."""
        return self

    async def info(self, *, timeout: float) -> Info:
        """What the bookie says of itself."""
        del timeout
        (clock,) = self.clocks.values()
        if clock is None:
            raise BookieUnreachableError("no answer")
        return Info("b", "", "0", False, 0, 0, 0, now_ms=clock.now_ms())


def metadata_client(
    store: MetadataStore, clock: SetClock | None = None, bookies: TimeTellers | None = None
) -> LogClient:
    """A client of logs that cannot write or read entries. Its bookies have its clock."""
    nothing = cast("Any", None)
    clock = clock or SetClock()
    tellers = cast("Any", bookies or TimeTellers(clock))
    ledgers = LedgerManager(store, clock=clock)
    client = LedgerClient("", tellers, nothing, tellers, ledgers, nothing)
    return LogClient(client, store, clock=clock)


class MetadataLog:
    """A transactional log and the ledgers that its publishers are said to have written."""

    def __init__(self, client: LogClient, log_id: str, name: LogName = ORDERS) -> None:
        self.client = client
        self.log_id = log_id
        self.name = name
        self.publisher = LogPublisher(client, name)

    def partition(self, number: int = 0) -> LogPartition:
        """One partition."""
        return LogPartition(self.name, number)

    async def make_ledger(
        self,
        ledger_id: int,
        partition: int = 0,
        *,
        entries: int | None = None,
        application: str | None = APPLICATION,
        log_id: str = "",
        created_ms: int | None = None,
        is_compared: bool = True,
    ) -> None:
        """A ledger with so many entries, or an open one; made now, if nothing else is said.

        Without an `application` it is a copy that a compaction made.
        """
        place, log_id = self.partition(partition), log_id or self.log_id
        tags = self.client.tags(place, log_id)
        if application is not None:
            tags = publisher_tags(place, log_id, application)
        made_ms = self.client.clock.now_ms() if created_ms is None else created_ms
        if is_compared:
            tags = {**tags, CREATED_TAG: str(made_ms).encode()}
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            state=LedgerState.OPEN,
            fragments=(Fragment(0, ("b0",)),),
            ctime_ms=made_ms,
            custom_metadata=tags,
        )
        if entries is not None:
            metadata = metadata.closed(entries - 1, 10 * entries)
        await self.client.ledgers.ledgers.create(metadata)

    async def batch(
        self, batch: int, *ranges: PendingRange, application: str = APPLICATION
    ) -> bool:
        """Publish, by a publisher of its own."""
        return await LogPublisher(self.client, self.name).publish(application, batch, ranges)

    async def publish_ledgers(self, first: int, count: int, *, entries: int = 10) -> None:
        """Publish closed ledgers as batches of partition 0; their ms since 1970 are their ids."""
        for number in range(first, first + count):
            await self.make_ledger(number, entries=entries, created_ms=number)
            assert await self.batch(number, pending(number, 0, entries - 1, end_ms=number))

    async def chain(self, partition: int = 0) -> list[LogRange]:
        """All ranges of a partition, those of chunks first; their offsets have to be a sequence."""
        logs = self.client.logs
        head = (await logs.read_latest_head(self.partition(partition), self.log_id)).value
        ranges: list[LogRange] = []
        for number in range(head.first_chunk, head.next_chunk):
            chunk = await logs.read_chunk(self.partition(partition), number)
            assert chunk is not None
            ranges += chunk.ranges
        ranges += head.ranges
        for before, after in pairwise(ranges):
            assert after.base_offset == before.end_offset
            assert (after.end_ms or 0) >= (before.end_ms or 0)
        assert not ranges or (ranges[0].base_offset or 0) <= head.start_offset
        return ranges

    async def named(self, partition: int = 0) -> list[tuple[int, int, int | None]]:
        """Ledger, first and last entry of all ranges of a partition."""
        return [
            (one.ledger_id, one.first_entry_id, one.last_entry_id)
            for one in await self.chain(partition)
        ]

    async def ledgers(self) -> list[int]:
        """All ledgers that exist."""
        return [one async for one in self.client.ledgers.ledgers.list_ids()]


async def metadata_log(
    client: LogClient, *, partitions: int = 1, name: LogName = ORDERS
) -> MetadataLog:
    """A new transactional log."""
    definition = await client.create(name, mode=LogMode.TRANSACTIONAL, partitions=partitions)
    return MetadataLog(client, definition.log_id, name)


def pending(
    ledger_id: int, first: int, last: int, *, partition: int = 0, end_ms: int = 0
) -> PendingRange:
    """A range whose entries have ten bytes each."""
    return PendingRange(partition, ledger_id, first, last, end_ms, 10 * (last - first + 1))


@asynccontextmanager
async def before_a_write(
    store: FaultyStore, act: Callable[[], Coroutine[object, object, T]]
) -> AsyncIterator[list[T]]:
    """Inside, `act` runs to its end before the next write of `store` happens; yields its result.

    `act` has to use another store.
    """
    results: list[T] = []
    async with asyncio.TaskGroup() as tasks:

        async def run() -> None:
            try:
                results.append(await act())
            finally:
                store.hold_writes.set()

        def start() -> None:
            store.before_write = lambda: None
            store.hold_writes.clear()
            tasks.create_task(run())

        store.before_write = start
        yield results


async def turns_until(condition: Callable[[], bool]) -> None:
    """Give the others turns of the loop until something holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("what was waited for does not happen")
