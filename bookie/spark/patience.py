"""Retries after temporary errors, because a single error of a source ends Spark's query."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from bookie.env import SystemClock
from bookie.errors import BookieError
from bookie.telemetry import event_log

T = TypeVar("T")

OUTAGE_SECONDS_MAX = 300.0
"""The longest outage, in seconds, of bookies or the metadata store that a stream survives."""

PAUSE_SECONDS = 1.0
"""The pause between two tries, in seconds."""

_log = event_log(__name__)


def pause(seconds: float) -> None:
    """Sleep for `seconds`."""
    threading.Event().wait(seconds)


def patiently(
    look: Callable[[], T],
    *,
    sleep: Callable[[float], object] = pause,
    now: Callable[[], float] = SystemClock.monotonic,
) -> T:
    """Return the result of `look`; after a temporary error, log the error and call `look` again.

    Raises:
        BookieError: an error of `look` that is not temporary, or the last error after
            `OUTAGE_SECONDS_MAX`.
    """
    give_up_at = now() + OUTAGE_SECONDS_MAX
    while True:
        try:
            return look()
        except BookieError as error:
            if not error.retryable or now() >= give_up_at:
                raise
            _log.warning("spark_source_waits", reason=str(error))
        sleep(PAUSE_SECONDS)
