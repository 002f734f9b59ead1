"""The README, typed as it is written by somebody who has only a clone and Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import ROOT, fresh_clone, variables
from tests.installed.terminal import PROMPT, Terminal, missing_line, open_terminal, typed

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = README.split("## Ten minutes", 1)[1].split("## From Python", 1)[0]
(PROGRAM,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
UP = "Ctrl-C here stops it."


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone."""
    return fresh_clone(tmp_path / "bookie")


@pytest.fixture
def first_terminal(clone: Path) -> Iterator[Terminal]:
    """The terminal in which `make run` is typed."""
    with open_terminal(clone, variables()) as terminal:
        yield terminal


def test_the_tour_of_the_readme(clone: Path, first_terminal: Terminal) -> None:
    """`make run` alone makes it possible. What is printed is what the README says."""
    first_terminal.send("make run\n")
    offered = first_terminal.read_until(UP).split("In another terminal:", 1)[1]
    with open_terminal(clone, variables()) as other:
        printed = [other.type(line.strip()) for line in offered.splitlines()[:-1] if line]
    assert missing_line(["998", "999", "1000"], printed[3]) is None, printed[3]
    assert printed[4].count("bookie-") == 3
    with open_terminal(clone, variables()) as second:
        for entry in typed(TOUR):
            second.follow(entry)
        assert second.type("echo $?").strip() == "1", "health names bookie-2, and says so"

        first_terminal.send("\x03")
        first_terminal.read_until(PROMPT)
        first_terminal.send("make run\n")
        first_terminal.read_until(UP)
        second.type("until bookie cluster health; do sleep 1; done")
        shown = second.type("bookie repair list")
        assert "no ledger lacks copies" in shown, "bookie-2 has what it missed"

        (clone / "program.py").write_text(PROGRAM, encoding="utf-8")
        printed = second.type("python program.py").splitlines()
        assert [line.split()[0] for line in printed] == ["0", "1", "2", "0"]
    first_terminal.send("\x03")
    assert "stopped; the same command starts it again" in first_terminal.read_until(PROMPT)
