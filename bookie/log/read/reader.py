"""The reader of one partition of a log: it starts at any place, and may follow new records.

A reader remembers its place as an offset. The reader asks `LogRanges` for the ledgers that contain
the next offset, reads these ledgers, and then asks again:

==================================== ===========================================================
case                                 reaction of the reader
==================================== ===========================================================
closed ranges are next               read these ranges by `read_runs`, without asking for a LAC
an open range is next; with `follow` read the ledger's tail until the ledger is CLOSED, then wait
                                     for the next range if necessary
an open range is next; no `follow`   read up to the LAC, and stop
no range has the next offset         with `follow`, wait for a change of the head; without
                                     `follow`, stop
a ledger or a chunk is missing       read the newest head, which shows the reason: a truncation, a
                                     compaction, or an empty ledger
the second of two open ranges is     wait until the ledger of the first open range is CLOSED
next
==================================== ===========================================================

A reader never fences, recovers or writes. A reader reads a bounded number of entries ahead, and
only while its caller waits for a batch or works on a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import dropwhile
from typing import Literal, TypeVar

from bookie.entry.entry import Entries
from bookie.env import Moment
from bookie.errors import (
    BadRequestError,
    LogTruncatedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.background import Background
from bookie.log.catalog.log_metadata import LogDefinition, LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.log_ranges import LedgerRun, runs_from
from bookie.log.log_client import LogClient
from bookie.log.read.head_watch import HeadWatch
from bookie.log.read.ledger_runs import LedgerReaders, RunEntries, read_runs
from bookie.log.read.ranges import LogRanges
from bookie.log.read.start_position import (
    AtEntry,
    AtTime,
    LogStart,
    Place,
    addressed_partition,
    after_vanished,
    checked_end,
    checked_place,
    confirmed_end,
    find_end,
    find_entry,
    find_time,
)
from bookie.log.read.status import log_extent
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.log.record.log_records import decode_log_records
from bookie.telemetry import event_log

T = TypeVar("T")

OnTruncated = Literal["raise", "skip"]
"""The reaction if the next record was truncated: raise an error, or skip to the earliest record."""

_log = event_log(__name__)


class LogReader:
    """Reads one partition: iterate over the reader or its `batches`, one iteration at a time.

    After an error, or after the caller has left a loop, a new iteration continues with the next
    record. A reader need not be closed. Use `contextlib.aclosing` to end the tasks of an iteration
    at once.
    """

    def __init__(
        self,
        client: LogClient,
        partition: LogPartition,
        definition: LogDefinition,
        *,
        start: LogStart = None,
        start_time: Moment | None = None,
        end: int | LogPosition | tuple[int, int] | None = None,
        follow: bool = False,
        password: bytes = b"",
        on_truncated: OnTruncated = "raise",
    ) -> None:
        """Start at `start` (`LogStart`), or at the first record of the time `start_time` or later.

        The reader stops before the record at `end`. With `follow`, the reader waits for further
        records, and never stops if `end` is None. Without `follow`, the reader also stops after the
        last confirmed record. If the next record was truncated and `on_truncated` is ``skip``, the
        reader logs a line and continues at the earliest record.

        Raises:
            BadRequestError: an argument is wrong, or a position is in another partition.
        """
        for place in (start, end):
            addressed_partition(place, partition.number)
        if on_truncated not in ("raise", "skip"):
            raise BadRequestError(f"on_truncated is 'raise' or 'skip', not {on_truncated!r}")
        self.partition = partition
        self._client = client
        self._definition = definition
        self._follow = follow
        self._skips = on_truncated == "skip"
        self._password = password
        self._ranges = LogRanges(client.logs, partition, definition.log_id)
        self._readers = LedgerReaders(client.ledgers, password)
        self._target: Place | None = checked_place(start, start_time)
        """The place of the next record; None when the offset of that place is known."""
        self._end = checked_end(end)
        self._next_offset = 0
        self._not_before_ms: int | None = None
        """Records are skipped until the first record of this time or later."""
        self._is_floating = False
        """True if the reader starts at the earliest record, and its start may still move."""
        self._last: LogRecord | None = None
        self._seeks = 0
        self._is_sought = False
        """True while a seek has not been carried out yet."""
        self._waker: asyncio.Future[None] | None = None
        self._is_iterated = False

    def __repr__(self) -> str:
        return f"<LogReader of {self.partition}, next_offset={self.next_offset}>"

    @property
    def log_id(self) -> str:
        """The id of the log. A later log of the same name has another id."""
        return self._definition.log_id

    @property
    def position(self) -> LogPosition | None:
        """The position of the last record that was given out; None before the first record."""
        return None if self._last is None else self._last.position

    @property
    def next_offset(self) -> int | None:
        """The smallest offset that the next record can have; None until the start was found."""
        if self._target is None:
            return self._next_offset
        return self._target if isinstance(self._target, int) else None

    @property
    def pool(self) -> BookiePool:
        return self._readers.pool

    @property
    def seeks(self) -> int:
        return self._seeks

    def seek(self, to: LogStart = None, *, time: Moment | None = None) -> None:
        """Move the reader to a place.

        Even a task that already waits for a record gets it from this place.

        A batch that `batches` has already yielded stays valid after a seek. After a seek, `records`
        yields no more records that were read before the seek.

        Raises:
            BadRequestError: the place is not valid, or is a position in another partition.
        """
        addressed_partition(to, self.partition.number)
        self._target = checked_place(to, time)
        self._seeks += 1
        self._is_sought = True
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    async def lag(self) -> int:
        """Return the number of confirmed entries from `next_offset` on.

        If `next_offset` is None, all confirmed entries that were not truncated count.

        Raises:
            NoSuchLogError: the log was deleted.
            NotEnoughBookiesError: too few bookies answered, so the end of the partition is unknown.
            MetadataError: the metadata store failed.
        """
        self._client.require_here()
        extent = await log_extent(self._client, self.partition, self._definition, self._password)
        known = self.next_offset
        begin = extent.earliest_offset if known is None else max(known, extent.earliest_offset)
        return max(0, extent.end_offset - begin)

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        return self.records()

    async def records(self) -> AsyncGenerator[LogRecord, None]:
        """Yield the records one by one. Raises the errors of `batches`."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                behind, seeks = self._next_offset, self._seeks
                for record in batch:
                    self._next_offset, self._last = record.offset + 1, record
                    yield record
                    if self._seeks != seeks:
                        break
                else:
                    self._next_offset = behind

    async def batches(self) -> AsyncGenerator[Sequence[LogRecord], None]:
        """Yield batches of records, never an empty batch. Batches are faster than single records.

        Raises:
            LogTruncatedError: the next record was truncated; the error has the earliest offset.
            NoSuchLogError: the log was deleted.
            NoSuchLedgerError: a ledger that the log names does not exist.
            UnauthorizedError: the password is wrong.
            NoSuchEntryError, UnavailableError, CorruptionError: see `ReaderHandle.read`.
            MetadataError: the metadata store failed. A reader that waits for a change of the head
                continues to wait while the store does not answer.
            BadRequestError: another iteration of the reader has not ended.
        """
        async with self._iteration() as watch:
            if self._target is None:
                self._target = self._next_offset
            while isinstance(self._end, AtEntry):
                await self._ranges.refresh()
                end = await self._offset_of_entry(self._end, watch)
                self._end = self._end if end is None else end
            async with aclosing(self._stretches(watch)) as stretches:
                async for found in stretches:
                    if batch := self._taken(found):
                        self._last = batch[-1]
                        self._is_floating = False
                        yield batch

    @asynccontextmanager
    async def _iteration(self) -> AsyncIterator[HeadWatch]:
        self._client.require_here()
        if self._is_iterated:
            raise BadRequestError(f"the reader of {self.partition} is iterated already")
        self._is_iterated = True
        watch = HeadWatch(self._client.logs, self.partition, self._definition.log_id)
        try:
            yield watch
        finally:
            self._is_iterated = False
            await watch.close()

    def _taken(self, found: RunEntries) -> Sequence[LogRecord]:
        """Return the records in the entries, and move `next_offset` after these entries."""
        entries = found.entries
        first = LogPosition(
            found.ledger_id, entries[0].entry_id, found.offset, self.partition.number
        )
        batch = decode_log_records(Entries.of(entries), first)
        self._next_offset = found.offset + len(entries)
        oldest = self._not_before_ms
        if oldest is not None:
            batch = list(dropwhile(lambda record: record.timestamp_ms < oldest, batch))
            if batch:
                self._not_before_ms = None
        return batch

    async def _stretches(self, watch: HeadWatch) -> AsyncGenerator[RunEntries, None]:
        """Yield the entries from the target on; after a seek, continue at the new target."""
        while True:
            runs: Sequence[LedgerRun] = ()
            try:
                if self._has_target():
                    await self._go_to_target(watch)
                    continue
                ranges = await self._ranges.from_offset(self._next_offset)
                runs = self._runs_of(ranges)
                if runs:
                    async with aclosing(self._stretch(runs)) as stretch:
                        async for found in stretch:
                            # Another task may seek during each `await` and during the `yield`.
                            if not self._has_target():
                                yield found
                            if self._has_target():
                                break
                if self._has_target():
                    continue
                if self._is_at_end(runs):
                    return
                if not runs:
                    await self._await_head(watch)
            except LogTruncatedError as error:
                self._skip_truncated(error)
            except NoSuchLedgerError as error:
                await self._after_vanished(error, runs)

    def _has_target(self) -> bool:
        """True if the offset of the next record's place must be found before the next read."""
        return self._target is not None

    @property
    def _known_end(self) -> int | None:
        return self._end if isinstance(self._end, int) else None

    def _runs_of(self, ranges: Sequence[LogRange]) -> Sequence[LedgerRun]:
        """Return the runs of `ranges` from `next_offset` up to, but not including, the end."""
        if self._is_behind_end():
            return ()
        return runs_from(ranges, self._next_offset, self._known_end)

    def _is_behind_end(self) -> bool:
        end = self._known_end
        return end is not None and self._next_offset >= end

    def _is_at_end(self, runs: Sequence[LedgerRun]) -> bool:
        """True if the reader must stop after it has read `runs`."""
        if self._is_behind_end():
            return True
        if self._follow:
            return False
        # If the last run has no end, it was open, and was read up to its LAC.
        return not runs or (
            runs[-1].last_entry_id is None and not self._ranges.has_ended(runs[-1].ledger_id)
        )

    async def _stretch(self, runs: Sequence[LedgerRun]) -> AsyncGenerator[RunEntries, None]:
        is_open = runs[-1].last_entry_id is None
        async with aclosing(read_runs(runs[:-1] if is_open else runs, self._readers)) as closed:
            async for found in closed:
                yield found
        if is_open and not self._has_target():
            async with aclosing(self._open_run(runs[-1])) as batches:
                async for found in batches:
                    yield found

    async def _open_run(self, run: LedgerRun) -> AsyncGenerator[RunEntries, None]:
        """Yield entries of an open range; if its ledger is CLOSED, the caller reads the rest."""
        handle = await self._readers.open(run.ledger_id)
        try:
            last = await handle.refresh()
        except NotEnoughBookiesError:
            if not self._follow:
                raise
            last = handle.last_entry_id  # the tail finds more entries when bookies answer again
        if self._note_end(handle):
            return
        end = self._known_end
        first, offset = run.first_entry_id, run.offset
        if self._follow:
            batches = handle.tail_batches(first)
        elif first <= last:
            batches = handle.read_batches(first, last)
        else:
            return
        async with aclosing(batches):
            while True:
                entries = await self._unless_sought(_next_or_none(batches))
                if entries is None:
                    break
                if end is not None:
                    entries = entries[: end - offset]
                yield RunEntries(run.ledger_id, offset, entries)
                offset += len(entries)
                if end is not None and offset >= end:
                    return
        if self._follow:
            self._note_end(handle)

    def _note_end(self, handle: ReaderHandle) -> bool:
        """Return True if the ledger is CLOSED; then also note the end of its range."""
        if handle.is_closed:
            self._ranges.note_end(handle.ledger_id, handle.last_entry_id)
        return handle.is_closed

    async def _unless_sought(self, coroutine: Coroutine[None, None, T]) -> T | None:
        """Return the result of `coroutine`, or cancel it and return None if a seek comes first."""
        call = Background(self._readers.pool, coroutine, f"reader of {self.partition}")
        self._waker = asyncio.get_running_loop().create_future()
        try:
            if not self._is_sought:
                waits = (call.task, self._waker)
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return await call.result() if call.task.done() else None
        finally:
            self._waker = None
            await call.close()

    async def _await_head(self, watch: HeadWatch) -> None:
        found = await self._unless_sought(watch.next())
        if found is not None:
            self._ranges.adopt(found)

    async def _go_to_target(self, watch: HeadWatch) -> None:
        """Set `_next_offset` to the target's offset; if a seek comes meanwhile, change nothing."""
        self._is_sought = False
        target, seeks = self._target, self._seeks
        assert target is not None
        await self._ranges.refresh()
        offset = await self._offset_of(target, watch)
        if self._seeks == seeks and offset is not None:
            self._next_offset, self._target = offset, None
            self._is_floating = target == "earliest"
            self._not_before_ms = target.timestamp_ms if isinstance(target, AtTime) else None

    async def _offset_of(self, target: Place, watch: HeadWatch) -> int | None:
        match target:
            case "earliest":
                return self._ranges.head.start_offset
            case "latest":
                return await self._end_offset()
            case AtTime(timestamp_ms):
                return await find_time(self._ranges, self._readers, timestamp_ms)
            case AtEntry():
                return await self._offset_of_entry(target, watch)
            case int():
                return target

    async def _end_offset(self) -> int:
        end = await find_end(self._ranges, self._readers)
        return max(end, self._ranges.head.start_offset)

    async def _offset_of_entry(self, target: AtEntry, watch: HeadWatch) -> int | None:
        """Return the offset of an entry; None if a seek came during this search."""
        seeks = self._seeks
        while self._seeks == seeks:
            found = await find_entry(self._ranges, self._readers, target.ledger_id, target.entry_id)
            if found.base_offset is not None:
                return found.base_offset + target.entry_id - found.first_entry_id
            # In the head, the range before `found` is open, but its ledger may be CLOSED.
            before = self._ranges.ranges[-2]
            try:
                if await confirmed_end(before, self._ranges, self._readers) is not None:
                    await self._await_head(watch)
            except NoSuchLedgerError:
                await after_vanished(before.ledger_id, self._ranges, self._readers)
        return None

    def _skip_truncated(self, error: LogTruncatedError) -> None:
        """Move to the earliest record, or raise `error` if the reader must not skip records."""
        # The record of a target entry may still exist: a compaction may have copied it to another
        # ledger.
        if isinstance(self._target, AtEntry) or not (self._skips or self._is_floating):
            raise error
        if self._skips:
            _log.warning(
                "log_records_skipped",
                partition=str(self.partition),
                next_offset=self.next_offset,
                earliest_offset=error.earliest_offset,
            )
        if self._target is None:
            self._next_offset = error.earliest_offset
        else:
            self._target = "earliest"

    async def _after_vanished(self, error: NoSuchLedgerError, runs: Sequence[LedgerRun]) -> None:
        """Read the newest head; raise `error` if this head still names the missing ledger."""
        # The reader has already delivered the entries of earlier ledgers.
        gone = [run.ledger_id for run in runs if run.offset <= self._next_offset][-1:]
        self._readers.forget()
        await self._ranges.refresh()
        if not gone or await self._next_ledger() == gone[0]:
            await self._ranges.require_log()
            raise error

    async def _next_ledger(self) -> int | None:
        try:
            ranges = await self._ranges.from_offset(self._next_offset)
        except LogTruncatedError:
            return None
        return ranges[0].ledger_id if ranges else None


async def _next_or_none(batches: AsyncIterator[T]) -> T | None:
    return await anext(batches, None)
