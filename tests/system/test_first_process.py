"""A local cluster whose supervisor is process 1, as the only program of a container is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from bookie.daemon.local.process import child_environment

SECONDS_MAX = 120


def test_bookies_of_process_1_run(tmp_path: Path) -> None:
    """Their parent is process 1 from the begin, so they have lost no parent."""
    words = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable)
    with subprocess.Popen(
        (*words, "-m", "bookie", "local", "--data", str(tmp_path), "--bookies", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(os.environ),
    ) as outside:
        try:
            assert outside.stdout is not None
            said = []
            for line in outside.stdout:
                said.append(line)
                if "The cluster is up" in line:
                    break
            else:
                raise AssertionError("".join(said))
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text("ascii")
            os.kill(int(children), signal.SIGINT)
            assert "stopped" in outside.stdout.read()
            assert outside.wait(SECONDS_MAX) == 0
        finally:
            outside.kill()
