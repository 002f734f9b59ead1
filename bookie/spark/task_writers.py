"""Keeps the range writers of a worker process open between micro-batches.

Without open writers, each task of each micro-batch would create a ledger. A worker process runs one
task after another. A task takes writers, and gives these writers back at its end. Spark kills a
worker process that was idle for a minute, without a warning. So writers that were unused for
`IDLE_SECONDS_MAX` are closed before Spark kills the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bookie.env import SystemClock
from bookie.errors import BookieError
from bookie.sync import SyncRangeWriter

IDLE_SECONDS_MAX = 40.0
"""A writer that no task takes for this many seconds is closed."""

IDLE_WRITERS_MAX = 256
"""The largest number of idle writers of a process. If there are more, the writers that were idle
longest are closed."""

CLOSE_SECONDS_MAX = 10.0
"""The longest time to close a ledger, in seconds.

After this time, the ledger stays open; the ranges that were cut from it can still be published.
"""


class WriterKey(NamedTuple):
    """The key of a writer; tasks with the same key may use the same writer."""

    metadata_uri: str
    application: str
    log_id: str
    """The id of the log. A log that was deleted and created again has another id."""
    partition: int


class ClosesItsLedger(Protocol):
    """The method of a writer that this module calls."""

    def close(self, *, timeout: float | None = None) -> None:
        """Close the writer's ledger, and drop the records after the last cut."""


@dataclass(slots=True)
class _Idle:
    writer: SyncRangeWriter
    since: float


class TaskWriters:
    """The open writers of a process that no task uses now; the class is thread-safe."""

    def __init__(
        self,
        *,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        idle_writers_max: int = IDLE_WRITERS_MAX,
        monotonic: Callable[[], float] | None = None,
        timer: Callable[[float, Callable[[], None]], threading.Thread] = threading.Timer,
    ) -> None:
        self.pid = os.getpid()
        self._idle_seconds_max = idle_seconds_max
        self._idle_writers_max = idle_writers_max
        self._monotonic = monotonic or SystemClock().monotonic
        self._make_timer = timer
        self._idle: dict[WriterKey, _Idle] = {}
        """The idle writers, in the order in which they were given back."""
        self._lock = threading.Lock()
        self._timer: threading.Thread | None = None

    def take(self, key: WriterKey) -> SyncRangeWriter | None:
        """Return an open writer for use until `give_back`; None if no writer has this key."""
        with self._lock:
            found = self._idle.pop(key, None)
        return found.writer if found else None

    def give_back(self, key: WriterKey, writer: SyncRangeWriter) -> None:
        """Keep a writer for later tasks; the caller must have called the writer's `cut` before."""
        with self._lock:
            former = self._idle.pop(key, None)
            self._idle[key] = _Idle(writer, self._monotonic())
            over = [former] if former else []
            while len(self._idle) > self._idle_writers_max:
                over.append(self._idle.pop(next(iter(self._idle))))
            self._set_timer(self._idle_seconds_max)
        for one in over:
            close_quietly(one.writer)

    def close_idle(self) -> None:
        """Close writers that no task has taken for too long."""
        due: list[_Idle] = []
        with self._lock:
            self._timer = None
            before = self._monotonic() - self._idle_seconds_max
            for key, one in list(self._idle.items()):
                if one.since > before:
                    self._set_timer(one.since - before)
                    break
                due.append(self._idle.pop(key))
        for one in due:
            close_quietly(one.writer)

    def _set_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._make_timer(seconds, self.close_idle)
            self._timer.daemon = True
            self._timer.start()


def close_quietly(writer: ClosesItsLedger) -> None:
    """Close a writer and ignore errors; after an error, the writer's ledger stays open."""
    with suppress(BookieError):
        writer.close(timeout=CLOSE_SECONDS_MAX)


_writers: list[TaskWriters] = []


def task_writers() -> TaskWriters:
    """Return the idle writers of this process; a forked child begins without writers."""
    if not _writers or _writers[0].pid != os.getpid():
        _writers[:] = [TaskWriters()]
    return _writers[0]
