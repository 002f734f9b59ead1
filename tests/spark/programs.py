"""Programs that tests start as users do: clients of Spark Connect, without a Java of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_program(*words: str, **variables: str) -> str:
    """The output of a Python program to its end; raises its errors if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": "/nowhere", **variables}
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    return done.stdout
