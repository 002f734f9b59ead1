"""Who disturbs logs in random episodes: by truncations, compactions, and recoveries."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from bookie.api import BookKeeper
from bookie.errors import BadRequestError, BookieError
from bookie.log.catalog.logs import LogPartition
from bookie.log.compact.plan import CompactionLimits
from bookie.log.head.chain import end_offset
from bookie.log.log_client import LogClient
from bookie.log.tidy.truncation import truncate
from tests.fault.log_actors import Record, logs_of, moment, pause
from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import LogTruncated


@dataclass(slots=True)
class TruncatingActor:
    """Now and then, up to anywhere in what is closed."""

    logs: LogClient
    partitions: tuple[LogPartition, ...]
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = 0.8

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await pause(self.rng, self.pause_seconds)
            with suppress(BookieError):
                await self._truncate(self.rng.choice(self.partitions))

    async def _truncate(self, partition: LogPartition) -> None:
        definition = await self.logs.definition(partition.name)
        head = (await self.logs.logs.read_latest_head(partition, definition.log_id)).value
        before = self.rng.randrange(head.start_offset, end_offset(head) + 2)
        event = LogTruncated(
            partition=str(partition), handle="truncation", called=moment(), before=before
        )
        self.record(event)
        outcome = EventOutcome.INFO
        try:
            await truncate(self.logs, partition, before=before)
            outcome = EventOutcome.OK
            self.count("truncation")
        except BadRequestError:
            outcome = EventOutcome.FAIL
        finally:
            self.record(replace(event, outcome=outcome, returned=moment()))


SMALL_LEDGERS = CompactionLimits(small_bytes=4000, target_bytes=12_000)


@dataclass(slots=True)
class CompactingActor:
    """Joins small ledgers of a log now and then, while others append, read and truncate."""

    bk: BookKeeper
    logs: tuple[str, ...]
    rng: random.Random
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = 0.8

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await pause(self.rng, self.pause_seconds)
            with suppress(BookieError):
                await self._compact(self.rng.choice(self.logs))

    async def _compact(self, log: str) -> None:
        maintenance = self.bk.maintenance()
        plan = await maintenance.plan_compaction(log, SMALL_LEDGERS)
        for partition, groups in plan.by_partition().items():
            copies = [await maintenance.copy_group(one) for one in groups]
            await pause(self.rng, self.pause_seconds)
            self.count("compaction proposed")
            done = await maintenance.publish_compaction(partition, copies)
            for _ in range(done.joined):
                self.count("joined")
            for _ in range(done.overtaken):
                self.count("compaction overtaken")


@dataclass(slots=True)
class RecoveringActor:
    """As an operator who takes a log's ledger for one that nobody writes any more."""

    bk: BookKeeper
    partitions: tuple[LogPartition, ...]
    rng: random.Random
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = 0.5

    async def run(self) -> None:
        """Until it is cancelled."""
        logs = logs_of(self.bk)
        while True:
            await pause(self.rng, self.pause_seconds)
            partition = self.rng.choice(self.partitions)
            with suppress(BookieError):
                definition = await logs.definition(partition.name)
                head = (await logs.logs.read_latest_head(partition, definition.log_id)).value
                for one in head.open_ranges[-1:]:
                    await self.bk.open_ledger(one.ledger_id, recover=True)
                    self.count("recovered by somebody else")
