"""Keeps the requests that the journal thread has not completed yet, in order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bookie.env import BatchWorker, Clock
from bookie.errors import BookieError
from bookie.node.engine.journal.group_commit import JournalRequest

POSTPONED_MAX = 256
"""The largest number of postponed requests; further requests are written at once."""


class JournalQueue:
    """Hands requests to the journal thread; `worker` must be set before the first request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.worker: BatchWorker[JournalRequest] | None = None
        self.pending: deque[JournalRequest] = deque()
        """Requests that the journal thread got and has not completed, oldest first."""
        self.postponed: list[JournalRequest] = []
        """Requests to hand to the journal thread right before the next submitted request."""
        self.size_bytes = 0
        """The total size of the pending requests, in bytes."""
        self._failure: BookieError | None = None

    @property
    def waiting_since(self) -> float | None:
        """The submission time of the oldest pending request, on the monotonic clock."""
        return self.pending[0].submitted_at if self.pending else None

    def submit(self, request: JournalRequest) -> None:
        """Hand `request` to the journal thread, after all requests submitted earlier."""
        if self._failure is not None:
            request.error = self._failure
            request.complete(request)
            return
        if self.postponed:
            postponed, self.postponed = self.postponed, []
            for earlier in postponed:
                self._hand_over(earlier)
        self._hand_over(request)

    def submit_with_next(self, request: JournalRequest) -> None:
        """Queue `request` in order; the journal thread gets it with the next submitted request.

        Use this method for unsynced requests whose completion nobody awaits. With `submit`, such a
        request could wake the journal thread and need a block of its own.
        """
        if self._failure is None and len(self.postponed) < POSTPONED_MAX:
            self.postponed.append(request)
        else:
            self.submit(request)

    def reported(self, requests: Iterable[JournalRequest]) -> None:
        """Remove the oldest requests from `pending`; the journal thread has completed them."""
        for request in requests:
            oldest = self.pending.popleft()
            assert oldest is request, "the journal completes in the order of submission"
            self.size_bytes -= request.size_bytes

    def fail(self, failure: BookieError) -> None:
        """Complete all requests with an error, including requests that are submitted later."""
        self._failure = failure
        self.pending.extend(self.postponed)
        self.postponed.clear()
        while self.pending:
            request = self.pending.popleft()
            request.error = failure
            request.complete(request)

    def _hand_over(self, request: JournalRequest) -> None:
        assert self.worker is not None, "the engine was not started"
        request.submitted_at = self._clock.monotonic()
        self.pending.append(request)
        self.size_bytes += request.size_bytes
        self.worker.submit(request)
