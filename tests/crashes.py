"""Shows at the end of a run what a worker was doing when its process crashed.

xdist only says which test was running. The report of the fatal signal is in the middle of the
output. Records of long runs lose this part first.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

_DIRECTORY = "crash_directory"
_CRASHED = "Current thread"
"""Begins the part about the thread that crashed; younger threads come before it."""
_LINES_MAX = 60
"""The most lines of one report that the summary prints."""


class CrashReports:
    """Belongs to the process that starts workers: gives each a file, and prints the reports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where to write, before it starts."""
        node.workerinput[_DIRECTORY] = str(self._directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Print a report at once, because a run may end without a summary."""
        path = self._directory / node.gateway.id
        if path.exists():
            sys.stderr.write(path.read_text(encoding="utf-8", errors="replace"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the parts of each report that matter."""
        for path in sorted(self._directory.iterdir()):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                terminalreporter.write_sep("-", f"how {path.name} crashed")
                terminalreporter.write_line("\n".join(most_important(lines)))


def most_important(lines: list[str]) -> list[str]:
    """Return the head of a report, then the thread that crashed, then the others."""
    at = next((i for i, line in enumerate(lines) if line.startswith(_CRASHED)), 1)
    return [*lines[:1], *lines[at:], *lines[1:at]][:_LINES_MAX]


@pytest.hookimpl(trylast=True)  # after pytest's own plugin, which has reports printed at once
def pytest_configure(config: pytest.Config) -> None:
    """Collect the reports of workers, or be a worker that writes its own."""
    given = getattr(config, "workerinput", None)
    if given is None:
        directory = TemporaryDirectory(prefix="bookie-crashes-")
        config.add_cleanup(directory.cleanup)
        config.pluginmanager.register(CrashReports(Path(directory.name)), "reports of crashes")
    elif _DIRECTORY in given:
        path = Path(given[_DIRECTORY], given["workerid"])
        report = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        config.add_cleanup(partial(os.close, report))
        config.add_cleanup(faulthandler.enable)
        faulthandler.enable(file=report)
        # A child that crashes is not the worker.
        os.register_at_fork(after_in_child=faulthandler.disable)
