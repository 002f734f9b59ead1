"""Report lost records that a query should have read: raise an error, or log a line.

The option ``failOnDataLoss`` decides between error and log line. The error message says how the
query can continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookie.errors import LogTruncatedError
from bookie.spark.source_options import LogSource
from bookie.telemetry import event_log

_log = event_log(__name__)


def lose(source: LogSource, what: str, remedy: str = "go on without it") -> None:
    """Report a loss.

    `what` describes the loss. `remedy` completes the message: the action of a query whose
    ``failOnDataLoss`` is false.

    Raises:
        LogTruncatedError: ``failOnDataLoss`` is set.
    """
    if source.fail_on_data_loss:
        raise LogTruncatedError(f"{what}; set failOnDataLoss to false to {remedy}")
    _log.warning("spark_source_lost_records", reason=f"{what}; failOnDataLoss is false: {remedy}")


def lose_deleted(source: LogSource, log: str) -> None:
    """Report a deleted log.

    Raises:
        LogTruncatedError: ``failOnDataLoss`` is set.
    """
    lose(source, f"the log {log} was deleted")


def lose_made_anew(source: LogSource, what: str) -> None:
    """Report that a log was replaced by another log of the same name; `what` is the message.

    Raises:
        LogTruncatedError: ``failOnDataLoss`` is set.
    """
    if source.end is not None:  # a batch
        lose(source, f"{what}; load the frame again", "go on without the former one")
        return
    remedy = "read the new log from its beginning"
    if source.fail_on_data_loss:
        what += "; give the query a new checkpoint"
        raise LogTruncatedError(f"{what}, or set failOnDataLoss to false to {remedy}")
    lose(source, what, remedy)


@contextmanager
def telling_of_loss() -> Iterator[None]:
    """Extend errors about lost records: the message also says how the query can continue."""
    try:
        yield
    except LogTruncatedError as error:
        raise LogTruncatedError(
            f"{error}; set failOnDataLoss to false to go on without what is lost",
            earliest_offset=error.earliest_offset,
        ) from error
