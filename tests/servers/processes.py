"""Foreign servers as child processes that outlive a test, started once and stopped by their pid.

The check for children that a test left leaves them out. The process that started one stops it at
the end of the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers.running import PIDS


def require_program(name: str, package: str) -> str:
    """The path of a program; fails with the command that installs it."""
    found = shutil.which(name)
    assert found is not None, f"these tests need {name}: apt-get install {package}"
    return found


def pause(seconds: float) -> None:
    """Wait between two looks at a server, outside of any event loop."""
    threading.Event().wait(seconds)


def wait_until(holds: Callable[[], bool], what: str, seconds_max: float = 300.0) -> None:
    """Look again and again until `holds()`; fail with `what` if that takes too long."""
    for _ in range(int(seconds_max / 0.02)):
        if holds():
            return
        pause(0.02)
    raise AssertionError(f"{what}: not within {seconds_max} seconds")


class ServerProcess:
    """One server's process; its output goes to a file in `directory`."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self.directory = directory
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; the server must run."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process exists; a stopped (paused) one counts."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; the same directory and command every time."""
        assert not self.is_running, f"{self.name} runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
            )
        PIDS.add(self._process.pid)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. A stopped server stays stopped."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        PIDS.discard(self._process.pid)
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; also right for a process that is not paused."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines it wrote, for messages."""
        if not self._log.exists():
            return ""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.name}.log"
