"""The newcomer's page about lost copies, typed as it is printed where only the package is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import ROOT, variables
from tests.installed.terminal import PROMPT, Terminal, Typed, open_terminal, typed

PAGE = (ROOT / "docs" / "lost-copies.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: typed(part.partition("\n")[2]) for part in PAGE.split("\n## ")[1:]
}
UP = "Ctrl-C here stops it."


@pytest.fixture(name="home")
def _home(plain: Path, tmp_path: Path) -> Path:
    """A directory in which `make run` has installed the package."""
    (tmp_path / ".venv").symlink_to(plain.parent)
    return tmp_path


@pytest.fixture(name="first")
def _first(home: Path) -> Iterator[Terminal]:
    """The terminal of the cluster."""
    with open_terminal(home, variables()) as terminal:
        yield terminal


def start(first: Terminal, command: str) -> str:
    first.send(f"{command}\n")
    return first.read_until(UP)


def stop(first: Terminal) -> None:
    first.send("\x03")
    first.read_until(PROMPT)


def test_the_page_of_lost_copies(home: Path, first: Terminal) -> None:
    """Every section in its order, and what each of them says about its commands."""
    with open_terminal(home, variables()) as second:

        def follow(entries: list[Typed]) -> str:
            """Type them; what they print, all in one."""
            said = ""
            for entry in entries:
                said += second.follow(entry)
                if entry.command.startswith("bookie cluster health"):
                    status = second.type("echo $?").strip()
                    assert status == ("1" if "exit status 1" in entry.command else "0"), said
            return said

        up, *entries = SECTIONS["Four bookies"]
        start(first, up.command)
        assert follow(entries).count("CLOSED") > 1
        assert "bookie-2" in follow(SECTIONS["Lose a bookie"])

        stop(first)
        removal, *entries = SECTIONS["Lose a disk"]
        follow([removal])
        start(first, up.command)
        follow(entries)

        stop(first)
        more, *entries = SECTIONS["Add a bookie"]
        start(first, more.command)
        assert "CLOSED" in follow(entries)

        follow(SECTIONS["Remove a bookie"])
        stop(first)
        said = start(first, ".venv/bin/bookie local --data lab")
        assert (
            f"bookie-1 has left the cluster and is not started; `rm -r {home}/lab/bookie-1" in said
        )
        assert second.type("bookie cluster bookies").count("writable") == 4
