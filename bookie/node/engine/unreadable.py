"""Log lines for entries that cannot be read: one for each ledger, then counts.

A lost file makes every read of it fail. A line for each would fill the log.
"""

from __future__ import annotations

from bookie.env import Clock
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

LEDGERS_NAMED_MAX = 100
"""Ledgers that get a line of their own until reads succeed again."""

REPORT_SECONDS = 60.0
"""Time between two lines with counts."""


class UnreadableEntries:
    """Counts reads that failed though the entry is stored here."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._count_error = metrics.errors_total.labels("read").inc
        self._ledgers: set[int] = set()
        """Ledgers with failed reads."""
        self._reads = 0
        """Failed reads since the last line with counts."""
        self._reported_at = 0.0

    def note(self, ledger_id: int, entry_id: int, reason: str) -> None:
        """Note a failed read. The first one of a ledger is logged."""
        self._count_error()
        if not self._ledgers:
            self._reported_at = self._clock.monotonic()
        if ledger_id in self._ledgers or len(self._ledgers) >= LEDGERS_NAMED_MAX:
            self._reads += 1
            return
        self._ledgers.add(ledger_id)
        _log.warning("entry_unreadable", ledger_id=ledger_id, entry_id=entry_id, reason=reason)

    def report(self) -> None:
        """Log the counts from time to time; a period without failed reads resets them."""
        if not self._ledgers or self._clock.monotonic() - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = self._clock.monotonic()
        if self._reads:
            _log.warning(
                "entries_unreadable",
                reads=self._reads,
                ledgers=len(self._ledgers),
                seconds=round(REPORT_SECONDS),
            )
            self._reads = 0
        else:
            _log.info("no_more_unreadable_entries", ledgers=len(self._ledgers))
            self._ledgers.clear()
