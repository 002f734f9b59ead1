"""The rules C1 to C14 and C16 over a history of ledgers; C15 stands in `log_checker`.

| rule | what it says | file |
|---|---|---|
| C1 | what is read was appended under this id | `integrity_rules` |
| C2 | an id has one payload, for all readers and bookies | `integrity_rules` |
| C3 | a writer's ids are dense, and acknowledged in order | `integrity_rules` |
| C4 | no acknowledged entry is lost | `integrity_rules` |
| C5 | no confirmed read returns an entry beyond the end | `closing_rules` |
| C6 | a ledger that ended acknowledges nothing more | `closing_rules` |
| C7 | all are told one end, and it is true | `closing_rules` |
| C8 | a LAC names what was attempted, and stays | `reading_rules` |
| C9 | one reader's LAC never falls | `reading_rules` |
| C10 | what a reader knows to be confirmed is not denied | `reading_rules` |
| C11 | tails have no gap, no repeat, and the right order | `reading_rules` |
| C12 | ranges are whole | `reading_rules` |
| C13 | enough copies at the end | `replication_rules` |
| C14 | a deleted ledger stays deleted | `closing_rules` |
| C16 | bookies keep their word | `bookie_rules` |

All rules together take O(n log n) for n events and copies.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tests.ledger_history.bookie_rules import check_bookies
from tests.ledger_history.closing_rules import (
    check_deletion,
    check_endings,
    check_fencing,
    check_phantoms,
)
from tests.ledger_history.integrity_rules import (
    check_agreement,
    check_ids,
    check_integrity,
    check_losses,
)
from tests.ledger_history.ledger_events import EventOutcome, LedgerHistory
from tests.ledger_history.ledger_view import Findings, LedgerView, Violation, views_of
from tests.ledger_history.reading_rules import (
    check_denials,
    check_lac_order,
    check_lac_truth,
    check_ranges,
    check_tails,
)
from tests.ledger_history.replication_rules import check_replication

RULES: tuple[Callable[[LedgerView, Findings], None], ...] = (
    check_integrity,
    check_agreement,
    check_ids,
    check_losses,
    check_phantoms,
    check_fencing,
    check_endings,
    check_lac_truth,
    check_lac_order,
    check_denials,
    check_tails,
    check_ranges,
    check_replication,
    check_deletion,
)


class HistoryVerdict(enum.Enum):
    """What a history says about the system."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    """The harness failed. This counts as not passed."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict, and its reasons."""

    violations: tuple[Violation, ...]
    """By rule, then ledger."""
    troubles: tuple[str, ...]

    @property
    def verdict(self) -> HistoryVerdict:
        """A violation weighs more than a trouble of the harness."""
        if self.violations:
            return HistoryVerdict.INVALID
        return HistoryVerdict.UNKNOWN if self.troubles else HistoryVerdict.VALID

    @property
    def rules(self) -> frozenset[str]:
        """The rules that are broken."""
        return frozenset(violation.rule for violation in self.violations)

    def describe(self) -> str:
        """Each violation with its witness, for the message of a failed test."""
        lines = [self.verdict.value, *(f"harness: {trouble}" for trouble in self.troubles)]
        for violation in self.violations:
            lines.append(f"{violation.rule}, ledger {violation.ledger_id}: {violation.message}")
            lines += [f"    {witness}" for witness in violation.witness]
        return "\n".join(lines)


def check_ledgers(history: LedgerHistory) -> CheckResult:
    """All rules over all ledgers."""
    findings = Findings(troubles=list(history.troubles))
    for view in views_of(history):
        _find_troubles(view, findings)
        for rule in RULES:
            rule(view, findings)
    check_bookies(history, findings)
    return CheckResult(tuple(sorted(findings.violations, key=_order)), tuple(findings.troubles))


def _order(violation: Violation) -> tuple[int, int, str]:
    return int(violation.rule[1:]), violation.ledger_id, violation.message


def _find_troubles(view: LedgerView, findings: Findings) -> None:
    """What the harness left out, or did wrong."""
    if view.final is None:
        findings.troubles.append(f"the end of ledger {view.ledger_id} is not known")
    payloads = sum(len(append.digests) for append in view.appends)
    if payloads != len(view.attempts):
        findings.troubles.append(f"payloads of ledger {view.ledger_id} are not unique")
    for append in view.appends:
        if append.outcome is EventOutcome.OK and append.end_index is None:
            findings.troubles.append(f"append {append.index} succeeded and did not return")


def assert_valid(history: LedgerHistory) -> None:
    """Fail with every violation and its witness, unless the history is valid."""
    result = check_ledgers(history)
    assert result.verdict is HistoryVerdict.VALID, result.describe()
