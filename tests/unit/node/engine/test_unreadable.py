"""The log lines about failed reads: no flood."""

from __future__ import annotations

import logging

import pytest

from bookie.env import SystemClock
from bookie.node.engine.reader import LEDGERS_NAMED_MAX, REPORT_SECONDS, UnreadableEntries
from bookie.telemetry import Event, Metrics


class _Clock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        """The values that the test sets."""
        return self.now


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    """Name and count, or ledger, of each line since the last call."""
    events = [record.msg for record in caplog.records if isinstance(record.msg, Event)]
    caplog.clear()
    return [
        (event.name, event.fields.get("reads", event.fields.get("ledger_id"))) for event in events
    ]


def test_a_ledger_gets_a_line_and_then_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Until a period passes without a failed read; then the next one is news again."""
    caplog.set_level(logging.INFO)
    clock, metrics = _Clock(), Metrics()
    unreadable = UnreadableEntries(clock, metrics)
    unreadable.report()
    for entry_id in range(1000):
        unreadable.note(7, entry_id, "lost")
        unreadable.note(8, entry_id, "lost")
        unreadable.report()
    assert told(caplog) == [("entry_unreadable", 7), ("entry_unreadable", 8)]
    clock.now += REPORT_SECONDS
    unreadable.report()
    unreadable.report()
    assert told(caplog) == [("entries_unreadable", 1998)]
    clock.now += REPORT_SECONDS
    unreadable.report()
    assert told(caplog) == [("no_more_unreadable_entries", None)]
    clock.now += REPORT_SECONDS
    unreadable.report()
    unreadable.note(7, 5, "lost")
    assert told(caplog) == [("entry_unreadable", 7)]
    assert metrics.errors_total.labels("read")._value.get() == 2001


def test_the_ledgers_with_a_line_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A lost disk has many."""
    unreadable = UnreadableEntries(_Clock(), Metrics())
    for ledger_id in range(10 * LEDGERS_NAMED_MAX):
        unreadable.note(ledger_id, 0, "lost")
    assert len(told(caplog)) == LEDGERS_NAMED_MAX
