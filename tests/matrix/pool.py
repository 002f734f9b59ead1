"""A few workers that share the cases; a worker that dies or hangs is a finding of its case.

They keep the bookie's directories in memory: all damage is done to files, and the power stays on.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.in_memory import memory_directory

ROOT = Path(__file__).parents[2]
WORKERS = 2
HANG_SECONDS = 120.0
"""Far beyond what any case takes on a busy machine."""

Answer = dict[str, object]


class _Worker:
    """One process; started again when it died."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: Answer) -> Answer:
        """What the case came to."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.matrix.worker", str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], HANG_SECONDS)
        line = process.stdout.readline() if ready else ""
        if line:
            answer: Answer = json.loads(line)
            return answer
        process.kill()
        self.close()
        return {"died": process.returncode if ready else "it hung"}

    def close(self) -> None:
        """Let the process end."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.wait()


def run_all(cases: Sequence[Answer]) -> list[Answer]:
    """The answers to all cases, in their order."""
    with tempfile.TemporaryDirectory(prefix="bookie-matrix-", dir=memory_directory()) as directory:
        return _run_all(cases, Path(directory))


def _run_all(cases: Sequence[Answer], directory: Path) -> list[Answer]:
    answers: list[Answer] = [{} for _ in cases]
    left = iter(enumerate(cases))
    lock = threading.Lock()

    def work() -> None:
        worker = _Worker(directory)
        try:
            while True:
                with lock:
                    number, case = next(left, (-1, {}))
                if number < 0:
                    return
                answers[number] = worker.ask(case)
        finally:
            worker.close()

    threads = [threading.Thread(target=work, name=f"matrix-{n}") for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
