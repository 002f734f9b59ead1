"""The batch source: reads ranges of logs, or ledgers.

The range of a read is determined once, when Spark plans the data frame. All actions on that data
frame read the same range. A data frame that is loaded again includes later records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bookie.errors import LogTruncatedError, NoSuchLogError
from bookie.spark.columns import LedgerBatches, LogBatches, joined
from bookie.spark.ledger_reading import find_ledgers, require_named
from bookie.spark.loss import lose, lose_deleted, lose_made_anew, telling_of_loss
from bookie.spark.read_bounds import resolve
from bookie.spark.selection import Surveys, survey
from bookie.spark.source_options import READ_SECONDS_MAX, LedgerSource, LogSource
from bookie.spark.splits import LogSlice, cut, cut_ids, task_bytes
from bookie.spark.stream_offsets import LogOffsets

if TYPE_CHECKING:
    from bookie.log.read.survey import LogSpan
    from bookie.sync import SyncLogReader, SyncLogSurvey


@dataclass
class LogSplit(InputPartition):
    """One task's part of a log."""

    slice: LogSlice
    log_id: str
    """The id of the log when the read was planned; a later log of the same name has another id."""


@dataclass
class LedgerSplit(InputPartition):
    """One task's part of a ledger."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int


class LogBatchReader(DataSourceReader):
    """Reads logs; Spark's planner makes a reader, and each task gets a copy of the reader."""

    def __init__(self, source: LogSource) -> None:
        self.source = source

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the logs into splits, one for each task.

        Raises:
            BadRequestError: the begin or the end of the read is invalid.
            LogTruncatedError: records of the range were truncated, and `failOnDataLoss` is set.
            BookieError: the sizes and bounds of a log cannot be read.
        """
        source = self.source
        assert source.end is not None, "a batch has an end"
        client, password = source.connection.client(), source.connection.password()
        surveys = survey(client, source.selection, password)
        surveys.require_named()
        start, end = resolve(source.start, surveys), resolve(source.end, surveys)
        return plan(source, surveys, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a split, in a task; the read fences no ledger and writes nothing."""
        return read_split(self.source, partition)


def plan(source: LogSource, surveys: Surveys, start: LogOffsets, end: LogOffsets) -> list[LogSplit]:
    """Cut the records between the offsets `start` and `end` into splits, one for each task.

    A partition that is not in `start` is read from offset 0. Records may be truncated before or
    during the call. If `failOnDataLoss` is false, the call logs how many records were truncated.

    Raises:
        LogTruncatedError: some of the records were truncated, and `failOnDataLoss` is set.
    """
    spans = {}
    for (log, partition), last in sorted(end.items()):
        first = start.get((log, partition), 0)
        if first < last:
            spans[log, partition] = _spans(source, surveys, LogSlice(log, partition, first, last))
    total = sum(one.size_bytes for found in spans.values() for one in found)
    size_bytes = task_bytes(total, source.split_bytes, source.tasks_min)
    return [
        LogSplit(part, surveys.by_log[log].definition.log_id)
        for (log, at), found in spans.items()
        for part in cut(log, at, found, size_bytes)
    ]


def _spans(source: LogSource, surveys: Surveys, part: LogSlice) -> Sequence[LogSpan]:
    survey_of_log = surveys.by_log[part.log]
    if source.fail_on_data_loss:
        with telling_of_loss():
            return survey_of_log.spans(part.partition, part.start, part.end)
    found = remaining_spans(survey_of_log, part.partition, part.start, part.end)
    begin = found[0].offset if found else part.end
    if begin > part.start:
        lose(
            source,
            f"{begin - part.start} records of partition {part.partition} of {part.log} were "
            f"truncated, from offset {part.start} on",
            f"go on at offset {begin}",
        )
    return found


def remaining_spans(
    survey_of_log: SyncLogSurvey, partition: int, first: int, last: int
) -> Sequence[LogSpan]:
    """Return the spans from `first` up to `last`, without the records that were truncated.

    The log may be truncated at any time, so only the call that finds the spans knows the earliest
    offset. The result is empty if all records were truncated.
    """
    while first < last:
        try:
            return survey_of_log.spans(partition, first, last)
        except LogTruncatedError as error:
            first = error.earliest_offset
    return []


def read_split(source: LogSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split, in Arrow batches.

    Raises:
        LogTruncatedError: `failOnDataLoss` is set, and the records were truncated, or their log was
            deleted, after the plan was made.
        BookieError: a read failed; Spark tries the task again.
    """
    if not isinstance(partition, LogSplit):
        return  # Spark makes one task even if there is nothing to read
    reader = _open_reader(source, partition)
    if reader is None:
        return
    batches = LogBatches(source.columns, partition.slice.log, partition.slice.partition)
    with reader, telling_of_loss():
        yield from joined(chain.from_iterable(map(batches.encode, reader.batches())))


def _open_reader(source: LogSource, split: LogSplit) -> SyncLogReader | None:
    """Open a reader of the planned log; None if the log is gone and `failOnDataLoss` is not set.

    Raises:
        LogTruncatedError: the log is gone, and `failOnDataLoss` is set.
    """
    client, part = source.connection.client(), split.slice
    password = source.connection.password()
    try:
        found = client.survey_log(part.log, password=password).definition.log_id
        if found == split.log_id:
            reader = client.log_reader(
                part.log,
                partition=part.partition,
                start=part.start,
                end=part.end,
                # The planner saw that these records are confirmed. The bookie that this task
                # asks may not know that yet, so the reader waits for the records.
                follow=True,
                password=password,
                on_truncated="raise" if source.fail_on_data_loss else "skip",
                timeout=READ_SECONDS_MAX,
            )
            if reader.log_id == split.log_id:
                return reader
            reader.close()
    except NoSuchLogError:
        lose_deleted(source, part.log)
    else:
        lose_made_anew(source, f"the log {part.log} was deleted and made anew")
    return None


class LedgerBatchReader(DataSourceReader):
    """Reads ledgers; an open ledger is read up to its LAC at the time of the plan."""

    def __init__(self, source: LedgerSource) -> None:
        self.source = source

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the ledgers into splits, one for each task.

        Raises:
            NoSuchLedgerError: a ledger that was named by its id does not exist.
            BookieError: a ledger cannot be opened.
        """
        source, connection = self.source, self.source.connection
        found = find_ledgers(connection.client(), source.selection, connection.password())
        total = sum(one.size_bytes for one in found)
        size_bytes = task_bytes(total, source.split_bytes, source.tasks_min)
        return [
            LedgerSplit(one.ledger_id, part.start, part.stop - 1)
            for one in found
            for part in cut_ids(0, one.last_entry_id, one.size_bytes, size_bytes)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a split, in a task. The read fences no ledger and writes nothing."""
        if not isinstance(partition, LedgerSplit):
            return
        connection = self.source.connection
        ledger_id = partition.ledger_id
        ledger = connection.client().open_ledger(ledger_id, password=connection.password())
        batches = LedgerBatches(self.source.columns, ledger_id)
        # The planner saw that these entries are confirmed; a bookie may not know that yet.
        found = ledger.read_acknowledged(
            partition.first_entry_id, partition.last_entry_id, timeout=READ_SECONDS_MAX
        )
        with found:
            yield from joined(chain.from_iterable(map(batches.encode, found)))


def check_exists(source: LogSource | LedgerSource) -> None:
    """Raise an error if a log or ledger of `source` does not exist.

    If `failOnDataLoss` is false, the function accepts missing logs, because a running stream may
    continue after the deletion of a log. But a batch read of a missing log fails at its first
    action, and a new stream that reads a missing log fails at its start.

    Raises:
        NoSuchLogError, NoSuchLedgerError: a log or ledger does not exist.
        BadRequestError: a log has no such partition.
    """
    client = source.connection.client()
    if isinstance(source, LogSource):
        found = survey(client, source.selection, source.connection.password())
        if source.fail_on_data_loss:
            found.require_named()
        found.check_partitions()
    else:
        require_named(client, source.selection)
