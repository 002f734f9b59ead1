"""Report that records were lost before a query could read them: raise an error or log a line.

If the option ``failOnDataLoss`` is set, an error is raised, and its message says how the query can
continue. If the option is not set, a line is logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookie.errors import LogTruncatedError
from bookie.spark.source_options import LogSource
from bookie.telemetry import event_log

_log = event_log(__name__)


def lose(source: LogSource, what: str, remedy: str = "go on without it") -> None:
    """Report lost records.

    `what` describes the loss. `remedy` says what the query does if ``failOnDataLoss`` is false. The
    message contains `what` and `remedy`.

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
    """Report that a log was deleted and created again; `what` is this event as text.

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
    """Add to each LogTruncatedError of the block a text that says how the query can continue."""
    try:
        yield
    except LogTruncatedError as error:
        raise LogTruncatedError(
            f"{error}; set failOnDataLoss to false to go on without what is lost",
            earliest_offset=error.earliest_offset,
        ) from error
