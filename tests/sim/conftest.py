"""What simulations share: quiet logs, and the figures of a run in pytest's summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of engines die in here, and each would say so."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print a line at the end of the run, whatever was captured."""
    return pytestconfig.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The lines of `report`."""
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.write_sep("-", "simulation")
        for line in lines:
            terminalreporter.write_line(line)
