"""Shows at the end of a run what a worker was doing when its process crashed.

xdist only says which test was running. The report of the fatal signal is in the middle of the
output, which is the first part that a record of a long run loses.
"""

from __future__ import annotations

import faulthandler
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

_DIRECTORY = "crash_directory"
_LINES_MAX = 60
"""The youngest thread comes first in a report."""


class CrashReports:
    """Of the process that starts workers: gives each a file for its report, and prints it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where to write, before it starts."""
        node.workerinput[_DIRECTORY] = str(self._directory)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the first lines of each report."""
        for path in sorted(self._directory.iterdir()):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                terminalreporter.write_sep("-", f"how {path.name} crashed")
                terminalreporter.write_line("\n".join(lines[:_LINES_MAX]))


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
        config.add_cleanup(faulthandler.disable)
        faulthandler.enable(file=report)
