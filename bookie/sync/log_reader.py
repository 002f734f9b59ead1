"""Readers of logs for callers without an event loop; a reader fetches records in advance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookie.env import Moment
from bookie.errors import BadRequestError
from bookie.log.read.partitions_reader import PartitionsReader
from bookie.log.read.reader import LogReader
from bookie.log.read.start_position import LogStart
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.sync.given_records import GivenRecords
from bookie.sync.handles import BATCHES_AHEAD, SyncHandle
from bookie.sync.iterator import Pump
from bookie.sync.loop_thread import Closing, LoopThread, check_timeout


class SyncLogReader(SyncHandle, Closing):
    """A reader of a log without an event loop; made by `SyncBookKeeper.log_reader`.

    Only one thread at a time may iterate over the reader or its `batches`. A new loop begins after
    the record that was given out last, even after an error. The reader fetches batches in advance.
    `position`, `lag` and `seek` count only records that the caller has received. Reading ends with
    `close`, at the end of the `with` block, or when the reader is garbage collected.
    """

    def __init__(
        self, home: LoopThread, reader: LogReader | PartitionsReader, timeout: float | None
    ) -> None:
        """`timeout` limits each wait for records."""
        super().__init__(home)
        check_timeout(timeout)
        self._reader = reader
        self._timeout = timeout
        self._batches: Pump[Sequence[LogRecord]] | None = None
        self._given = GivenRecords(self._fetch)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SyncLogReader {self._reader!r}>"

    def __del__(self) -> None:
        batches: Pump[Sequence[LogRecord]] | None = getattr(self, "_batches", None)
        if batches is not None:
            batches.cancel()

    @property
    def log_id(self) -> str:
        return self._reader.log_id

    @property
    def position(self) -> LogPosition | None:
        """The position of the record that was given out last; None before the first record."""
        last = self._given.last
        return None if last is None else last.position

    def __iter__(self) -> Iterator[LogRecord]:
        """Yield the records one by one; errors are those of `LogReader.batches`.

        With a timeout, `next` raises OperationTimeoutError if no record came within that time. A
        new loop over the reader then waits again.
        """
        return iter(self._given)

    def batches(self) -> Iterator[Sequence[LogRecord]]:
        """Yield the records in batches, which is faster than one by one; no batch is empty."""
        return self._given.batches()

    def seek(
        self, to: LogStart = None, *, time: Moment | None = None, partition: int | None = None
    ) -> None:
        """Continue with the record at `to`, even in a running loop; see `LogReader.seek`.

        Raises:
            BadRequestError: `to` is not a valid place, or the reader does not read this partition.
        """
        self._home.require_caller()
        self._put_back()
        if isinstance(self._reader, PartitionsReader):
            self._reader.seek(to, time=time, partition=partition)
        elif partition in (None, self._reader.partition.number):
            self._reader.seek(to, time=time)
        else:
            raise BadRequestError(f"{self._reader.partition} alone is read, not {partition}")

    def lag(self, *, timeout: float | None = None) -> int:
        """Count the entries of the log that were not given out yet; see `LogReader.lag`."""
        return self._run(self._find_lag(), timeout)

    async def _find_lag(self) -> int:
        behind_read_ahead = await self._reader.lag()
        waiting = () if self._batches is None else self._batches.waiting
        return behind_read_ahead + sum(map(len, waiting)) + len(self._given.rest)

    def close(self) -> None:
        """Stop reading and end all loops over the reader; a second call does nothing."""
        self._is_closed = True
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.stop()
        self._given.drop_rest()

    def _fetch(self) -> Sequence[LogRecord]:
        if self._is_closed:
            raise StopIteration
        if self._batches is None:
            self._batches = self._pump(self._reader.batches(), BATCHES_AHEAD, self._timeout)
        batches = self._batches
        try:
            return next(batches)
        finally:
            if batches.is_spent:
                self._batches = None

    def _put_back(self) -> None:
        """Stop reading in advance; seek to the first record that the caller has not received."""
        batches, self._batches = self._batches, None
        unread = [self._given.drop_rest(), *(() if batches is None else batches.stop())]
        firsts: dict[int, int] = {}
        for batch in unread:
            for record in batch[:1]:
                firsts.setdefault(record.partition, record.offset)
        for partition, offset in firsts.items():
            if isinstance(self._reader, PartitionsReader):
                self._reader.seek(offset, partition=partition)
            else:
                self._reader.seek(offset)
