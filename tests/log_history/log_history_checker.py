"""The rules L1 to L9 over a history of logs.

| rule | what it says | file |
|---|---|---|
| L1 | what is read was appended, with this key | `record_rules` |
| L2 | an offset has one record, and a record one place, for all | `record_rules` |
| L3 | what was acknowledged or read is there at the end, unless it was truncated | `record_rules` |
| L4 | no record is there twice; a producer is told one place | `record_rules` |
| L5 | the order of a writer's calls, a producer's numbers, and each key | `order_rules` |
| L6 | readings have no gap and no repeat | `order_rules` |
| L7 | a cursor never goes back except by a reset; its epochs do not mix | `cursor_rules` |
| L8 | a published batch is there once and whole; others are not | `publishing_rules` |
| L9 | owners follow each other | `order_rules` |

What a truncation removed is known only by what was read or acknowledged before. So the rules
demand nothing of it, and judge what is known. No rule compares each record with each; only looks at
cursors are compared with all commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.cursor_rules import check_cursors
from tests.log_history.log_events import (
    CursorCommitted,
    CursorTaken,
    RecordedLogs,
    RecordsAppended,
)
from tests.log_history.log_view import LogFindings, LogViolation, PartitionView, views_of_logs
from tests.log_history.order_rules import check_keys, check_owners, check_readings, check_writers
from tests.log_history.publishing_rules import check_publications
from tests.log_history.record_rules import (
    check_contents,
    check_no_loss,
    check_no_repeat,
    check_one_order,
)

LOG_RULES: tuple[Callable[[PartitionView, LogFindings], None], ...] = (
    check_contents,
    check_one_order,
    check_no_loss,
    check_no_repeat,
    check_writers,
    check_readings,
    check_cursors,
    check_owners,
)


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What the rules found, and what the harness left out."""

    violations: tuple[LogViolation, ...]
    troubles: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """A history with a trouble is not passed."""
        return not self.violations and not self.troubles

    @property
    def rules(self) -> frozenset[str]:
        """The rules that are broken."""
        return frozenset(one.rule for one in self.violations)

    def describe(self) -> str:
        """One line for each violation and trouble."""
        lines = [f"harness: {one}" for one in self.troubles]
        lines += [f"{one.rule} {one.where}: {one.message}" for one in self.violations]
        return "\n".join(lines) or "valid"


def check_logs(history: RecordedLogs) -> LogVerdict:
    """All rules over all partitions."""
    findings = LogFindings()
    views = views_of_logs(history)
    for view in views:
        for rule in LOG_RULES:
            rule(view, findings)
    check_keys(views, findings)
    check_publications(history, views, findings)
    return LogVerdict(
        tuple(sorted(findings.violations)), (*history.troubles, *_troubles(history, views))
    )


def _troubles(history: RecordedLogs, views: list[PartitionView]) -> list[str]:
    """Mistakes of a harness, which would hide those of the product."""
    read = {view.name for view in views}
    troubles = [
        f"the end of {one} is not known"
        for one in sorted({one.partition for one in history.events if "#" in one.partition} - read)
    ]
    senders: dict[str, tuple[str, int]] = {}
    for one in history.events:
        is_timed = isinstance(one, RecordsAppended | CursorCommitted | CursorTaken)
        if is_timed and one.outcome is EventOutcome.OK and one.returned < one.called:
            troubles.append(f"{one} returned before it was called")
        if not isinstance(one, RecordsAppended):
            continue
        for number, value in enumerate(one.values, one.sequence):
            sender = (one.producer, number) if one.producer else (one.handle, one.called)
            if senders.setdefault(value, sender) != sender:
                troubles.append(f"the value {value} is not unique")
    return troubles


def assert_logs_valid(history: RecordedLogs) -> None:
    """Fail with every violation, unless the history is valid."""
    verdict = check_logs(history)
    assert verdict.is_valid, verdict.describe()
