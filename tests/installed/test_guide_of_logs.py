"""The guide of logs, typed as it is printed where only the package is installed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import ROOT, run, running_cluster, variables
from tests.installed.terminal import open_terminal, typed

GUIDE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
FIVE_MINUTES = GUIDE.split("## Five minutes", 1)[1].split("\n## ", 1)[0]

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


@pytest.fixture(scope="module")
def home(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory like that of the repository, in which `make run` was typed."""
    directory = tmp_path_factory.mktemp("guide")
    (directory / ".venv").symlink_to(plain.parent)
    with running_cluster(plain, directory):
        yield directory


def python(home: Path, program: str) -> str:
    """What a program prints."""
    words = [str(home / ".venv/bin/python"), "-W", "error", "-c", program]
    metadata = f"local://{home}/data/metadata"
    return run(words, home, variables(BOOKIE_METADATA=metadata))


def test_five_minutes_and_every_example(home: Path) -> None:
    """The tutorial prints what the guide says; then each snippet runs on what it left."""
    names = re.findall(r"`(\w+\.py)`:$", FIVE_MINUTES, re.MULTILINE)
    programs = python_blocks(FIVE_MINUTES)
    assert names == ["produce.py", "consume.py"]
    for name, program in zip(names, programs, strict=True):
        (home / name).write_text(program)
    with open_terminal(home, variables()) as terminal:
        commands = typed(FIVE_MINUTES)
        assert len(commands) == 6
        for entry in commands:
            terminal.follow(entry)

    snippets = [block for block in python_blocks(GUIDE) if block not in programs]
    assert len(snippets) == 5
    said = [python(home, SNIPPET.format(textwrap.indent(snippet, " " * 8))) for snippet in snippets]
    append_again, read, join, exactly_once, publish = said
    assert append_again == exactly_once == ""
    assert [int(line.split()[0]) for line in read.splitlines()][:2] == [5, 6]
    assert read.splitlines()[-1].endswith("b'order 10'")
    assert join == "orders 0 1 b'order 0'\n"  # a snapshot of producers has offset 0
    assert publish == "True\n"
    counted = python(home, COUNT)
    assert counted == "11\n"


COUNT = """\
import sqlite3
print(sqlite3.connect("totals.db").execute("SELECT records FROM done").fetchone()[0])
"""
