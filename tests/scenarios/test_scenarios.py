"""Every scenario of this folder, one test a file; README.md explains their language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.scenario_commands import COMMANDS, run_scenario
from tests.scenarios.scenario_expectations import EXPECTATIONS
from tests.scenarios.scenario_script import ScenarioFailedError, ScriptError

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """What the file expects happens, and no command breaks the rule about acknowledged entries."""
    assert path.read_text(encoding="utf-8").startswith("# "), "line 1 says what may go wrong"
    assert run_scenario(path) > 0, "it expects nothing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("append 1", "bad.txt:1: append 1: the first command is `ledger`"),
        ("ledger 3 3 2\n\napend 1", "bad.txt:3: apend 1: there is no command apend"),
        ("ledger 3 3 2\nappend x", "bad.txt:2: append x: x is not a number"),
        ("ledger 3 3 2\ncrash b9", "bad.txt:2: crash b9: there is no bookie b9"),
        ("ledger 3 3 2\nexpect luck", "bad.txt:2: expect luck: nothing to expect: luck"),
        ("ledger 3 3", "bad.txt:1: ledger 3 3: "),
        ("limits patience=3", "bad.txt:1: limits patience=3: writers have no limit patience"),
    ],
)
def test_a_wrong_script_is_told_where(tmp_path: Path, text: str, said: str) -> None:
    """The message names the file and the line."""
    path = tmp_path / "bad.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        run_scenario(path)
    assert str(caught.value).startswith(said)


def test_a_wrong_expectation_is_told_where(tmp_path: Path) -> None:
    """The message says what was found as well."""
    path = tmp_path / "wrong.txt"
    path.write_text("ledger 3 3 2\nappend 1\nexpect lac 0  # too early", encoding="utf-8")
    with pytest.raises(ScenarioFailedError, match=r"^wrong\.txt:3: expect lac 0: found -1$"):
        run_scenario(path)


def test_the_example_of_the_page_is_a_scenario(tmp_path: Path) -> None:
    """And the page has every command and every expectation."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    path = tmp_path / "example.txt"
    example = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    path.write_text("\n".join(example), encoding="utf-8")
    assert run_scenario(path) == 3
    words = set(re.findall(r"[a-z_-]+", page))
    assert not (COMMANDS.keys() | EXPECTATIONS.keys()) - words
