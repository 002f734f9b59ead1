"""What simulations and the corruption matrix say at the end of a run: their figures.

It is a plugin apart from their `conftest.py`. With several processes, the one that prints does not
import that file.
"""

from __future__ import annotations

import pytest

PROPERTY = "figures"
"""The name of the properties of a test's report that are lines to print."""

IMAGES = "crash images"
"""The name of those that say how many crash images a test started an engine on."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The lines of all tests that passed or failed, by their tests, and their images in total."""
    properties = [
        (report.nodeid, name, value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
    ]
    lines = sorted((test, str(value)) for test, name, value in properties if name == PROPERTY)
    images = [int(str(value)) for _, name, value in properties if name == IMAGES]
    if lines:
        terminalreporter.write_sep("-", "figures")
        for _, line in lines:
            terminalreporter.write_line(line)
    if images:
        terminalreporter.write_line(f"crash images in total: {sum(images)}, by {len(images)} tests")
