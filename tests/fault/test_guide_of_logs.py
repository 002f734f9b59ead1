"""The guide of logs, typed as it is printed against a cluster of real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.server.local.process import child_environment

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
FIVE_MINUTES = GUIDE.split("## Five minutes", 1)[1].split("\n## ", 1)[0]
SECONDS_MAX = 60.0

SNIPPET = """\
import asyncio, os, sqlite3
from bookie import connect, retry
from bookie.api import AutoCommit

async def main():
    async with connect(os.environ["BOOKIE_METADATA"]) as bk:
{}
asyncio.run(main())
"""
"""What stands around the lines of a snippet that is no program."""


def python_blocks(text: str) -> list[str]:
    """The examples in Python."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def typed(text: str) -> list[tuple[str, str]]:
    """The commands of the examples, and what is printed below each."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).+\n)*)", "".join(blocks), re.MULTILINE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory like that of the repository, in which `make run` was typed."""
    directory = tmp_path_factory.mktemp("guide")
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("bookie", " -m bookie")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)
    served = [sys.executable, "-m", "bookie", "local", "--bookies", "3"]
    served += ["--data", str(directory / "data")]
    with subprocess.Popen(served, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        try:
            for line in supervisor.stdout:
                if line.startswith("The cluster is up"):
                    break
            yield directory
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.stdout.read()
    assert supervisor.returncode == 0


def run(home: Path, *words: str) -> str:
    """What a command prints; it must succeed."""
    metadata = f"local://{home}/data/metadata"
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=home,
        env=child_environment(os.environ) | {"BOOKIE_METADATA": metadata},
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def test_five_minutes_and_every_example(home: Path) -> None:
    """The tutorial prints what the guide says; then each snippet runs on what it left."""
    names = re.findall(r"`(\w+\.py)`:$", FIVE_MINUTES, re.MULTILINE)
    programs = python_blocks(FIVE_MINUTES)
    assert names == ["produce.py", "consume.py"]
    for name, program in zip(names, programs, strict=True):
        (home / name).write_text(program)
    (export, _), *commands = typed(FIVE_MINUTES)
    assert len(commands) == 5
    for command, printed in commands:
        shown = run(home, "bash", "-o", "pipefail", "-c", f"{export}; {command}")
        assert not printed or shown == printed, command

    snippets = [block for block in python_blocks(GUIDE) if block not in programs]
    assert len(snippets) == 5
    said = [
        run(home, sys.executable, "-c", SNIPPET.format(textwrap.indent(snippet, " " * 8)))
        for snippet in snippets
    ]
    append_again, read, join, exactly_once, publish = said
    assert append_again == exactly_once == ""
    assert [int(line.split()[0]) for line in read.splitlines()][:2] == [5, 6]
    assert read.splitlines()[-1].endswith("b'order 10'")
    assert join == "orders#0 b'order 0'\n"
    assert publish == "True\n"
    counted = run(home, sys.executable, "-c", COUNT)
    assert counted == "11\n"


def test_the_tour_of_the_readme_begins(home: Path) -> None:
    """Its first commands print what the README says."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.split("## Ten minutes", 1)[1].split("\n**", 1)[0]
    commands = typed(tour)
    assert [command.split()[0] for command, _ in commands[:2]] == ["export", "bookie"]
    script = "\n".join(["exec 2>&1", *(command for command, _ in commands)])
    assert run(home, "bash", "-eo", "pipefail", "-c", script) == "".join(
        printed for _, printed in commands
    )


COUNT = """\
import sqlite3
print(sqlite3.connect("totals.db").execute("SELECT records FROM done").fetchone()[0])
"""
