"""Reads partitions for consumers; a test can override the methods to supply other records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from bookie.errors import (
    BadRequestError,
    CorruptionError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnavailableError,
)
from bookie.ids import MAX_ID
from bookie.log.catalog.logs import LogPartition
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.read.reader import LogReader, OnTruncated
from bookie.log.read.start_position import AtEntry, AtTime, Place, find_end, find_entry, find_time
from bookie.log.read.status import log_extent
from bookie.log.record.log_record import LogRecord

END_LOOKS_MAX = 20
END_PAUSE_SECONDS = 0.1
"""The pause between two reads of the end of a log.

An offset counts as after the end if `END_LOOKS_MAX` reads all find an end before the offset. After
an append has returned, readers see its record as confirmed a moment later, even if no other record
follows.
"""


async def locate_cursor(reading: LogReading, partition: LogPartition, place: Place) -> int:
    """Return the offset for a cursor at `place`. The place must not be after the end of the log.

    A cursor after the end would silently skip records that are appended later. Bookies may report
    an end without the newest records. So if `place` is after the reported end, this call reads the
    end up to `END_LOOKS_MAX` times. The call raises at once if `is_beyond` shows that the
    record before `place` was not confirmed.

    Raises:
        BadRequestError: the place is after the end.
        NoSuchLogError, LogTruncatedError, UnavailableError, CorruptionError: see `locate`.
    """
    offset = await reading.locate(partition, place)
    if not isinstance(place, int | AtEntry):
        return offset
    looks = END_LOOKS_MAX
    while (end := (await reading.bounds(partition))[1]) < offset:
        looks -= 1
        if not looks or await reading.is_beyond(partition, offset):
            raise BadRequestError(
                f"offset {offset} is behind the end of {partition}: its next record gets {end}"
            )
        await asyncio.sleep(END_PAUSE_SECONDS)
    return offset


class LogReading:
    """Reads the partitions of a client's logs."""

    def __init__(
        self, client: LogClient, password: bytes = b"", on_truncated: OnTruncated = "raise"
    ) -> None:
        self._client = client
        self._password = password
        self._on_truncated: OnTruncated = on_truncated

    async def batches(
        self, partition: LogPartition, offset: int
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        """Yield the records from `offset` on, without an end, in batches that are not empty.

        Raises the errors of `LogReader.batches`.
        """
        reader = LogReader(
            self._client,
            partition,
            await self._client.definition(partition.name),
            start=offset,
            follow=True,
            password=self._password,
            on_truncated=self._on_truncated,
        )
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                yield batch

    async def locate(self, partition: LogPartition, place: Place) -> int:
        """Return the offset of a place: ``earliest``, ``latest``, an offset, an entry or a time.

        ``latest`` is the offset after the last confirmed record.

        If `place` is an offset, the call does not check that a record is there. For a time, the
        result may be smaller than the offset of the first record of this time (`find_time`).

        Raises:
            NoSuchLogError: there is no such log.
            LogTruncatedError: the entry was truncated, or copied by a compaction.
            BadRequestError: the entry cannot be read yet, so its offset is unknown.
            UnavailableError, CorruptionError: a read failed.
        """
        if isinstance(place, int):
            return place
        ranges, readers = await self._look(partition)
        match place:
            case "earliest":
                return ranges.head.start_offset
            case "latest":
                return max(await find_end(ranges, readers), ranges.head.start_offset)
            case AtTime(timestamp_ms):
                return await find_time(ranges, readers, timestamp_ms)
            case AtEntry(ledger_id, entry_id):
                found = await find_entry(ranges, readers, ledger_id, entry_id)
                if found.base_offset is None:
                    raise BadRequestError(
                        f"entry {entry_id} of ledger {ledger_id} cannot be read yet: the ledger "
                        "before it is open"
                    )
                return found.base_offset + entry_id - found.first_entry_id

    async def bounds(self, partition: LogPartition) -> tuple[int, int]:
        """Return the earliest offset, and the offset after the last confirmed record.

        Raises the errors of `locate`.
        """
        definition = await self._client.definition(partition.name)
        extent = await log_extent(self._client, partition, definition, self._password)
        return extent.earliest_offset, extent.end_offset

    async def is_beyond(self, partition: LogPartition, offset: int) -> bool:
        """True if the record before `offset` was surely not confirmed when this call began.

        This call first reads the head, which names the ledgers of all records that were confirmed
        before this call. The result is False if a bookie has the record, if too few bookies answer,
        or while the log begins a new ledger.

        Raises:
            NoSuchLogError: there is no such log.
            MetadataError: the metadata store failed.
        """
        ranges, readers = await self._look(partition)
        if not ranges.ranges:
            return offset > ranges.head.start_offset
        last = ranges.ranges[-1]
        if last.base_offset is None:
            return False  # the end of the previous ledger is not known
        if last.end_offset is not None:
            return offset > last.end_offset
        entry_id = last.first_entry_id + offset - 1 - last.base_offset
        if entry_id < last.first_entry_id:
            return False
        if entry_id > MAX_ID:
            return True
        try:
            handle = await readers.open(last.ledger_id)
            async with aclosing(handle.read_unconfirmed(entry_id, entry_id)) as entries:
                async for _ in entries:
                    return False
        except NoSuchEntryError:
            return True
        except (NoSuchLedgerError, BadRequestError, UnavailableError, CorruptionError):
            return False  # the ledger was closed or deleted meanwhile, or bookies do not answer
        return False

    async def _look(self, partition: LogPartition) -> tuple[LogRanges, LedgerReaders]:
        """Read the newest ranges of a partition, and return them with readers for their ledgers."""
        definition = await self._client.definition(partition.name)
        ranges = LogRanges(self._client.logs, partition, definition.log_id)
        await ranges.refresh()
        return ranges, LedgerReaders(self._client.ledgers, self._password)
