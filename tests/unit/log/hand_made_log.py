"""A log whose ledgers and heads a test makes by hand, in any state that a writer may leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookie.ledger.ledger_client import LedgerShape
from bookie.ledger.quorum import Quorum
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_metadata import NO_TIME_MS, LogDefinition, LogHead, LogRange
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.chain import (
    LedgerEnd,
    seal,
    truncated,
    with_closed,
    with_ledger,
    with_published,
)
from bookie.log.head.head_keeper import HeadStep
from bookie.log.log_client import LogClient
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogRecord, encode_log_record

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


class HandMadeLog:
    """One partition. Values are the offsets as text, unless a test gives others."""

    def __init__(
        self, client: LogClient, partition: LogPartition, definition: LogDefinition
    ) -> None:
        self.client = client
        self.metadata = client.logs
        """By which it is changed; a test may give readers another view."""
        self.partition = partition
        self.definition = definition
        self.next_offset = 0
        """Of the record that is appended next, if all go to one ledger after the other."""
        self.greatest_ms = NO_TIME_MS
        self._size_bytes: dict[int, int] = {}

    def reader(self, **options: Any) -> LogReader:
        """A reader of it."""
        return LogReader(self.client, self.partition, self.definition, **options)

    async def head(self) -> LogHead:
        """The head now."""
        found = await self.metadata.read_latest_head(self.partition, self.definition.log_id)
        return found.value

    async def change(self, *steps: HeadStep) -> LogHead:
        """Take steps of the chain, all in one change."""
        logs = self.metadata
        found = await logs.read_latest_head(self.partition, self.definition.log_id)
        head = found.value
        for step in steps:
            head = step(head)
        head, chunks = seal(head)
        await logs.write_head(self.partition, head, found.version, sealed=chunks)
        return head

    async def create(self, *, created_ms: int | None = None) -> WriterHandle:
        """A ledger that the head does not name yet."""
        shape = LedgerShape(Quorum(1, 1, 1))
        return await self.client.ledgers.create(shape, created_ms=created_ms)

    async def add(self, *, created_ms: int | None = None) -> WriterHandle:
        """A new ledger, as the last range."""
        writer = await self.create(created_ms=created_ms)
        await self.change(lambda head: with_ledger(head, writer.ledger_id))
        return writer

    async def append(
        self, writer: WriterHandle, count: int, *, width: int = 0, **fields: Any
    ) -> None:
        """Append records that follow those before; each has its offset as its time and value."""
        offsets = range(self.next_offset, self.next_offset + count)
        records = [LogRecord(one, (b"%d" % one).ljust(width), **fields) for one in offsets]
        await self.append_records(writer, records)

    async def append_records(self, writer: WriterHandle, records: Sequence[LogRecord]) -> None:
        """Append these records."""
        payloads = []
        for record in records:
            self.greatest_ms = max(self.greatest_ms, record.timestamp_ms)
            payloads.append(encode_log_record(record, greatest_ms=self.greatest_ms))
        await self.append_payloads(writer, payloads)

    async def append_payloads(self, writer: WriterHandle, payloads: Sequence[bytes]) -> None:
        """Append these entries."""
        await writer.append_many(payloads)
        self.next_offset += len(payloads)
        before = self._size_bytes.get(writer.ledger_id, 0)
        self._size_bytes[writer.ledger_id] = before + sum(map(len, payloads))

    def end(self, writer: WriterHandle) -> LedgerEnd:
        """The end of the ledger in the head."""
        last = writer.last_add_confirmed
        size = self._size_bytes.get(writer.ledger_id, 0)
        return LedgerEnd(writer.ledger_id, last, None if last < 0 else self.greatest_ms, size)

    async def close(self, writer: WriterHandle) -> None:
        """Close a ledger, and then its range."""
        await writer.close()
        await self.close_range(writer)

    async def close_range(self, writer: WriterHandle) -> None:
        """Tell the head of a ledger that is closed; an empty one is deleted."""
        end = self.end(writer)
        await self.change(lambda head: with_closed(head, end))
        if end.last_entry_id < 0:
            await self.client.ledgers.ledgers.delete(writer.ledger_id)

    async def fill(self, *counts: int, width: int = 0) -> None:
        """Closed ledgers with these numbers of records."""
        for count in counts:
            writer = await self.add()
            await self.append(writer, count, width=width)
            await self.close(writer)

    async def truncate(self, before_offset: int) -> None:
        """Truncate as the log does: the head, then the ledgers. There are no chunks."""
        gone: list[LogRange] = []

        def step(head: LogHead) -> LogHead:
            changed, ranges = truncated(head, before_offset)
            gone[:] = ranges
            return changed

        await self.change(step)
        for one in gone:
            await self.client.ledgers.ledgers.delete(one.ledger_id)

    async def publish(self, *ranges: LogRange) -> None:
        """Publish closed ranges, as a transactional log."""
        await self.change(lambda head: with_published(head, ranges))
