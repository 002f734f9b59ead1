"""The streaming source, which reads the micro-batches between two offsets.

Spark keeps the offsets. As long as a query runs, one process of the driver has a `LogStreamReader`
for the query.

**The first batch is empty.** Spark does not keep the start offsets of a new query. If the first
batch had records and failed, the query would start again. A query with the start ``latest`` would
then skip the records since its first start. So this source reports the start offsets as the end of
the first batch. Spark stores these offsets with an empty batch, and later batches have the records.

**Logs with the same name.** Offsets contain the id of the log. A log that was deleted and created
again has another id. If the end offsets of a batch have the new id, the batch begins at the new
log's earliest record.

**Waiting.** Spark asks for the latest offset repeatedly. If there is no new record, the source
waits up to two seconds for a record before the source answers. Bookies or the metadata store report
a new record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

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
from bookie.errors import NoSuchLogError
from bookie.spark.batch_source import LogSplit, plan, read_split, remaining_spans
from bookie.spark.loss import lose, lose_deleted, lose_made_anew
from bookie.spark.patience import patiently, pause
from bookie.spark.read_bounds import resolve
from bookie.spark.selection import LogSelection, Surveys, survey
from bookie.spark.source_options import LogSource
from bookie.spark.stream_offsets import (
    LogOffsets,
    StreamOffset,
    as_json,
    begins_of,
    from_json,
    limited,
    rows_between,
)

T = TypeVar("T")

Given = Mapping[str, Mapping[str, int | str]]
Kept = dict[str, dict[str, int | str]]
"""Offsets in the JSON form that Spark keeps."""

POLL_SECONDS = 2.0
"""The seconds for which a stream waits for a new record before Spark asks again."""

GATHER_SECONDS = 0.2
"""The pause between two surveys while a batch waits for more records, in seconds."""

PATTERN_SECONDS = 1.0
"""The pause between two listings while no log matches the pattern, in seconds."""

BEHIND_SECONDS = 60.0
"""If a partition ends below the query's offset for so many seconds, records count as lost."""

BEHIND_PAUSE_SECONDS = 1.0
"""The pause, in seconds, between two surveys while a partition ends below the query's offset."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of the logs at one moment, for one batch of a stream."""

    surveys: Surveys
    begins: LogOffsets
    """The offsets where the batch begins; new partitions and re-created logs are omitted."""
    end: StreamOffset
    """The offsets where the batch ends, if there is no limit."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, source: LogSource) -> None:
        self.source = source
        self._initial: StreamOffset | None = None
        self._is_pinned = False
        self._behind_since: dict[tuple[str, int], float] = {}
        """By partition, the time when the partition's end was first seen below the read offset."""
        self._target: StreamOffset | None = None
        """The offsets where a query with the trigger ``availableNow`` ends, or None."""
        self._ends: StreamOffset | None = None
        """The last known ends of the partitions."""
        self._due_at: float | None = SystemClock.monotonic()
        """The time at which waiting records become a batch, even if the records are few.

        None while no record waits.

        Records that wait when the query starts may be old, so these records become a batch at once.
        """

    # ---- in the driver

    def initialOffset(self) -> Kept:
        """Return the offsets where a new query begins.

        All calls on one object return the same offsets.

        Raises:
            NoSuchLogError: a named log does not exist.
        """
        if self._initial is None:
            self._initial = _patiently(self._find_start)
        return as_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end after the records that exist now."""
        self._target = _patiently(lambda: self._look_at_ends(self._survey()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`: on rows if set, else on bytes.

        This source itself applies the other limits of `BatchLimits`.
        """
        limits = self.source.batch_limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Given, limit: ReadLimit) -> Kept:
        """Return the offsets where the next batch ends.

        Raises:
            LogTruncatedError: a log was deleted, or created again, and `failOnDataLoss` is set.
        """
        begin = from_json(start)
        if begin == self._initial and not self._is_pinned:
            self._is_pinned = True
            return as_json(begin)
        return as_json(_patiently(lambda: self._end_of_batch(begin, limit)))

    def reportLatestOffset(self) -> Kept | None:
        """Return the last known ends of the logs, from which Spark computes the lag."""
        return None if self._ends is None else as_json(self._ends)

    def partitions(self, start: Given, end: Given) -> Sequence[InputPartition]:
        """Return the tasks of a batch; a repeated batch has the same records.

        `start` and `end` alone decide which records are read. So a batch also reads logs that the
        options no longer name.

        Raises:
            LogTruncatedError: some records are lost, and `failOnDataLoss` is set.
        """
        last = from_json(end)
        begins = begins_of(from_json(start), last)
        behind = {key: to for key, to in last.offsets.items() if begins.get(key, 0) < to}
        if not behind:
            return []
        return _patiently(lambda: self._tasks(begins, StreamOffset(behind, last.log_ids)))

    def commit(self, end: Given) -> None:
        """Do nothing, because Spark itself stores the offsets."""

    def stop(self) -> None:
        """Do nothing, because other queries of the process use the same client."""

    # ---- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self.source, partition)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source}  # a task needs only the source

    # ---- inside

    def _survey(self, selection: LogSelection | None = None) -> Surveys:
        connection = self.source.connection
        chosen = self.source.selection if selection is None else selection
        return survey(connection.client(), chosen, connection.password())

    def _find_start(self) -> StreamOffset:
        surveys = self._survey()
        surveys.require_named()
        return StreamOffset(resolve(self.source.start, surveys), surveys.log_ids())

    def _tasks(self, begins: LogOffsets, end: StreamOffset) -> list[LogSplit]:
        surveys = self._survey(LogSelection(tuple(end.logs())))
        ends = self._still_there(end, surveys)
        # Partitions that are new in this batch are read from their beginning.
        new = {key: surveys.bounds()[key][0] for key in ends.keys() - begins.keys()}
        return plan(self.source, surveys, begins | new, ends)

    def _end_of_batch(self, begin: StreamOffset, limit: ReadLimit) -> StreamOffset:
        look = self._look(begin)
        if self._target is None and (look.end == begin or self._is_too_little(begin, look)):
            self._await_records(look)
            look = self._look(begin)
            if self._is_too_little(begin, look):
                return begin
        while look.end == begin and self._target is not None and self._behind_since:
            # Some records may be lost. Without this loop, the query would end now, without a report
            # of the loss.
            pause(BEHIND_PAUSE_SECONDS)
            look = self._look(begin)
        self._due_at = None
        return self._within(look, limit)

    def _is_too_little(self, begin: StreamOffset, look: Look) -> bool:
        """True if a batch has too few records, and must still wait for more."""
        limits, now = self.source.batch_limits, SystemClock.monotonic()
        end = look.end.offsets
        starts = _starts(look)
        rows = rows_between(starts, end)
        if not rows:
            self._due_at = None
        elif self._due_at is None:
            self._due_at = now + limits.delay_seconds
        if limits.rows_min is None or self._due_at is None or now >= self._due_at:
            return False
        # If a log was deleted or lost records, do not wait: a batch at once reports the loss.
        is_whole = all(
            key in look.begins and starts[key] <= offset <= end.get(key, -1)
            for key, offset in begin.offsets.items()
        )
        return is_whole and rows < limits.rows_min

    def _await_records(self, look: Look) -> None:
        """Wait for a new record of a known log, at most `POLL_SECONDS` and until `_due_at`.

        This method does not wait for new logs; `_look` finds new logs.
        """
        known = look.surveys.bounds()
        begin = {key: at for key, at in look.end.offsets.items() if key in known}
        if not begin:
            pause(PATTERN_SECONDS)
            return
        connection = self.source.connection
        seconds = POLL_SECONDS
        if self._due_at is not None:
            seconds = min(seconds, max(0.0, self._due_at - SystemClock.monotonic()))
        with suppress(NoSuchLogError):  # the next `_look` reports the missing log
            connection.client().await_records(
                begin, password=connection.password(), timeout_seconds=seconds
            )
        # More records usually follow, and each `_look` costs a call to the bookies.
        if self._due_at is not None:
            pause(min(seconds, GATHER_SECONDS))

    def _look(self, begin: StreamOffset) -> Look:
        """Read the logs' state, and find where a batch from `begin` would end without limits."""
        surveys = self._survey()
        begins = self._still_there(begin, surveys)
        if self.source.fail_on_data_loss:
            surveys.require_named()
        ends = targets = self._look_at_ends(surveys).offsets
        if self._target is not None:
            targets = self._still_there(self._target, surveys)
            self._target = StreamOffset(targets, self._target.log_ids)
        lost = self._lost_ends(begin, begins, ends)
        anew = {log for log, _ in lost} - begin.log_ids.keys()
        begins = {key: offset for key, offset in begins.items() if key[0] not in anew}
        end = begins | {key: max(to, begins.get(key, 0)) for key, to in targets.items()}
        end |= {key: ends[key] for key in lost if key in begins}
        ids = dict(begin.log_ids) | surveys.log_ids()
        for log, _ in self._behind_since.keys() - lost:
            if log not in begin.log_ids:
                ids.pop(log, None)  # the name may belong to another log
        logs = {log for log, _ in end}
        return Look(
            surveys, begins, StreamOffset(end, {log: ids[log] for log in logs & ids.keys()})
        )

    def _look_at_ends(self, surveys: Surveys) -> StreamOffset:
        ends = {key: end for key, (_, end) in surveys.bounds().items()}
        self._ends = StreamOffset(ends, surveys.log_ids())
        return self._ends

    def _still_there(self, at: StreamOffset, surveys: Surveys) -> LogOffsets:
        """Return the offsets in `at`, without logs that were deleted or created again.

        The result includes the offsets of logs that the options no longer select. If the options
        select a log again later, the query continues at the log's offset in `at`.
        """
        lost = set()
        for log in filter(surveys.selection.has, at.logs()):
            if log not in surveys.by_log:
                lose_deleted(self.source, log)
            elif at.is_other(log, surveys.by_log[log].definition):
                lose_made_anew(self.source, f"the log {log} was deleted and made anew")
            else:
                continue
            lost.add(log)
        return {key: offset for key, offset in at.offsets.items() if key[0] not in lost}

    def _lost_ends(
        self, begin: StreamOffset, begins: LogOffsets, ends: LogOffsets
    ) -> set[tuple[str, int]]:
        """Return the partitions whose end has been below the query's offset for `BEHIND_SECONDS`.

        A partition can seem too short for a time, if the bookies that know its end are unavailable.
        After `BEHIND_SECONDS`, its last records count as lost. If `begin` has no id of the log, the
        log then counts as deleted and created again.
        """
        now, since = SystemClock.monotonic(), self._behind_since
        behind = {key for key, offset in begins.items() if ends.get(key, offset) < offset}
        self._behind_since = {key: since.get(key, now) for key in behind}
        lost = {key for key in behind if now - self._behind_since[key] >= BEHIND_SECONDS}
        for log, number in sorted(lost):
            at, end = begins[log, number], ends[log, number]
            what = f"partition {number} of {log} ends at {end} and was read up to {at}"
            if log in begin.log_ids:
                lose(self.source, f"{what}: its last records are lost", "go on at its end")
            else:
                lose_made_anew(self.source, f"{what}: the log was deleted and made anew")
        return lost

    def _within(self, look: Look, limit: ReadLimit) -> StreamOffset:
        surveys, end = look.surveys, look.end.offsets
        if isinstance(limit, ReadAllAvailable):
            return look.end
        starts = _starts(look)
        if isinstance(limit, ReadMaxRows):
            end = limited(starts, end, limit.max_rows)
        size = self.source.batch_limits.bytes_max
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if size is not None:
            waiting_bytes = _bytes_between(starts, end, surveys)
            if waiting_bytes > size:
                end = limited(starts, end, rows_between(starts, end) * size // waiting_bytes)
        return StreamOffset(end, look.end.log_ids)


def _starts(look: Look) -> LogOffsets:
    """Return the offset of the first record that a batch can read, by partition.

    The limits of a batch count the records from this offset on. Otherwise a stream that lags far
    behind would make many empty batches of truncated records, and never reach the earliest record.
    """
    earliest = {key: offset for key, (offset, _) in look.surveys.bounds().items()}
    return earliest | {key: max(at, earliest.get(key, 0)) for key, at in look.begins.items()}


def _bytes_between(start: LogOffsets, end: LogOffsets, surveys: Surveys) -> int:
    total = 0
    for (log, partition), last in end.items():
        if start[log, partition] < last:  # only selected logs have records here
            spans = remaining_spans(surveys.by_log[log], partition, start[log, partition], last)
            total += sum(one.size_bytes for one in spans)
    return total


def _patiently(look: Callable[[], T]) -> T:
    """Return the result of `look`; call `look` again after a temporary error.

    If a log is deleted while `look` runs, call `look` again without a pause. The second call then
    handles the deletion, because it reads the state of the logs again.

    Raises:
        BookieError: an error of `look` that is not temporary, or that lasts too long for
            `patiently`.
    """

    def twice() -> T:
        with suppress(NoSuchLogError):
            return look()
        return look()

    return patiently(twice)
