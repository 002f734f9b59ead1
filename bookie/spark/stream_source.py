"""The streaming source: micro-batches between offsets that Spark keeps.

One process of the driver has one `LogStreamReader` for as long as the query runs.

**The first batch is pinned.** Spark does not keep where a new query starts. If its first batch
failed, the query would start again at another ``latest``, and records between the two would be
lost. So the first offset that this source reports is the start itself. Spark keeps it with an empty
batch, and all records come in later ones.

**Waiting.** Spark asks for the latest offset again and again. When there is nothing new, the answer
waits until the bookies or the metadata store tell of a record, for two seconds at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bookie.env import SystemClock
from bookie.errors import LogTruncatedError, NoSuchLogError
from bookie.spark.batch_source import LogSplit, plan, read_split
from bookie.spark.patience import patiently, pause
from bookie.spark.places import resolve
from bookie.spark.selection import Surveys, survey
from bookie.spark.source_options import LogSource
from bookie.spark.stream_offsets import LogOffsets, as_json, from_json, limited, rows_between

Offsets = Mapping[str, Mapping[str, int]]
"""As Spark keeps them."""

POLL_SECONDS = 2.0
"""How long a stream waits for a record before Spark asks again."""

GATHER_SECONDS = 0.2
"""Between two looks while a batch waits for more records."""

PATTERN_SECONDS = 1.0
"""Between two looks at a pattern that matches nothing yet."""

BEHIND_SECONDS = 60.0
"""A partition that ends before what was read of it for so long is another one."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self._initial: LogOffsets | None = None
        self._is_pinned = False
        self._log_ids: dict[str, str] = {}
        """Tells a log from a later one of the same name."""
        self._behind_since: dict[tuple[str, int], float] = {}
        """When a partition was first seen to end before what was read of it."""
        self._target: LogOffsets | None = None
        """Where a query of ``availableNow`` ends."""
        self._ends: LogOffsets | None = None
        """Where the partitions ended at the last look."""
        self._due_at: float | None = SystemClock.monotonic()
        """When waiting records become a batch, however few; None while none waits.

        What waits when the query starts may have waited for long, so it is due at once.
        """

    # ---- in the driver

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Where a new query starts; always the same in one run."""
        if self._initial is None:
            self._initial = patiently(lambda: resolve(self.source.start, self._survey()))
        return as_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        """End with what is there now."""
        self._target = patiently(lambda: self._look_at_ends(self._survey()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say. Spark takes one limit; the others are kept by this source."""
        limits = self.source.batch_limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Where the next batch ends."""
        begin = from_json(start)
        if begin == self._initial and not self._is_pinned:
            self._is_pinned = True
            return as_json(begin)
        return as_json(patiently(lambda: self._end_of_batch(begin, limit)))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """Where the logs ended when they were last looked at, for the lag of the query."""
        return None if self._ends is None else as_json(self._ends)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks of a batch; a batch that is repeated has the same records.

        Raises:
            LogTruncatedError: some of them are lost, and `failOnDataLoss` is set.
        """
        first, last = from_json(start), from_json(end)
        if not any(first.get(key, 0) < offset for key, offset in last.items()):
            return []
        return patiently(lambda: self._tasks(first, last))

    def commit(self, end: Offsets) -> None:
        """Nothing: Spark keeps the offsets."""

    def stop(self) -> None:
        """Nothing: the client belongs to the process."""

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a split."""
        return read_split(self.source, partition)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source}  # tasks need no more

    # ---- inside

    def _survey(self) -> Surveys:
        connection = self.source.connection
        return survey(connection.client(), self.source.selection, connection.password())

    def _tasks(self, start: LogOffsets, end: LogOffsets) -> list[LogSplit]:
        surveys = self._survey()
        known = self._without_deleted(end, surveys)
        # Partitions that Spark saw for the first time in this batch are read from their beginning.
        new = {key: surveys.bounds()[key][0] for key in known.keys() - start.keys()}
        return [LogSplit(one) for one in plan(self.source, surveys, start | new, known)]

    def _end_of_batch(self, begin: LogOffsets, limit: ReadLimit) -> LogOffsets:
        surveys, end = self._look(begin)
        if self._target is None and (self._is_too_little(begin, end, surveys) or end == begin):
            self._await_records(end)
            surveys, end = self._look(begin)
            if self._is_too_little(begin, end, surveys):
                return begin
        self._due_at = None
        return self._within(begin, end, limit, surveys)

    def _is_too_little(self, begin: LogOffsets, end: LogOffsets, surveys: Surveys) -> bool:
        """Whether a batch is put off: records are fewer than it needs, and none waited too long."""
        limits, now = self.source.batch_limits, SystemClock.monotonic()
        rows = rows_between(self._starts(begin, surveys), end)
        if not rows:
            self._due_at = None
        elif self._due_at is None:
            self._due_at = now + limits.delay_seconds
        if limits.rows_min is None or self._due_at is None or now >= self._due_at:
            return False
        # A partition that ends earlier than before has lost records, which is told at once.
        is_whole = all(offset <= end.get(key, -1) for key, offset in begin.items())
        return is_whole and rows < limits.rows_min

    def _await_records(self, begin: LogOffsets) -> None:
        """Wait for a record, or until waiting ones are due; the next look sees new logs."""
        if not begin:
            pause(PATTERN_SECONDS)
            return
        connection = self.source.connection
        seconds = POLL_SECONDS
        if self._due_at is not None:
            seconds = min(seconds, max(0.0, self._due_at - SystemClock.monotonic()))
        with suppress(NoSuchLogError):  # the next look tells
            connection.client().await_records(
                begin, password=connection.password(), timeout_seconds=seconds
            )
        if self._due_at is not None:  # further records come; each look costs a call to the bookies
            pause(min(seconds, GATHER_SECONDS))

    def _look(self, begin: LogOffsets) -> tuple[Surveys, LogOffsets]:
        """The logs, and where they end."""
        surveys = self._survey()
        ends = self._look_at_ends(surveys)
        end = self._without_deleted(
            begin | (ends if self._target is None else self._target), surveys
        )
        made_anew = self._made_anew(surveys)
        for key, offset in begin.items():
            if key[0] in made_anew:
                end[key] = ends[key]
            elif key in end and end[key] < offset:
                end[key] = self._end_behind(key, offset, end[key])
            else:
                self._behind_since.pop(key, None)
        return surveys, end

    def _look_at_ends(self, surveys: Surveys) -> LogOffsets:
        self._ends = {key: end for key, (_, end) in surveys.bounds().items()}
        return self._ends

    def _without_deleted(self, offsets: LogOffsets, surveys: Surveys) -> LogOffsets:
        for log in sorted({log for log, _ in offsets} - surveys.by_log.keys()):
            self._lose(f"the log {log} was deleted")
        return {key: offset for key, offset in offsets.items() if key[0] in surveys.by_log}

    def _made_anew(self, surveys: Surveys) -> set[str]:
        """The logs that were deleted and made anew since the last look."""
        found: set[str] = set()
        for log, one in surveys.by_log.items():
            log_id = one.definition.log_id
            if self._log_ids.setdefault(log, log_id) != log_id:
                self._lose(f"the log {log} was deleted and made anew")
                self._log_ids[log] = log_id
                found.add(log)
        return found

    def _end_behind(self, key: tuple[str, int], offset: int, end: int) -> int:
        """Where a partition ends that seems to end before what was read of it.

        The bookies that know its end may be away. If that lasts, the log was made anew.
        """
        now = SystemClock.monotonic()
        if now - self._behind_since.setdefault(key, now) < BEHIND_SECONDS:
            return offset
        self._lose(
            f"partition {key[1]} of {key[0]} ends at {end} and was read up to {offset}: "
            f"the log was deleted and made anew"
        )
        return end

    def _within(
        self, begin: LogOffsets, end: LogOffsets, limit: ReadLimit, surveys: Surveys
    ) -> LogOffsets:
        """The end of the batch, such that it keeps the limits."""
        if isinstance(limit, ReadAllAvailable):
            return end
        starts = self._starts(begin, surveys)
        if isinstance(limit, ReadMaxRows):
            end = limited(starts, end, limit.max_rows)
        size = self.source.batch_limits.bytes_max
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if size is not None:
            waiting_bytes = self._bytes_between(starts, end, surveys)
            if waiting_bytes > size:
                end = limited(starts, end, rows_between(starts, end) * size // waiting_bytes)
        return end

    def _starts(self, begin: LogOffsets, surveys: Surveys) -> LogOffsets:
        """Where a batch begins; partitions that are new begin at their earliest record."""
        return {key: earliest for key, (earliest, _) in surveys.bounds().items()} | begin

    def _bytes_between(self, start: LogOffsets, end: LogOffsets, surveys: Surveys) -> int:
        total = 0
        for (log, partition), last in end.items():
            first = max(start[log, partition], surveys.bounds()[log, partition][0])
            if first < last:
                spans = surveys.by_log[log].spans(partition, first, last)
                total += sum(one.size_bytes for one in spans)
        return total

    def _lose(self, what: str) -> None:
        if self.source.fail_on_data_loss:
            raise LogTruncatedError(f"{what}; set failOnDataLoss to false to go on without it")
