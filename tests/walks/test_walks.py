"""The ways that ARCHITECTURE.md describes are the ways that calls take."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bookie.addresses import is_wildcard, join_address
from bookie.ids import is_vacant
from tests.walks.walk import WalkRecorder
from tests.walks.ways import ADD, LOG_APPEND, LOG_READ, READ, SESSION, TAKEOVER

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"

WAYS: Mapping[str, tuple[str, ...]] = {
    "The way of an add": (ADD,),
    "The way of a read": (READ,),
    "The way of a log": (TAKEOVER, LOG_APPEND, LOG_READ),
    "The life of a session": (SESSION,),
}
"""By heading: the walk of each numbered row; the last walk is that of all further rows."""

OFF_THE_WAY: Mapping[str, str] = {
    "node/engine/duplicates.py": "only ids that may be stored already are compared",
}
"""Files that a row names for a case that does not occur here, and the case."""


def rows_below(heading: str) -> list[str]:
    """The numbered rows of a section, those of a table or of a list, each as one line."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    section = re.sub(r"\n {3}", " ", rest.partition("\n## ")[0])
    return re.findall(r"^(?:\| *\d+\w? *\|.*|\d+\. .*)$", section, re.MULTILINE)


def offences(row: str, walk: str, files: Mapping[str, Sequence[str]]) -> list[str]:
    """Files that the row names and the walk does not enter, and such functions behind a file."""
    found = []
    for file, function in re.findall(r"`([\w/]+\.py)`(?: `([\w.]+)`)?", row):
        if file in OFF_THE_WAY:
            if file in files:
                found.append(f"{walk} enters {file}; strike it from OFF_THE_WAY")
        elif file not in files:
            found.append(f"{walk} does not enter {file}")
        elif not any(f".{function}" in f".{name}." for name in files[file]):
            found.append(f"{walk} does not enter {function} in {file}")
    return found


def printed_walks() -> dict[str, dict[str, list[str]]]:
    """By name of a walk and by file, the functions that the recipe of ``make walk`` prints."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^walk:.*\n\t@\$\(BIN\)/python (.*)$", makefile, re.MULTILINE)
    assert recipe is not None
    done = subprocess.run(
        [sys.executable, *recipe[1].split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    walks: dict[str, dict[str, list[str]]] = {}
    name = file = ""
    for line in filter(None, done.stdout.splitlines()):
        text = line.strip()
        if line == text:
            name = text.partition(":")[0]
            walks[name] = {}
        elif line == f"  {text}":
            file = text
        else:
            walks[name].setdefault(file, []).append(text)
    return walks


def test_each_file_that_a_way_names_is_entered() -> None:
    """The page is wrong where this fails: correct the row, or say why it is `OFF_THE_WAY`."""
    walks = printed_walks()
    found = []
    for heading, names in WAYS.items():
        rows = rows_below(heading)
        assert len(rows) >= len(names), f"ARCHITECTURE.md has no rows below {heading!r}"
        for number, row in enumerate(rows):
            name = names[min(number, len(names) - 1)]
            found += offences(row, name, walks[name])
    assert not found, "\n" + "\n".join(found)


def test_a_walk_tells_files_functions_and_changes() -> None:
    """Each function stands once, below its file; a file that comes again is named again."""
    recorder = WalkRecorder()
    with recorder.watching(), recorder.walk("an example") as walk:
        join_address("host", 1)
        is_vacant("bookie-1")
        is_wildcard("::")
        join_address("host", 2)
    assert str(walk).splitlines() == [
        "an example: 2 files, 3 functions, 2 changes of file",
        *("  addresses.py", "    join_address"),
        *("  ids.py", "    is_vacant"),
        *("  addresses.py", "    is_wildcard"),
    ]
