"""The driver's part of a write: publish the ranges of all tasks, or delete the ranges' ledgers.

A batch is published separately to each log, under the same batch number. If the driver dies after
the publication to the first of two logs, Spark repeats the batch. The first log then drops the
repeated records, and the second log publishes its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from bookie.errors import BookieError
from bookie.log.publish.range_writer import PendingRange
from bookie.spark.sink_options import SinkSettings
from bookie.spark.sink_task import LogRanges
from bookie.telemetry import event_log

_log = event_log(__name__)


@dataclass(frozen=True)
class WrittenRanges(WriterCommitMessage):
    """The ranges that a task has written; Spark sends this message from the task to the commit."""

    application: str
    ranges: LogRanges


Messages = Iterable[WriterCommitMessage | None]
"""The messages of the tasks, in the order of Spark's partitions; None for a failed task."""


def publish_batch(settings: SinkSettings, batch: int, messages: Messages) -> list[str]:
    """Publish the ranges of all tasks, once to each log.

    A log drops a batch that was published to this log before. The result is the list of logs to
    which the tasks have written.

    Raises:
        BookieError: the publication to a log failed; publish the same batch again.
    """
    client = settings.connection.client()
    found = sorted(_by_log(messages).items())
    for (log, application), ranges in found:
        publisher = client.publisher(log)
        if publisher.publish(application, batch, ranges):
            _log.info("spark_batch_published", log=log, application=application, batch=batch)
            continue
        _log.info("spark_batch_dropped", log=log, application=application, batch=batch)
        with suppress(BookieError):  # a sweep deletes the ledgers later
            publisher.abort(ranges)
    return [log for (log, _), _ in found]


def forget_application(settings: SinkSettings, application: str, logs: Iterable[str]) -> None:
    """Delete the metadata record of an application in each log, after the last publication.

    A remaining metadata record does no harm, so an error is only logged.
    """
    client = settings.connection.client()
    for log in logs:
        try:
            client.publisher(log).forget(application)
        except BookieError as error:
            _log.warning("spark_application_kept", log=log, reason=str(error))


def abort_batch(settings: SinkSettings, messages: Messages) -> None:
    """Delete the ledgers of a failed batch, except ledgers that have published records.

    Spark also calls this function if a later step failed after the batch was published.
    """
    client = settings.connection.client()
    for (log, _), ranges in sorted(_by_log(messages).items()):
        try:
            client.publisher(log).abort(ranges)
        except BookieError as error:
            _log.warning("spark_batch_not_aborted", log=log, reason=str(error))


def _by_log(messages: Messages) -> dict[tuple[str, str], list[PendingRange]]:
    found: dict[tuple[str, str], list[PendingRange]] = {}
    for message in messages:
        if isinstance(message, WrittenRanges):
            for log, ranges in message.ranges.items():
                found.setdefault((log, message.application), []).extend(ranges)
    return found
