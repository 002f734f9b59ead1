"""Puts known bugs into a copy of the tree, one at a time, and shows which tests see them.

::

    python -m tests.mutants                   # all, a quarter of an hour
    python -m tests.mutants log/ spark/       # those of files whose path has one of these parts
    python -m tests.mutants -k token -k sync  # those whose names have one of these parts
    python -m tests.mutants --list

First the killers have to pass without a bug. The exit code is 1 if a mutant survived that matters,
if one that is harmless was killed, or if its tests could not be run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.util import cache_from_source
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "data", "build", "dist", "*.egg-info", "__pycache__"
)

TESTS_FAILED = 1
"""The exit code of pytest; any other but 0 says that no test was run."""


class Copy:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, root: Path, test_seconds: float) -> None:
        """`root` must not exist. A test that takes longer than `test_seconds` has failed."""
        shutil.copytree(ROOT, root, ignore=NOT_COPIED)
        self._root = root
        self._test_seconds = test_seconds
        # An editable install names the original, which the copy must come before.
        found = self._python(["-c", "import bookie; print(bookie.__file__)"], 60)[1].strip()
        if not Path(found).is_relative_to(root):
            raise RuntimeError(f"tests in {root} would import {found}")

    def run(self, tests: Iterable[str], seconds_max: float) -> tuple[str, str]:
        """Run tests up to the first failure.

        Returns "passed", "failed", "stood still" or "not run", and what explains it.
        """
        options = ["-x", "-q", "--no-header", "-p", "no:randomly", "-p", "no:cacheprovider"]
        options += [f"--timeout={self._test_seconds:g}", "--tb=line"]
        code, output = self._python(["-m", "pytest", *options, *tests], seconds_max)
        last = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if code is None:
            return "stood still", f"for {seconds_max:g} s"
        if code == TESTS_FAILED:
            return "failed", last[0].partition(" - ")[0] if last else ""
        return ("passed", "") if code == 0 else ("not run", output[-2000:])

    def run_with(self, mutant: Mutant, seconds_max: float) -> tuple[str, str]:
        """Run the killers of a mutant with it; the copy is then as it was."""
        path = self._root / mutant.path
        text = path.read_bytes()
        try:
            mutant.apply(self._root)
            _forget_compiled(path)
            return self.run(mutant.killers, seconds_max)
        finally:
            path.write_bytes(text)
            _forget_compiled(path)

    def _python(self, arguments: Sequence[str], seconds_max: float) -> tuple[int | None, str]:
        """Run Python in the copy; returns its exit code, or None if it took too long."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": str(self._root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that the tests started
            output, _ = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return None, output
            raise
        return process.returncode, output


def _forget_compiled(path: Path) -> None:
    """Two texts of one size may be written within one second, which bytecode does not tell."""
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def chosen(parts: Sequence[str], names: Sequence[str]) -> list[Mutant]:
    """The mutants of files with one of `parts` in their path and one of `names` in their name."""
    return [
        one
        for one in MUTANTS
        if (not parts or any(part in one.path for part in parts))
        and (not names or any(name in one.name for name in names))
    ]


def verdict_of(mutant: Mutant, outcome: str) -> tuple[bool, str]:
    """Whether all is as it should be, and what to say."""
    if outcome == "not run":
        return False, "NOT RUN"
    if outcome == "passed":
        return bool(mutant.harmless), "harmless" if mutant.harmless else "SURVIVED"
    return not mutant.harmless, "KILLED, though harmless" if mutant.harmless else "killed"


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("part", nargs="*", help="a part of the path of a file")
    parser.add_argument("-k", dest="names", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--test-seconds", type=float, default=60.0, help="of one test, at most")
    parser.add_argument("--seconds", type=float, default=300.0, help="of one mutant, at most")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the tests end as well
    mutants = chosen(given.part, given.names)
    if given.list:
        for one in mutants:
            print(f"{one.name}: {one.path}\n    {one.harmless or one.why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Copy(Path(directory) / "tree", given.test_seconds)
        tests = dict.fromkeys(test for one in mutants for test in one.killers)
        outcome, detail = copy.run(tests, given.seconds * len(mutants))
        if outcome != "passed":
            print(f"without a bug, the tests have {outcome}: {detail}")
            return 1
        print(f"without a bug, {len(tests)} tests pass", flush=True)
        wrong = 0
        for one in mutants:
            begin = time.monotonic()
            outcome, detail = copy.run_with(one, given.seconds)
            is_right, verdict = verdict_of(one, outcome)
            wrong += not is_right
            seconds = time.monotonic() - begin
            print(f"{verdict:9} {one.name} ({one.path}, {seconds:.0f} s) {detail}", flush=True)
    print(f"{len(mutants)} mutants, {wrong} not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
