"""Appends of idempotent producers: a repeated record gets the position of its first append."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookie.errors import BookieError, ClientClosedError
from bookie.ledger.connection.arguments import Payload
from bookie.ledger.connection.calls import fresh
from bookie.ledger.connection.pool import BookiePool
from bookie.log.record.log_record import Producer
from bookie.log.record.positions import LogPositions, PositionRun
from bookie.log.record.producers import ProducerWindows
from bookie.log.record.record_encoder import NewRecord
from bookie.log.write.unconfirmed import Unconfirmed

if TYPE_CHECKING:
    from bookie.log.write.partition_writer import PartitionWriter

Records = Sequence[Payload | NewRecord]


class IdempotentAppends:
    """Appends records of idempotent producers, who number their records, to one partition."""

    def __init__(
        self, writer: PartitionWriter, windows: ProducerWindows, pool: BookiePool, partition: int
    ) -> None:
        self._writer = writer
        self._windows = windows
        self._pool = pool
        self._partition = partition
        self._under_way: dict[asyncio.Task[None], None] = {}

    async def append(self, records: Records, producer: Producer) -> LogPositions:
        """Append those `records` that are new; return the positions of all `records`.

        `producer` gives the number of the first record. The other records have the numbers that
        follow.
        """
        await self._writer.admit()
        known = self._known(producer, len(records))
        before = list(self._under_way)
        appended = task = None
        if known < len(records):
            first = Producer(producer.producer_id, producer.sequence + known)
            appended = self._writer.submit(records[known:], first)
            # The task is separate, because the outcome must be known even if this caller is
            # cancelled.
            task = self._pool.spawn(self._conclude(appended), name="append of a producer")
            self._under_way[task] = None
            task.add_done_callback(self._under_way.pop)
        else:
            self._writer.turn_away()
        runs = await self._runs_of(producer, known, before) if known else []
        if task is not None and appended is not None:
            await asyncio.wait([task])
            if appended.outcome is None:
                raise ClientClosedError("the client was closed while a record was appended")
            if isinstance(appended.outcome, BookieError):
                raise fresh(appended.outcome)
            runs += appended.outcome.runs
        return LogPositions(runs)

    def _known(self, producer: Producer, count: int) -> int:
        """Return how many of the `count` records were appended before, confirmed or not."""
        producer_id, first = producer
        last = self._windows.last_sequence(producer_id)
        known = min(max(0, last - first + 1), count)
        try:
            for sequence in range(first, first + known):
                self._windows.find(Producer(producer_id, sequence))
        except BookieError:
            self._writer.turn_away()
            raise
        return known

    async def _runs_of(
        self, producer: Producer, known: int, before: list[asyncio.Task[None]]
    ) -> list[PositionRun]:
        """Wait for the appends `before`; return the positions of the producer's `known` records."""
        if before:
            await asyncio.wait(before)
        if self._writer.error is not None:
            raise fresh(self._writer.error)
        runs = []
        for sequence in range(producer.sequence, producer.sequence + known):
            at = self._windows.find(Producer(producer.producer_id, sequence))
            assert at is not None, "what was found stays known while the writer lives"
            runs.append(PositionRun(at.ledger_id, at.entry_id, at.offset, 1, self._partition))
        return runs

    async def _conclude(self, appended: Unconfirmed) -> None:
        try:
            appended.outcome = await self._writer.confirmed(appended)
        except BookieError as error:
            appended.outcome = error
