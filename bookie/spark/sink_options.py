"""The options and columns of a query that writes, checked when the frame is made.

================ ============================= =====================================================
column           type                          meaning
================ ============================= =====================================================
``value``        binary or string              required; no row may have a null
``key``          binary or string              decides the partition; null: a record without a key
``headers``      array of struct (key string,  names within a row differ, and no value is null
                 value binary)
``timestamp``    timestamp                     in ms in the log; null: the time of the write
``log``          string                        the log of the row, unless the option ``log`` is set;
                                               also called ``topic``
``partition``    int                           null: by the key; rows without a key are spread
================ ============================= =====================================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.log.publish.publisher import PARTITIONS_TOUCHED_MAX
from bookie.spark.connecting import SparkConnection, take_connection
from bookie.spark.options import SparkOptions

Column = tuple[str, str]
"""The name of a column, and its type in Spark's spelling."""

_BYTES = ("binary", "string")

COLUMN_TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "log": ("string",),
    "partition": ("int",),
}
"""The columns that the sink takes; any other column is an error."""

ALIASES = {"topic": "log"}
"""Kafka's names of columns → the sink's names."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The index of each column in a row; None if the column is missing."""

    value: int
    key: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    log: int | None = None
    partition: int | None = None
    filled_by_log: tuple[tuple[str, int], ...] = ()
    """The names and indices of columns that must be empty, because only the log sets them."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of a write, which Spark sends to the tasks and to the commit."""

    connection: SparkConnection
    columns: SinkColumns
    log: str | None
    """The log of all rows; None if each row names its log in the column ``log``."""
    creates_logs: bool = False
    partitions: int | None = None
    """The number of partitions of a created log; if None, the log's policy decides the number."""
    application: str | None = None
    """The application id, under which each batch is published once.

    None means the id of the streaming query, or a new id for a batch write.
    """
    version: int | None = None
    """The number of the batch; None means Spark's number in a stream, and 0 in a batch write."""


def take_sink(
    options: SparkOptions,
    columns: Sequence[Column],
    *,
    overwrite: bool,
    is_stream: bool,
    filled_by_log: Collection[str] = (),
) -> SinkSettings:
    """Parse the options and the columns of a frame that is to be written.

    `filled_by_log` has names of columns in lower case. The frame's columns with these names must be
    empty, because the log sets their values.

    Raises:
        BadRequestError, ConfigurationError: an option or column is wrong; the message says how to
            correct it.
    """
    connection = take_connection(options)
    log = options.take("log", "topic", "path")
    creates_logs = options.take_flag("createLog", False)
    partitions = options.take_count("partitions")
    application = options.take("txnAppId")
    version = options.take_count("txnVersion", least=0)
    options.refuse_others()
    _check_mode(overwrite=overwrite, is_stream=is_stream)
    _check_transaction(application, version, is_stream=is_stream)
    _check_partitions(partitions, creates_logs)
    if log == "":
        raise BadRequestError("the option log is empty; name a log, or leave the option out")
    found = _take_columns(columns, filled_by_log)
    if log is None and found.log is None:
        raise BadRequestError(
            'the rows have no log to go to: set .option("log", NAME), or add a column log'
        )
    return SinkSettings(connection, found, log, creates_logs, partitions, application, version)


def check_log(name: str, definition: LogDefinition) -> None:
    """Refuse a log that has more partitions than a batch can publish.

    Raises:
        BadRequestError: the log has too many partitions.
    """
    if definition.partitions > PARTITIONS_TOUCHED_MAX:
        raise BadRequestError(
            f"the log {name} has {definition.partitions} partitions, and Spark writes to logs of "
            f"{PARTITIONS_TOUCHED_MAX} at most; make another log for it"
        )


def _check_partitions(partitions: int | None, creates_logs: bool) -> None:
    if partitions is None:
        return
    if not creates_logs:
        raise BadRequestError(
            'the option partitions is for a log that is made: add .option("createLog", "true"), or '
            "leave it out"
        )
    if partitions > PARTITIONS_TOUCHED_MAX:
        raise BadRequestError(
            f"the option partitions is {partitions}, and Spark writes to logs of "
            f"{PARTITIONS_TOUCHED_MAX} at most"
        )


def _check_mode(*, overwrite: bool, is_stream: bool) -> None:
    if overwrite and is_stream:
        raise BadRequestError(
            'a log only grows: write .outputMode("append") instead of complete; to keep the latest '
            "result of each key, write the changes with foreachBatch"
        )
    if overwrite:
        raise BadRequestError(
            'a log only grows: write .mode("append") instead of overwrite; to replace what it '
            "holds, run bookie log truncate first"
        )


def _check_transaction(application: str | None, version: int | None, *, is_stream: bool) -> None:
    if application == "":
        raise BadRequestError("the option txnAppId is empty; name the application that writes")
    if is_stream and version is not None:
        raise BadRequestError(
            "a stream numbers its batches by itself; leave the option txnVersion out"
        )
    if not is_stream and (application is None) != (version is None):
        given, missing = ("txnAppId", "txnVersion")[:: 1 if version is None else -1]
        raise BadRequestError(
            f"the option {given} needs {missing}: both together make a write happen once"
        )


def _take_columns(columns: Sequence[Column], filled_by_log: Collection[str]) -> SinkColumns:
    places: dict[str, int] = {}
    unset: list[tuple[str, int]] = []
    for place, (given, kind) in enumerate(columns):
        name = ALIASES.get(given.lower(), given.lower())
        if name in filled_by_log:
            unset.append((given, place))
            continue
        if name not in COLUMN_TYPES:
            raise BadRequestError(
                f"the sink has no column {given}; it takes {', '.join(COLUMN_TYPES)}. Drop it, or "
                f'put it into the value, for instance by to_json(struct("*"))'
            )
        if name in places:
            raise BadRequestError(f"the column {name} is given twice; keep one")
        if kind not in COLUMN_TYPES[name]:
            raise BadRequestError(_wrong_type(given, kind, COLUMN_TYPES[name]))
        places[name] = place
    if "value" not in places:
        raise BadRequestError(
            "the column value is missing; make it of type binary or string, for instance by "
            'select(to_json(struct("*")).alias("value"))'
        )
    return SinkColumns(**places, filled_by_log=tuple(unset))


def _wrong_type(name: str, kind: str, wanted: Sequence[str]) -> str:
    return (
        f"the column {name} has the type {kind}, and must have {' or '.join(wanted)}; write "
        f'col("{name}").cast("{wanted[-1]}")'
    )
