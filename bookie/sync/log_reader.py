"""Readers of logs without an event loop. They read ahead, and know the caller's place."""

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

    Iterate it, or its `batches`, in one thread at a time. The next loop begins with the record
    after the last one, also after an error. Batches are read ahead; `position`, `lag` and `seek`
    count only records that the caller was given. It ends with `close`, at the end of its `with`
    block, or when it is dropped.
    """

    def __init__(
        self, home: LoopThread, reader: LogReader | PartitionsReader, timeout: float | None
    ) -> None:
        """`timeout` bounds each wait for records."""
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
        """The id of the log that it reads."""
        return self._reader.log_id

    @property
    def position(self) -> LogPosition | None:
        """The position of the record that was given out last; None before the first one."""
        last = self._given.last
        return None if last is None else last.position

    def __iter__(self) -> Iterator[LogRecord]:
        """The records one by one; errors are those of `LogReader.batches`.

        With a timeout, OperationTimeoutError says that no record came for so long. The next loop
        waits again.
        """
        return iter(self._given)

    def batches(self) -> Iterator[Sequence[LogRecord]]:
        """The records, some at a time, for speed; no batch is empty."""
        return self._given.batches()

    def seek(
        self, to: LogStart = None, *, time: Moment | None = None, partition: int | None = None
    ) -> None:
        """Go on with the record at `to`, also in a running loop; see `LogReader.seek`.

        Raises:
            BadRequestError: `to` is no place in a log, or there is no such partition.
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
        """Entries that the caller was not given yet; see `LogReader.lag`."""
        return self._run(self._find_lag(), timeout)

    async def _find_lag(self) -> int:
        behind_read_ahead = await self._reader.lag()
        waiting = () if self._batches is None else self._batches.waiting
        return behind_read_ahead + sum(map(len, waiting)) + len(self._given.rest)

    def close(self) -> None:
        """Stop reading; loops over it end. Closing twice has no effect."""
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
        """Stop reading ahead, and go back to the caller's place."""
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
