"""Collect the rows of a frame in the driver, with retries on a busy machine.

Spark serves the rows on a socket, and closes the socket if the driver does not connect in time. The
driver should then get the error CANNOT_OPEN_SOCKET, but PySpark 4.3 raises an UnboundLocalError in
its place.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from bookie.telemetry import event_log

TRIES = 3

_log = event_log(__name__)


def collected(frame: DataFrame) -> list[Row]:
    """Return all rows of a frame.

    If the driver cannot connect to Spark's socket, run the frame's tasks again, at most `TRIES`
    times in all.

    Raises:
        Exception: an error of Spark.
    """
    for _ in range(TRIES - 1):
        try:
            return frame.collect()
        except Exception as error:
            if not is_socket_error(error):
                raise
            _log.warning("spark_driver_asks_again", reason=str(error))
    return frame.collect()


def is_socket_error(error: BaseException | None) -> bool:
    """True if an error, or an earlier error behind it, is a failed connection to Spark's socket."""
    while error is not None:
        if isinstance(error, PySparkException) and error.getCondition() == "CANNOT_OPEN_SOCKET":
            return True
        error = error.__cause__ or error.__context__
    return False
