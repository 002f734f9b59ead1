"""Watches the devices: reports slow operations, and ends the engine if an operation hangs.

The watch never waits for a device. The watch checks the age of the oldest journal request, of the
current file-removal step, and of the current index commit. The age of a commit starts at the end of
its transaction, when the index writes and syncs.

A hanging device reports no error, while requests wait and memory fills up.

If the whole process is paused (SIGSTOP, a virtual machine), the process receives no answers, but
the clock continues. The watch detects a pause because its next look at the devices is late. A late
look never ends the engine: all the time since the previous look counts as one interval. If a device
really hangs, later looks find that the answer is overdue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bookie.config import StorageSettings
from bookie.env import Clock, KeyValueStore, ReadTransaction, WriteTransaction
from bookie.node.engine.file_removal import Removal
from bookie.node.engine.journal.queue import JournalQueue
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

LATE_INTERVALS = 2.0
"""A look at the devices is late if this many intervals have passed since the last look."""

INTERVALS_PER_FAILURE = 4.0
"""The number of looks within `sync_fail_seconds`; one of these looks may be late."""


class CountedStore:
    """Wraps a key-value store, and counts the write transactions that began and that ended."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.commits_begun = 0
        self.commits_ended = 0

    def read(self) -> AbstractContextManager[ReadTransaction]:
        return self._store.read()

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        # A transaction also waits for the device when it begins, because the store then writes
        # zeros ahead if it needs room.
        self.commits_begun += 1
        try:
            with self._store.write() as transaction:
                yield transaction
        finally:
            self.commits_ended += 1

    def close(self) -> None:
        self._store.close()

    @property
    def is_committing(self) -> bool:
        return self.commits_begun != self.commits_ended


class DeviceWatch:
    """Looks at the devices periodically; calls `failed` when an answer is overdue."""

    def __init__(
        self,
        clock: Clock,
        settings: StorageSettings,
        metrics: Metrics,
        store: CountedStore,
        queue: JournalQueue,
        removal: Removal,
        failed: Callable[[BaseException], None],
    ) -> None:
        """A file-removal step counts as work of the ledgers device, even if it frees a journal."""
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._queue = queue
        self._removal = removal
        self._failed = failed
        self._reported: set[str] = set()
        self._commit_seen = 0
        self._commit_since = 0.0
        self._looked_at = clock.monotonic()
        self._stood_still: list[tuple[float, float]] = []
        """Start and end of each pause of the process, ascending."""

    @property
    def interval_seconds(self) -> float:
        settings = self._settings
        return min(settings.idle_marker_seconds, settings.sync_fail_seconds / INTERVALS_PER_FAILURE)

    def look(self) -> None:
        """Check once, without blocking, if an answer of a device is late; report late answers."""
        now, before = self._clock.monotonic(), self._looked_at
        is_late = now - before > LATE_INTERVALS * self.interval_seconds
        self._looked_at = now
        owed = {
            "journal": self._queue.waiting_since,
            "ledgers": self._removal.working_since,
            "index": self._committing_since(now),
        }
        for device, since in owed.items():
            # If this look is late, answers may still be queued; count only the time up to the look
            # before.
            self._judge(device, before if is_late else now, since)
        oldest = min((since for since in owed.values() if since is not None), default=now)
        self._stood_still = [still for still in self._stood_still if still[1] > oldest]
        if is_late:
            self._stood_still.append((before + self.interval_seconds, now))

    def _committing_since(self, now: float) -> float | None:
        """Return the time of the first look that saw the current commit; None without a commit."""
        if not self._store.is_committing:
            return None
        if self._commit_seen != self._store.commits_begun:
            self._commit_seen = self._store.commits_begun
            self._commit_since = now
        return self._commit_since

    def _judge(self, device: str, until: float, since: float | None) -> None:
        if since is None:
            self._reported.discard(device)
            return
        still = sum(max(0.0, end - max(begin, since)) for begin, end in self._stood_still)
        waited = until - since - still
        if waited >= self._settings.sync_fail_seconds:
            self._failed(TimeoutError(f"the {device} device did not answer for {waited:.0f} s"))
        elif waited >= self._settings.sync_warn_seconds and device not in self._reported:
            self._reported.add(device)
            self._metrics.errors_total.labels("slow_sync").inc()
            _log.warning("slow_sync", device=device, seconds=round(waited, 1))
