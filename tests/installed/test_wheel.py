"""The wheel in an environment with nothing else, and in one with `[spark]`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.installed.environments import run, variables

MODULES = Path(__file__).with_name("modules.py")
LEAST = 400
"""So many modules the package has, and more."""

MISSING = re.compile(r"No module named '\w+'; install it with `pip install 'bookie\[spark\]'`")


def imports(programs: Path, directory: Path) -> tuple[set[str], dict[str, Any]]:
    """What could be imported, and what not, with the reason."""
    words = [str(programs / "python"), "-W", "error", str(MODULES)]
    found = json.loads(run(words, directory).splitlines()[-1])
    return set(found["imported"]), found["failed"]


def test_every_module_imports_without_an_extra(plain: Path, tmp_path: Path) -> None:
    """But those of Spark, which say in one sentence what they need, and pytest's plugin."""
    imported, failed = imports(plain, tmp_path)
    assert len(imported) > LEAST
    assert {name for name in failed if not name.startswith(("bookie.spark", "pyspark_"))} == {
        "bookie.testing.pytest_plugin"
    }
    for name, (kind, says) in failed.items():
        if name != "bookie.testing.pytest_plugin":
            assert MISSING.fullmatch(says), f"{name}: {kind}: {says}"


def test_every_module_imports_with_spark(with_spark: Path, tmp_path: Path) -> None:
    """All but pytest's plugin."""
    imported, failed = imports(with_spark, tmp_path)
    assert len(imported) > LEAST
    assert failed.keys() == {"bookie.testing.pytest_plugin"}, failed


def test_every_command_shows_its_help(plain: Path, tmp_path: Path) -> None:
    """Each group of commands is loaded; none needs more than the wheel brings."""
    shown = run([str(plain / "bookie"), "--help"], tmp_path)
    groups = re.findall(r"^  ([a-z]+)  ", shown.split("Commands:", 1)[1], re.MULTILINE)
    assert len(groups) >= 15
    # In one process: each start would cost a second.
    program = "from bookie.cli.app import run\n"
    program += "".join(f"run([{group!r}, '--help'])\n" for group in groups)
    shown = run([str(plain / "python"), "-c", program], tmp_path)
    assert [group for group in groups if f"bookie {group}" not in shown] == []


def test_the_spark_commands_name_what_is_missing(plain: Path, tmp_path: Path) -> None:
    """One sentence, and the exit status of a command that is misused."""
    said = run(
        ["bash", "-c", f"{plain}/bookie spark stats -m local://{tmp_path}/none; echo status $?"],
        tmp_path,
        variables(),
    )
    *sentence, status = said.splitlines()
    assert status == "status 2"
    assert len(sentence) == 1, said
    assert "pip install 'bookie[spark]'" in sentence[0]
