"""The repair worker that an auditor, a replicator and a reclaimer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.config import RepairSettings
from bookie.env import Clock
from bookie.errors import BookieError
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.ledger_client import LedgerClient
from bookie.metadata.store import MetadataStore
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class RepairWorker:
    """One participant of a cluster's repair: its connections, its settings and its name."""

    client: LedgerClient
    """The client with which the worker calls bookies, and reads and changes ledger metadata."""
    store: MetadataStore
    """The metadata store; its session owns the worker's locks and its candidacy."""
    settings: Callable[[], RepairSettings]
    """Returns the present section ``[repair]``."""
    metrics: Metrics
    clock: Clock
    worker_id: str
    """The worker's name in locks and records; the bookie's id if a bookie repairs."""
    marks: UnderreplicationManager
    """The marks of ledgers that lack copies, and the locks that this worker holds."""

    def reason_of(self, error: Exception, **fields: int | str) -> str:
        """Return the text of an error; an unexpected error is also counted, and logged in full."""
        if isinstance(error, BookieError):
            return str(error)
        self.metrics.errors_total.labels("unexpected").inc()
        _log.error("repair_crashed", error, **fields)
        return f"{type(error).__name__}: {error}"
