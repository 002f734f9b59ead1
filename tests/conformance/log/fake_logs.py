"""Logs in the memory of a test, read as consumers read them, and a history of cursors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bookie.errors import BookieError
from bookie.log.catalog.log_cursor import LogCursor, decode_log_cursor
from bookie.log.catalog.logs import LogPartition
from bookie.log.read.reading import LogReading
from bookie.log.read.start_position import AtEntry, AtTime, Place
from bookie.log.record.log_record import LogRecord
from bookie.metadata.model import Operation, Put, Stat
from bookie.metadata.store import MetadataStore
from tests.conformance.faulty_store import FaultyStore


class FakeLogs(LogReading):
    """All methods of `LogReading` over records of a test."""

    def __init__(self, batch_size: int = 3) -> None:
        self.batch_size = batch_size
        self.errors: list[BookieError] = []
        """The next reads raise these, one each."""
        self.opened: list[int] = []
        """The offsets at which reading began."""
        self._records: dict[LogPartition, list[LogRecord]] = {}
        self._more = asyncio.Event()

    def append(self, partition: LogPartition, *values: bytes) -> None:
        """Append records; the timestamp of each is its offset."""
        records = self._records.setdefault(partition, [])
        for value in values:
            offset = len(records)
            record = LogRecord(offset, value, ledger_id=1, entry_id=offset, offset=offset)
            records.append(record._replace(partition=partition.number))
        self.wake()

    def wake(self) -> None:
        """Let all readers look again."""
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def batches(
        self, partition: LogPartition, offset: int
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        self.opened.append(offset)
        while True:
            if self.errors:
                raise self.errors.pop(0)
            batch = self._records.get(partition, [])[offset : offset + self.batch_size]
            if batch:
                offset += len(batch)
                yield tuple(batch)
            else:
                await self._more.wait()

    async def bounds(self, partition: LogPartition) -> tuple[int, int]:
        return 0, await self.locate(partition, "latest")

    async def is_beyond(self, partition: LogPartition, offset: int) -> bool:
        return offset > await self.locate(partition, "latest")

    async def locate(self, partition: LogPartition, place: Place) -> int:
        match place:
            case "earliest":
                return 0
            case "latest":
                return len(self._records.get(partition, []))
            case int(offset):
                return offset
            case AtTime(timestamp_ms):
                return min(timestamp_ms, await self.locate(partition, "latest"))
            case AtEntry(_, entry_id):
                return entry_id


@dataclass(frozen=True, slots=True)
class CursorWrite:
    """One committed value of one cursor."""

    key: str
    version: int
    cursor: LogCursor


class CursorHistory:
    """Every value that any client gave a cursor."""

    def __init__(self) -> None:
        self.writes: list[CursorWrite] = []

    def note(self, operation: Operation, stat: Stat | None) -> None:
        """One operation of a transaction that was committed."""
        if isinstance(operation, Put) and "/cursors/" in operation.key:
            assert stat is not None
            cursor = decode_log_cursor(operation.value)
            self.writes.append(CursorWrite(operation.key, stat.version, cursor))

    def of(self, key: str) -> list[LogCursor]:
        """The values of one cursor, in the order of the store."""
        writes = sorted((one for one in self.writes if one.key == key), key=lambda one: one.version)
        return [one.cursor for one in writes]

    def check(self) -> int:
        """No epoch comes back, and none moves its cursor back; returns how many holders had one.

        Only a reset may begin at a lower offset, and it begins an epoch of its own.
        """
        epochs = 0
        for key in {one.key for one in self.writes}:
            values = self.of(key)
            for before, after in pairwise(values):
                assert after.epoch >= before.epoch, (key, values)
                if after.epoch == before.epoch:
                    assert after.owner == before.owner, (key, values)
                    assert after.offset >= before.offset, (key, values)
            epochs += len({value.epoch for value in values if value.epoch})
        return epochs


class NotedStore(FaultyStore):
    """A store that notes all changes of cursors, even those without a reply."""

    def __init__(self, store: MetadataStore, history: CursorHistory) -> None:
        super().__init__(store)
        self._history = history

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        answer = await super().transaction(operations)
        for operation, stat in zip(operations, answer, strict=True):
            self._history.note(operation, stat)
        return answer
