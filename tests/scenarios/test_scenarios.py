"""Every scenario of this folder, one test a file; README.md explains their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.scenario_commands import run_scenario
from tests.scenarios.scenario_script import ScriptError

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
