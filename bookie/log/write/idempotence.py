"""Appends of idempotent producers: a repeated record gets the position of its first append."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bookie.errors import BookieError, ClientClosedError
from bookie.ledger.connection.arguments import Payload
from bookie.ledger.connection.calls import fresh
from bookie.ledger.connection.pool import BookiePool
from bookie.log.record.log_record import LogPosition, Producer
from bookie.log.record.positions import LogPositions, PositionRun
from bookie.log.record.producers import ProducerWindows
from bookie.log.record.record_encoder import NewRecord
from bookie.log.write.unconfirmed import Unconfirmed

if TYPE_CHECKING:
    from bookie.log.write.partition_writer import PartitionWriter

Records = Sequence[Payload | NewRecord]


class IdempotentAppends:
    """Appends records to one partition for idempotent producers, which number their records."""

    def __init__(
        self, writer: PartitionWriter, windows: ProducerWindows, pool: BookiePool, partition: int
    ) -> None:
        self._writer = writer
        self._windows = windows
        self._pool = pool
        self._partition = partition
        self._under_way: dict[asyncio.Task[None], Unconfirmed] = {}

    async def append(self, records: Records, producer: Producer) -> LogPositions:
        """Append those `records` that are new; return the positions of all `records`.

        `producer` gives the number of the first record. The other records have the numbers that
        follow.
        """
        await self._writer.admit()
        known = self._known(producer, len(records))
        before = dict(self._under_way)
        appended = task = None
        if len(known) < len(records):
            first = Producer(producer.producer_id, producer.sequence + len(known))
            appended = self._writer.submit(records[len(known) :], first)
            # The task is separate, because the outcome must be known even if this caller is
            # cancelled.
            task = self._pool.spawn(self._conclude(appended), name="append of a producer")
            self._under_way[task] = appended
            task.add_done_callback(self._under_way.pop)
        else:
            self._writer.turn_away()
        runs = await self._runs_of(producer, known, before) if known else []
        if task is not None and appended is not None:
            await asyncio.wait([task])
            runs += _positions_of(appended).runs
        return LogPositions(runs)

    def _known(self, producer: Producer, count: int) -> list[LogPosition]:
        """Return the positions of those records, out of `count`, that were appended before.

        Appends that are under way may still move to another ledger, and so to other positions.
        """
        producer_id, first = producer
        known: list[LogPosition] = []
        try:
            for sequence in range(first, first + count):
                position = self._windows.find(Producer(producer_id, sequence))
                if position is None:
                    break
                known.append(position)
        except BookieError:
            self._writer.turn_away()
            raise
        return known

    async def _runs_of(
        self,
        producer: Producer,
        known: list[LogPosition],
        before: Mapping[asyncio.Task[None], Unconfirmed],
    ) -> list[PositionRun]:
        """Wait for the appends `before`; return the positions of the producer's `known` records."""
        if before:
            await asyncio.wait(before)
        if self._writer.error is not None:
            raise fresh(self._writer.error)
        # Meanwhile, an append may have moved to another ledger, and `_windows` may have forgotten
        # the producer of this append.
        moved: dict[int, LogPosition] = {}
        for appended in before.values():
            first = appended.producer
            if first is not None and first.producer_id == producer.producer_id:
                moved |= enumerate(_positions_of(appended), first.sequence)
        runs = []
        for sequence, position in enumerate(known, producer.sequence):
            at = moved.get(sequence, position)
            runs.append(PositionRun(at.ledger_id, at.entry_id, at.offset, 1, self._partition))
        return runs

    async def _conclude(self, appended: Unconfirmed) -> None:
        try:
            appended.outcome = await self._writer.confirmed(appended)
        except BookieError as error:
            appended.outcome = error


def _positions_of(appended: Unconfirmed) -> LogPositions:
    """Return the positions of an append that has ended, or raise the error of the append."""
    if appended.outcome is None:
        raise ClientClosedError("the client was closed while a record was appended")
    if isinstance(appended.outcome, BookieError):
        raise fresh(appended.outcome)
    return appended.outcome
