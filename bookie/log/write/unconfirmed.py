"""The unconfirmed appends of a partition's writer, and the ledger to which they were sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bookie.errors import BookieError
from bookie.ids import NO_ENTRY
from bookie.ledger.write.append_queue import NewEntries
from bookie.ledger.write.handle import WriterHandle
from bookie.log.record.log_record import Producer
from bookie.log.record.positions import LogPositions, PositionRun


@dataclass(slots=True)
class Segment:
    """One ledger of the partition, and its writer."""

    writer: WriterHandle
    partition: int
    base_offset: int
    """The offset of the ledger's first entry."""
    started: float
    """The start of the segment in seconds, by the clock of the event loop."""
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return self.writer.last_entry_id == NO_ENTRY


class Unconfirmed:
    """Records that were appended together and wait for confirmation."""

    __slots__ = (
        "count",
        "entries",
        "first_entry_id",
        "future",
        "outcome",
        "producer",
        "runs",
        "segment",
        "size_bytes",
    )

    def __init__(
        self,
        entries: NewEntries,
        segment: Segment,
        producer: Producer | None,
    ) -> None:
        """`producer` gives the first record's number; the other records have the next numbers."""
        self.count = len(entries.payloads)
        """The number of all records. `entries` may hold fewer records; `size_bytes` counts all
        records.
        """
        self.size_bytes = entries.total_bytes
        self.entries = entries
        """The remaining records: no closed ledger contains them."""
        self.segment = segment
        self.first_entry_id = 0
        self.future: asyncio.Future[range]
        self.producer = producer
        self.runs: list[PositionRun] = []
        """The positions of those first records that closed ledgers already contain."""
        self.outcome: LogPositions | BookieError | None = None
        """The outcome of an idempotent producer's append; None until the outcome is known."""

    @property
    def next_run(self) -> PositionRun:
        """The positions that `entries` get if the ledger of `segment` confirms them."""
        offset = self.segment.base_offset + self.first_entry_id
        ledger_id = self.segment.writer.ledger_id
        count, partition = len(self.entries.payloads), self.segment.partition
        return PositionRun(ledger_id, self.first_entry_id, offset, count, partition)

    @property
    def next_producer(self) -> Producer | None:
        if self.producer is None:
            return None
        producer_id, sequence = self.producer
        return Producer(producer_id, sequence + sum(run.entries for run in self.runs))

    def keep(self, last_entry_id: int) -> None:
        """Move the records that the closed ledger contains, up to `last_entry_id`, to `runs`."""
        payloads, _, _, prefix = self.entries
        written = min(max(0, last_entry_id - self.first_entry_id + 1), len(payloads))
        if written:
            self.runs.append(self.next_run._replace(entries=written))
            self.entries = NewEntries.of(payloads[written:], prefix)
