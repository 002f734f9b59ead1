"""The options of a read, which are checked when the frame is made, and sent to the tasks."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.errors import BadRequestError
from bookie.spark.columns import SourceColumns, take_ledger_columns, take_log_columns
from bookie.spark.connecting import SparkConnection, take_connection
from bookie.spark.options import SparkOptions
from bookie.spark.read_bounds import ReadPlace, refuse_end, take_end, take_start
from bookie.spark.selection import LedgerSelection, LogSelection, take_selection
from bookie.spark.stream_offsets import EARLIEST, LATEST

SPLIT_BYTES = 64 << 20
"""The most bytes that a task reads, by default."""

READ_SECONDS_MAX = 120.0
"""After this time without a record, in seconds, a task fails, and Spark runs it again."""


DELAY_SECONDS = 900.0
"""The longest time, in seconds, that a batch waits for records by default, as in Kafka's source."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a stream's micro-batches; None means no limit."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    """A batch waits until at least this number of records exists."""
    delay_seconds: float = DELAY_SECONDS
    """The longest time, in seconds, that a batch waits for `rows_min` records."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """The options of a query that reads logs."""

    connection: SparkConnection
    selection: LogSelection
    columns: SourceColumns
    start: ReadPlace
    end: ReadPlace | None
    """The place where a batch read ends; None for a stream."""
    fail_on_data_loss: bool
    split_bytes: int
    tasks_min: int | None
    batch_limits: BatchLimits = BatchLimits()


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """The options of a query that reads ledgers."""

    connection: SparkConnection
    selection: LedgerSelection
    columns: SourceColumns
    split_bytes: int
    tasks_min: int | None


def take_source(options: SparkOptions, *, is_stream: bool) -> LogSource | LedgerSource:
    """Parse the options of a read of logs or ledgers.

    Raises:
        BadRequestError, ConfigurationError: an option is wrong; the message says how to correct it.
    """
    connection = take_connection(options)
    selection = take_selection(options)
    split_bytes = options.take_bytes("maxBytesPerPartition") or SPLIT_BYTES
    tasks_min = options.take_count("minPartitions")
    source: LogSource | LedgerSource
    if isinstance(selection, LedgerSelection):
        columns = take_ledger_columns(options)
        source = LedgerSource(connection, selection, columns, split_bytes, tasks_min)
    else:
        start = take_start(options, LATEST if is_stream else EARLIEST)
        end = None
        if is_stream:
            refuse_end(options)
        else:
            end = take_end(options)
        source = LogSource(
            connection,
            selection,
            take_log_columns(options, is_kafkas=selection.is_kafkas),
            start,
            end,
            options.take_flag("failOnDataLoss", True),
            split_bytes,
            tasks_min,
            _take_limits(options),
        )
    options.refuse_others()
    if is_stream and isinstance(source, LedgerSource):
        raise BadRequestError("a stream reads logs; read ledgers with spark.read, or name a log")
    return source


def _take_limits(options: SparkOptions) -> BatchLimits:
    rows_max = options.take_count("maxEntriesPerTrigger", "maxOffsetsPerTrigger")
    bytes_max = options.take_bytes("maxBytesPerTrigger")
    rows_min = options.take_count("minEntriesPerTrigger", "minOffsetsPerTrigger")
    delay_seconds = options.take_seconds("maxTriggerDelay")
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise BadRequestError(
            f"the option minEntriesPerTrigger is {rows_min}, and maxEntriesPerTrigger {rows_max}; "
            "give a smaller minimum"
        )
    if delay_seconds is not None and rows_min is None:
        raise BadRequestError(
            "the option maxTriggerDelay ends the wait for minEntriesPerTrigger records; give both"
        )
    return BatchLimits(rows_max, bytes_max, rows_min, delay_seconds or DELAY_SECONDS)
