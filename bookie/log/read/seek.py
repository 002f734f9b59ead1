"""Find places in a log: its end, an entry, a time.

Each record tells the greatest timestamp of the records up to itself, and each closed range the
greatest one at its end. Both never go back. So the first record with a timestamp of t or later is
the first whose greatest timestamp is at least t, and halving finds it: chunks, ranges, entries.

In two cases the entry that is found may be before that record, never behind it. A control record
has a timestamp, too. And a publisher of a transactional log counts entries of its ledger that were
not published. A reader therefore skips what is older than t, which is next to nothing.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from bookie.errors import NoSuchLedgerError
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.catalog.log_metadata import LogDefinition, LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.chain import live_bytes
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.record.log_record import greatest_timestamp_ms

UNPUBLISHED_MAX = 1000
"""Of entries behind the end, no more are counted."""


async def find_end(ranges: LogRanges, readers: LedgerReaders) -> int:
    """The offset behind the last entry that is known to be confirmed.

    Raises:
        NoSuchLedgerError: an open range's ledger has vanished, and the head does not say why.
        NotEnoughBookiesError: too few bookies answered to tell where an open range ends.
        MetadataError: the metadata store failed.
    """
    while True:
        if not ranges.ranges:
            return ranges.head.start_offset
        last = next(one for one in reversed(ranges.ranges) if one.base_offset is not None)
        if last.end_offset is not None:
            return last.end_offset
        try:
            entry_id = await confirmed_end(last, ranges, readers)
        except NoSuchLedgerError:
            await after_vanished(last.ledger_id, ranges, readers)
            continue
        if entry_id is not None:
            assert last.base_offset is not None
            return last.base_offset + entry_id + 1 - last.first_entry_id


async def confirmed_end(one: LogRange, ranges: LogRanges, readers: LedgerReaders) -> int | None:
    """The last confirmed entry of an open range's ledger; None if it is CLOSED, noted in `ranges`.

    Raises:
        NoSuchLedgerError, NotEnoughBookiesError, MetadataError: as `find_end`.
    """
    handle = await readers.open(one.ledger_id)
    last = await handle.refresh()
    if not handle.is_closed:
        return last
    ranges.note_end(one.ledger_id, last)
    return None


async def find_entry(
    ranges: LogRanges, readers: LedgerReaders, ledger_id: int, entry_id: int
) -> LogRange:
    """The range of an entry; behind the last entry of a ledger, the range of that one.

    Raises:
        LogTruncatedError: no range has it: it was truncated, or copied by a compaction.
        NoSuchLedgerError, NotEnoughBookiesError, MetadataError: as `find_end`.
    """
    found = await ranges.of_entry(ledger_id, entry_id)
    if found.last_entry_id is not None and entry_id > found.last_entry_id:
        # A later range of the ledger may have been copied elsewhere, and this one left.
        handle = await readers.open(ledger_id)
        if (handle.last_entry_id if handle.is_closed else await handle.refresh()) >= entry_id:
            raise ranges.unnamed_error(ledger_id, entry_id)
    return found


async def after_vanished(ledger_id: int, ranges: LogRanges, readers: LedgerReaders) -> None:
    """A ledger is gone: learn from the newest head why.

    Raises:
        NoSuchLedgerError: the head has not changed since: the ledger was not deleted by the log.
        NoSuchLogError: the log was deleted.
        MetadataError: the metadata store failed.
    """
    readers.forget()
    if not await ranges.refresh():
        await ranges.require_log()
        raise NoSuchLedgerError(
            f"ledger {ledger_id} of {ranges.partition} does not exist, but the log names it"
        )


async def find_time(ranges: LogRanges, readers: LedgerReaders, timestamp_ms: int) -> int:
    """An offset such that all records before it have timestamps below `timestamp_ms`.

    It is that of the first record that has not, but for the two cases above. If there is none, it
    is the end of the log.

    Raises:
        NoSuchLedgerError, NoSuchEntryError, UnavailableError, CorruptionError: as a read.
    """
    while True:
        offset, vanished = await _find_time(ranges, readers, timestamp_ms)
        if vanished is not None:
            await after_vanished(vanished, ranges, readers)
        elif offset is not None:
            return max(offset, ranges.head.start_offset)


async def _find_time(
    ranges: LogRanges, readers: LedgerReaders, timestamp_ms: int
) -> tuple[int | None, int | None]:
    """The offset, or the ledger that has vanished; neither if what is known has changed."""
    end = None
    for one in await ranges.from_time(timestamp_ms):
        if one.base_offset is None:
            break
        try:
            last = one.last_entry_id
            if last is None:
                last = await confirmed_end(one, ranges, readers)
                if last is None:
                    return None, None
            handle = await readers.open(one.ledger_id)
            entry_id = await _first_of_time(handle, one.first_entry_id, last, timestamp_ms)
        except NoSuchLedgerError:
            return None, one.ledger_id
        offset = one.base_offset + entry_id - one.first_entry_id
        if entry_id <= last:
            return offset, None
        end = offset
    return (await find_end(ranges, readers) if end is None else end), None


async def _first_of_time(handle: ReaderHandle, first: int, last: int, timestamp_ms: int) -> int:
    """The first of the entries whose greatest timestamp is `timestamp_ms` or later, or last + 1."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        if await _greatest_ms(handle, middle) < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return low


async def _greatest_ms(handle: ReaderHandle, entry_id: int) -> int:
    async with aclosing(handle.read_acknowledged(entry_id, entry_id)) as batches:
        async for entries in batches:
            return greatest_timestamp_ms(entries[0].payload)
    raise AssertionError("a read returns its entry or raises")


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What a partition holds now."""

    earliest_offset: int
    """Of the first record that was not truncated."""
    end_offset: int
    """Behind the last record that is known to be confirmed."""
    size_bytes: int
    """Payload bytes of its closed ranges."""
    ranges: int
    """In the head; those in chunks come besides."""
    chunks: int

    @property
    def count(self) -> int:
        """Entries that can be read."""
        return self.end_offset - self.earliest_offset


async def log_extent(
    client: LogClient, partition: LogPartition, definition: LogDefinition, password: bytes = b""
) -> LogExtent:
    """What a partition holds now. Nothing is fenced or written.

    Raises:
        NoSuchLogError: the log was deleted.
        NotEnoughBookiesError: too few bookies answered to tell where the log ends.
        MetadataError: the metadata store failed.
    """
    ranges = LogRanges(client.logs, partition, definition.log_id)
    await ranges.refresh()
    return await extent_of(ranges, LedgerReaders(client.ledgers, password))


async def unpublished_entries(
    client: LogClient, partition: LogPartition, definition: LogDefinition, password: bytes = b""
) -> int:
    """How many entries bookies store behind the confirmed end; at most `UNPUBLISHED_MAX` count.

    A live writer publishes them in a moment. A killed one never does: the next owner decides about
    them. Nothing is fenced or written.

    Raises:
        NoSuchLogError, NotEnoughBookiesError, MetadataError: as `log_extent`.
    """
    ranges = LogRanges(client.logs, partition, definition.log_id)
    await ranges.refresh()
    readers = LedgerReaders(client.ledgers, password)
    found = 0
    for one in ranges.head.open_ranges:
        try:
            handle = await readers.open(one.ledger_id)
            first = await handle.refresh() + 1
            if handle.is_closed:
                continue
            async with aclosing(handle.read_unconfirmed(first)) as entries:
                async for _ in entries:
                    found += 1
                    if found == UNPUBLISHED_MAX:
                        return found
        except NoSuchLedgerError:  # the log went on meanwhile
            continue
    return found


async def extent_of(ranges: LogRanges, readers: LedgerReaders) -> LogExtent:
    """The extent of a partition whose ranges were refreshed. Raises what `log_extent` does."""
    end = await find_end(ranges, readers)
    head = ranges.head
    return LogExtent(
        head.start_offset,
        max(end, head.start_offset),
        live_bytes(head),
        len(head.ranges),
        head.next_chunk - head.first_chunk,
    )
