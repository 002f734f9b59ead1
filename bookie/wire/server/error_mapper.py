"""Maps errors to the statuses of answers, in one place, and counts all answers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from bookie.errors import BookieError, TooManyRequestsError, WrongBookieError
from bookie.ids import Status
from bookie.telemetry import Metrics, event_log
from bookie.wire.commands import Reply

_log = event_log(__name__)

RETRY_AFTER_MS_MAX: Final = 2**32 - 1
"""The longest pause before a retry that an answer can contain, 49 days."""


class ErrorMapper:
    """Maps errors to replies and counts answers, for all calls of one bookie."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests_total = metrics.requests_total
        self._errors_total = metrics.errors_total
        self.given_up = metrics.reads_given_up_total.inc
        """Function that counts one read that had no result before its timeout."""
        self._counts: dict[tuple[str, Status], Callable[[], None]] = {}

    def reply(self, rpc: str, error: BaseException) -> Reply:
        """Return the answer to a request that ended with `error`.

        A `BookieError` contains its status and a sentence for the caller. Any other error is a bug
        or fault of the bookie. The error is logged with its traceback, and the answer says only
        that the bookie failed.
        """
        if isinstance(error, BookieError):
            if error.status is Status.IO_ERROR and not isinstance(error, WrongBookieError):
                self._errors_total.labels("request").inc()
                _log.warning("request_failed", rpc=rpc, error=str(error))
            return Reply(error.status, str(error), _retry_after_ms(error))
        self._errors_total.labels("unexpected").inc()
        _log.error("request_failed_unexpectedly", error, rpc=rpc)
        return Reply(Status.IO_ERROR, "the bookie failed on this request; its log says why")

    def count(self, rpc: str, status: Status) -> None:
        count = self._counts.get((rpc, status))
        if count is None:
            count = self._requests_total.labels(rpc, status.name).inc
            self._counts[rpc, status] = count
        count()


def _retry_after_ms(error: BookieError) -> int:
    if not isinstance(error, TooManyRequestsError):
        return 0
    return min(ceil(error.retry_after_seconds * 1000), RETRY_AFTER_MS_MAX)
