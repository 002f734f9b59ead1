"""Runs commands one after the other in one process, which has imported what they need.

A process for each command spends 0.5 s of a core on imports. What depends on the process itself, as
signals and readers that leave, is tested with processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import IO

from bookie.cli import app
from tests.servers.running import PIDS

PIPE_BYTES_MAX = 2**16
"""A pipe takes so much before anybody reads."""


class CommandProcess:
    """The process, as tests see it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, words: Sequence[str], lines: str = "") -> tuple[int, str, str]:
        """A command that is given `lines`; its exit status, and what it said on both streams."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*words, lines]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended in {words}"
        status, out, said = json.loads(answer)
        return status, out, said


@contextlib.contextmanager
def running_command_process() -> Iterator[CommandProcess]:
    """Start the process; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.cli.command_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        PIDS.add(process.pid)
        yield CommandProcess(process)
    PIDS.discard(process.pid)
    assert process.returncode == 0


def main() -> None:
    """Run what each line of standard input asks for, until it ends."""
    asked, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w")
    with asked, answers:
        for line in asked:
            *words, lines = json.loads(line)
            with TemporaryFile() as out, TemporaryFile() as said:
                status = _run(words, lines.encode(), out, said)
                texts = [_text(file) for file in (out, said)]
            print(json.dumps([status, *texts]), file=answers, flush=True)


def _run(words: list[str], given: bytes, out: IO[bytes], said: IO[bytes]) -> int:
    """One command, whose standard streams are a pipe and two files."""
    assert len(given) <= PIPE_BYTES_MAX
    reader, writer = os.pipe()
    os.write(writer, given)
    os.close(writer)
    for source, target in ((reader, 0), (out.fileno(), 1), (said.fileno(), 2)):
        os.dup2(source, target)
    os.close(reader)
    with (
        open(0, closefd=False) as sys.stdin,
        open(1, "w", closefd=False) as sys.stdout,
        open(2, "w", closefd=False) as sys.stderr,
    ):
        try:
            return app.run(words)
        except SystemExit as ended:
            return int(ended.code or 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
