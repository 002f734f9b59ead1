"""The summary of a run of the conformance suite: tests and cases per backend.

It is a plugin apart from its `conftest.py`. With several processes, the one that prints does not
import that file.
"""

from __future__ import annotations

from collections import Counter

import pytest

BACKEND = "backend"
"""The property of a test's report that names its backend."""
SHOWN = "cases"
"""The one that lists the numbers of the cases that it shows."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what ran on which backend."""
    outcomes: dict[str, Counter[str]] = {}
    cases: dict[str, set[int]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))
            if BACKEND not in properties or (outcome == "passed" and report.when != "call"):
                continue
            backend = str(properties[BACKEND])
            outcomes.setdefault(backend, Counter())[outcome] += 1
            if outcome == "passed":
                cases.setdefault(backend, set()).update(properties.get(SHOWN, ()))
    if not outcomes:
        return
    # Only now: every run of any test loads this module.
    from tests.conformance.backends import BACKENDS
    from tests.conformance.cases import spans

    terminalreporter.section("conformance of the metadata backends")
    for backend, counts in sorted(outcomes.items()):
        numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        found = cases.get(backend, set())
        terminalreporter.line(f"{backend}: {numbers}; {len(found)} cases: {spans(found)}")
        for difference, reason in BACKENDS[backend].differences.items():
            terminalreporter.line(f"  documented difference: {difference.value} ({reason})")
