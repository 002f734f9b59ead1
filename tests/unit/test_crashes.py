"""A worker whose process crashes says what it was doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CRASH = """
import os, signal

def crash_here():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_one():
    crash_here()
"""


def test_the_report_of_a_crash_is_near_the_end(tmp_path: Path) -> None:
    """It comes after the list of failures, which names only the test."""
    (tmp_path / "test_crash.py").write_text(CRASH)
    plugins = ("-p", "tests.crashes", "-p", "no:randomly", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", "1", "--max-worker-restart=0", tmp_path],
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    _, _, behind = done.stdout.partition("FAILURES")
    assert "how gw0 crashed" in behind
    assert "Segmentation fault" in behind
    assert "in crash_here" in behind


def test_a_run_without_a_crash_says_nothing_of_it(tmp_path: Path) -> None:
    """Nor does it leave anything behind."""
    (tmp_path / "test_good.py").write_text("def test_one(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.crashes", "-n", "1", "test_good.py"],
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "crashed" not in done.stdout
    assert not list(tmp_path.glob("bookie-crashes-*"))
