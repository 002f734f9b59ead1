"""The ranges of one partition: a reader finds the range of an offset, a time or an entry.

Old ranges are in chunks. A chunk never changes, so a reader caches the last few chunks. Chunks are
numbered in the order of offsets and times, so a binary search reads only a few chunks. The head
that the reader knows may be old. A chunk that an old head names may be missing: a truncation
deleted it, or a compaction rewrote it. If a chunk is missing, the search begins again on a newer
head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from bookie.errors import FormatError, LogTruncatedError
from bookie.log.catalog.log_metadata import LogChunk, LogHead, LogRange
from bookie.log.catalog.logs import LogManager, LogPartition
from bookie.log.head.chain import range_of_offset, range_of_time
from bookie.log.head.log_ranges import completed
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.versioned import Versioned

CHUNKS_KEPT = 32
"""The number of chunks that a reader caches. A search among a million ranges reads 14 chunks."""


class LogRanges:
    """The ranges of a partition that a reader knows; empty until `refresh` reads them."""

    def __init__(self, logs: LogManager, partition: LogPartition, log_id: str) -> None:
        self.partition = partition
        self._logs = logs
        self._log_id = log_id
        self._found = Versioned(LogHead(log_id), NOT_EXISTS)
        self._ends: dict[int, int] = {}
        """Last entry ids of CLOSED ledgers whose ranges are still open in the known head."""
        self._ranges: tuple[LogRange, ...] = ()
        self._chunks: OrderedDict[int, LogChunk] = OrderedDict()
        self._chunk_read_last = -1

    @property
    def head(self) -> LogHead:
        return self._found.value

    @property
    def ranges(self) -> Sequence[LogRange]:
        """The ranges of the known head; a range is closed if its ledger is known to be CLOSED."""
        return self._ranges

    async def refresh(self) -> bool:
        """Read the newest head; return True if it is newer than the known head.

        The newest head has every change that was finished before this call.

        Raises:
            NoSuchLogError: the log was deleted.
            MetadataError: the metadata store failed.
        """
        found = await self._logs.read_latest_head(self.partition, self._log_id)
        if found.version == NOT_EXISTS:
            await self.require_log()  # the partition has had no owner, or the log was deleted
        return self.adopt(found)

    async def require_log(self) -> None:
        """Check that the log exists. The heads of a log may remain while the log is being deleted.

        Raises:
            NoSuchLogError: the log was deleted.
            MetadataError: the metadata store failed.
        """
        await self._logs.require(self.partition.name, self._log_id)

    def adopt(self, found: Versioned[LogHead]) -> bool:
        """Replace the known head by `found`; False if `found` is not newer."""
        if found.version <= self._found.version:
            return False
        self._found = found
        still_open = {one.ledger_id for one in found.value.open_ranges}
        self._ends = {ledger: end for ledger, end in self._ends.items() if ledger in still_open}
        self._ranges = completed(found.value.ranges, self._ends)
        return True

    def note_end(self, ledger_id: int, last_entry_id: int) -> None:
        """Remember that a ledger is CLOSED at `last_entry_id`. The head may not show this yet."""
        self._ends[ledger_id] = last_entry_id
        self._ranges = completed(self.head.ranges, self._ends)

    def has_ended(self, ledger_id: int) -> bool:
        """True if the ledger is known to be CLOSED while its range is open in the known head."""
        return ledger_id in self._ends

    async def from_offset(self, offset: int) -> Sequence[LogRange]:
        """Return the range that contains `offset`, and the later ranges of the same chunk or head.

        The result is empty if `offset` is after all known ranges.

        Raises:
            LogTruncatedError: the entry at `offset` was truncated.
            MetadataError: the metadata store failed.
        """
        while True:
            if offset < self.head.start_offset:
                raise truncated_error(self.partition, offset, self.head)
            at = range_of_offset(self._ranges, offset)
            if at >= 0:
                end = self._ranges[at].end_offset
                return self._ranges[at:] if end is None or offset < end else ()
            if self.head.first_chunk == self.head.next_chunk:
                return ()
            try:
                chunk = await self._chunk_of_offset(offset)
            except _ChunkGoneError:
                continue
            return chunk.ranges[range_of_offset(chunk.ranges, offset) :]

    async def from_time(self, timestamp_ms: int) -> Sequence[LogRange]:
        """Return the ranges from the first one that may have a record of this time or later.

        If the first range is in a chunk, the result ends at the end of this chunk. If the first
        range is in the head, the result ends with the newest range of the known head.

        Raises:
            MetadataError: the metadata store failed.
        """
        while True:
            try:
                chunk = await self._first_chunk(lambda one: _end_ms(one) < timestamp_ms)
            except _ChunkGoneError:
                continue
            ranges = self._ranges if chunk is None else chunk.ranges
            return ranges[range_of_time(ranges, timestamp_ms) :]

    async def of_entry(self, ledger_id: int, entry_id: int) -> LogRange:
        """Return the range that contains the entry, will contain it, or ends right before it.

        The search reads the chunks one by one, newest first, so it is slower than `from_offset`.

        Raises:
            LogTruncatedError: no range contains the entry: the entry was truncated, or a
                compaction copied it.
            MetadataError: the metadata store failed.
        """
        while True:
            found = _range_of_entry(self._ranges, ledger_id, entry_id)
            try:
                for number in reversed(range(self.head.first_chunk, self.head.next_chunk)):
                    if found is not None:
                        break
                    chunk = await self._chunk(number)
                    found = _range_of_entry(chunk.ranges, ledger_id, entry_id)
            except _ChunkGoneError:
                continue
            if found is not None:
                return found
            raise self.unnamed_error(ledger_id, entry_id)

    def unnamed_error(self, ledger_id: int, entry_id: int) -> LogTruncatedError:
        """Return the error for an entry that no range contains."""
        return LogTruncatedError(
            f"entry {entry_id} of ledger {ledger_id} is not part of {self.partition}: it was "
            "truncated, or its ledger was compacted, and then its offset finds it; "
            f"the earliest offset is {self.head.start_offset}",
            earliest_offset=self.head.start_offset,
        )

    async def _chunk_of_offset(self, offset: int) -> LogChunk:
        """Return the chunk that contains `offset`, which must be before all ranges of the head."""
        likely = self._chunk_read_last + 1
        if self.head.first_chunk <= likely < self.head.next_chunk:
            chunk = await self._chunk(likely)
            if _base(chunk) <= offset < _end_offset(chunk):
                self._chunk_read_last = likely
                return chunk
        found = await self._first_chunk(lambda one: _end_offset(one) <= offset)
        if found is None or offset < _base(found):
            raise FormatError(f"no range of {self.partition} has offset {offset}")
        self._chunk_read_last = found.number
        return found

    async def _first_chunk(self, is_before: Callable[[LogChunk], bool]) -> LogChunk | None:
        """Return the first chunk for which `is_before` is false; None if there is no such chunk.

        `is_before` must be true for all chunks before the result, and false for all later chunks.
        """
        low, high = self.head.first_chunk, self.head.next_chunk
        found = None
        while low < high:
            middle = (low + high) // 2
            chunk = await self._chunk(middle)
            if is_before(chunk):
                low = middle + 1
            else:
                high, found = middle, chunk
        return found

    async def _chunk(self, number: int) -> LogChunk:
        """Return one chunk that the head names, from the cache or the store.

        Raises:
            _ChunkGoneError: the chunk was removed; this call has read the newer head.
        """
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = await self._logs.read_chunk(self.partition, number)
            if chunk is None:
                if not await self.refresh():
                    raise FormatError(f"chunk {number} of {self.partition} is missing")
                raise _ChunkGoneError
            self._chunks[number] = chunk
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        return chunk


class _ChunkGoneError(Exception):
    """A chunk that the known head names was removed from the store."""


def truncated_error(partition: LogPartition, offset: int, head: LogHead) -> LogTruncatedError:
    """Return the error for an offset that was truncated."""
    return LogTruncatedError(
        f"offset {offset} of {partition} was truncated; the earliest one is {head.start_offset}",
        earliest_offset=head.start_offset,
    )


def _range_of_entry(ranges: Sequence[LogRange], ledger_id: int, entry_id: int) -> LogRange | None:
    for one in reversed(ranges):
        if one.ledger_id == ledger_id and one.first_entry_id <= entry_id:
            last = one.last_entry_id
            # The entry id after the last entry is a valid place: the beginning of the next range.
            if last is None or entry_id <= last + 1:
                return one
    return None


def _base(chunk: LogChunk) -> int:
    base = chunk.ranges[0].base_offset
    assert base is not None, "a range in a chunk has a base"
    return base


def _end_offset(chunk: LogChunk) -> int:
    end = chunk.ranges[-1].end_offset
    assert end is not None, "a range in a chunk is closed"
    return end


def _end_ms(chunk: LogChunk) -> int:
    end_ms = chunk.ranges[-1].end_ms
    assert end_ms is not None, "a range in a chunk is closed"
    return end_ms
