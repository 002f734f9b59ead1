"""Writers, publishers, cursors and surveys of logs, for callers without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import BookieError
from bookie.ledger.connection.arguments import Payload
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.log.consume.cursors import Cursors
from bookie.log.publish.publisher import LogPublisher
from bookie.log.publish.range_writer import PendingRange, RangeWriter
from bookie.log.read.survey import LogSurvey
from bookie.log.record.log_record import NO_HEADERS, LogPosition
from bookie.log.record.positions import LogPositions
from bookie.log.record.record_encoder import NewRecord, checked_records
from bookie.log.write.writer import LogWriter
from bookie.sync.forwarding import Shown, forwarded, shown
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import Closing, LoopThread


class SyncLogWriter(SyncHandle):
    """`bookie.api.LogWriter` without an event loop; made by `SyncBookKeeper.open_log`.

    The end of a `with` block closes the log. Errors are those of the async writer. If several
    threads append, the event loop decides the order of the records.
    """

    def __init__(self, home: LoopThread, handle: LogWriter) -> None:
        super().__init__(home)
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncLogWriter {self._handle!r}>"

    name: Shown[str] = shown(LogWriter.name)
    partitions: Shown[Sequence[int]] = shown(LogWriter.partitions)
    error: Shown[BookieError | None] = shown(LogWriter.error)

    def next_offset(self, partition: int | None = None) -> int:
        """Return the offset that the next entry of a partition would get now."""
        return self._handle.next_offset(partition)

    def epoch(self, partition: int | None = None) -> int:
        """Return the fencing token of this writer; every former owner had a smaller token."""
        return self._handle.epoch(partition)

    def append(
        self,
        value: Payload,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] = NO_HEADERS,
        timestamp: Moment | None = None,
        producer: tuple[str, int] | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> LogPosition:
        """Append one record and return its position; see `LogWriter.append`.

        Each call waits until its record is durable, so `append_many` is faster for many records.
        """
        appending = self._handle.append(
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            producer=producer,
            partition=partition,
        )
        return self._run(appending, timeout)

    def append_many(
        self,
        records: Iterable[Payload | NewRecord],
        *,
        producer: tuple[str, int] | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> LogPositions:
        """Append many records in order and return their positions; see `LogWriter.append_many`."""
        # The iterable may block, so the caller's thread reads it.
        appending = self._handle.append_many(
            checked_records(records), producer=producer, partition=partition
        )
        return self._run(appending, timeout)

    def roll(self, *, timeout: float | None = None) -> None:
        """Begin a new ledger in each partition; see `LogWriter.roll`."""
        self._run(self._handle.roll(), timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Wait for pending appends, then end the ownership of the log; see `LogWriter.close`."""
        self._run(self._handle.close(), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._handle.__aexit__(exc_type, exc, traceback))


class SyncRangeWriter(SyncHandle, Closing):
    """`bookie.api.RangeWriter` without an event loop; made by `SyncBookKeeper.open_range_writer`.

    The end of a `with` block closes the ledger. Ranges that `cut` has returned can still be
    published after the block.
    """

    def __init__(self, home: LoopThread, handle: RangeWriter) -> None:
        super().__init__(home)
        self._handle = handle

    def append(
        self,
        value: Payload,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: Moment | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write one record; see `RangeWriter.append`."""
        appending = self._handle.append(value, key=key, headers=headers, timestamp=timestamp)
        self._run(appending, timeout)

    def append_many(
        self, records: Iterable[Payload | NewRecord], *, timeout: float | None = None
    ) -> int:
        """Write records in order, and return their number; see `RangeWriter.append_many`."""
        return self._run(self._handle.append_many(checked_records(records)), timeout)

    def append_encoded(self, payloads: list[bytes], greatest_ms: int) -> Future[None]:
        """Write encoded records without waiting; see `RangeWriter.append_encoded`.

        The returned future completes when the records are durable. The caller must limit the number
        of incomplete futures. `cut` waits for all futures.
        """
        self._home.require_caller()
        appending = self._handle.append_encoded(payloads, greatest_ms)
        return asyncio.run_coroutine_threadsafe(appending, self._home.loop)

    def cut(self, *, timeout: float | None = None) -> PendingRange | None:
        """End the range and return it; see `RangeWriter.cut`."""
        return self._run(self._handle.cut(), timeout)

    def discard(self) -> None:
        """Drop the records since the last `cut`, so that appends work again after an error."""
        self._handle.discard()

    def close(self, *, timeout: float | None = None) -> None:
        """Close the ledger, and drop the records since the last `cut`.

        A second call does nothing.
        """
        self._run(self._handle.aclose(), timeout)


class SyncLogPublisher(SyncHandle):
    """`bookie.api.LogPublisher` without an event loop; made by `SyncBookKeeper.publisher`."""

    def __init__(self, home: LoopThread, handle: LogPublisher) -> None:
        super().__init__(home)
        self._handle = handle

    definition = forwarded(LogPublisher.definition)
    bounds = forwarded(LogPublisher.bounds)
    last_batch = forwarded(LogPublisher.last_batch)

    @checked
    def publish(self, application_id: str, batch: int, ranges: Iterable[PendingRange]) -> bool:
        """Publish a batch exactly once; see `LogPublisher.publish`.

        After Ctrl-C the outcome is unknown: publish the same batch again.
        """
        return self._run(self._handle.publish(application_id, batch, ranges))

    forget = forwarded(LogPublisher.forget)

    @checked
    def abort(self, ranges: Iterable[PendingRange]) -> list[int]:
        """Delete the ledgers of ranges that will not be published; see `LogPublisher.abort`."""
        return self._run(self._handle.abort(ranges))


class SyncCursors(SyncHandle):
    """`bookie.api.Cursors` without an event loop; made by `SyncBookKeeper.cursors`."""

    def __init__(self, home: LoopThread, handle: Cursors) -> None:
        super().__init__(home)
        self._handle = handle

    create = forwarded(Cursors.create)
    commit = forwarded(Cursors.commit)
    reset = forwarded(Cursors.reset)
    protect = forwarded(Cursors.protect)
    delete = forwarded(Cursors.delete)
    all = forwarded(Cursors.all)
    status = forwarded(Cursors.status)
    lag = forwarded(Cursors.lag)


class SyncLogSurvey(SyncHandle):
    """`bookie.log.read.survey.LogSurvey` without an event loop; made by `survey_log`."""

    def __init__(self, home: LoopThread, handle: LogSurvey) -> None:
        super().__init__(home)
        self._handle = handle

    @property
    def definition(self) -> LogDefinition:
        return self._handle.definition

    def bounds(self, *, timeout: float | None = None) -> Sequence[tuple[int, int]]:
        """Return each partition's earliest offset and end offset; see `LogSurvey.bounds`."""
        return self._run(self._handle.bounds(), timeout)

    locate = forwarded(LogSurvey.locate)
    spans = forwarded(LogSurvey.spans)
