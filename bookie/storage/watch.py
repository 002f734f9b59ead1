"""A watch over the devices: late answers are reported, and one that never comes ends the engine.

Whoever waits for a device cannot watch it, so the watch waits for nothing: it looks at how long the
oldest request has been with the journal, how long a step of the removal of files has taken, and at
whether a commit of the index is still the one that it saw before. Only the end of a transaction
counts, where the index writes and syncs.

A device that hangs gives no error, and while it hangs nothing is acknowledged and memory fills up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bookie.config import StorageSettings
from bookie.env import Clock, KeyValueStore, ReadTransaction, WriteTransaction
from bookie.storage.journal_queue import JournalQueue
from bookie.storage.removal import Removal
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)


class CountedStore:
    """A key-value store that counts its commits: those that began, and those that ended."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.commits_begun = 0
        self.commits_ended = 0

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """See `KeyValueStore.read`."""
        return self._store.read()

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        """See `KeyValueStore.write`."""
        begun = self.commits_begun
        try:
            with self._store.write() as transaction:
                yield transaction
                self.commits_begun += 1
        finally:
            self.commits_ended += self.commits_begun - begun

    def close(self) -> None:
        """See `KeyValueStore.close`."""
        self._store.close()

    @property
    def is_committing(self) -> bool:
        """Whether a transaction is at its end and has not come back."""
        return self.commits_begun != self.commits_ended


class DeviceWatch:
    """Looks from time to time; `failed` is told when an answer is overdue."""

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
        """Removed files are told of as of the ledgers device, also those of the journal."""
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

    def look(self) -> None:
        """Look once; takes no time."""
        now = self._clock.monotonic()
        self._judge("journal", now, self._queue.waiting_since)
        self._judge("ledgers", now, self._removal.working_since)
        if not self._store.is_committing:
            self._judge("index", now, None)
            return
        if self._commit_seen != self._store.commits_begun:
            self._commit_seen = self._store.commits_begun
            self._commit_since = now
        self._judge("index", now, self._commit_since)

    def _judge(self, device: str, now: float, since: float | None) -> None:
        if since is None:
            self._reported.discard(device)
            return
        waited = now - since
        if waited >= self._settings.sync_fail_seconds:
            self._failed(TimeoutError(f"the {device} device did not answer for {waited:.0f} s"))
        elif waited >= self._settings.sync_warn_seconds and device not in self._reported:
            self._reported.add(device)
            self._metrics.errors_total.labels("slow_sync").inc()
            _log.warning("slow_sync", device=device, seconds=round(waited, 1))
