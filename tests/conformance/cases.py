"""The numbered behaviours of a metadata store, and which test shows which of them.

A test names its cases in its docstring ("Cases 5, 6, 10-12."). Source: the list of cases gathered
from Pulsar's, BookKeeper's and ZooKeeper's own tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

CASES = range(1, 163)

NOT_OURS: dict[range, str] = {
    range(
        25, 26
    ): "no configuration file of ZooKeeper's client: the section [metadata] says it all",
    range(28, 29): "no scheme of a user's own: the four backends are all there are",
    range(
        36, 37
    ): "no answer that could grow too large: reads are sent one by one, each of one value",
    range(38, 41): "no sequence keys of several dimensions and no secondary indexes: `sequential`"
    " numbers records, and what is looked up has a key of its own",
    range(85, 96): "no table view: nothing here keeps a whole prefix of typed records, the bookie"
    " directory and the typed cache are the two views there are",
    range(96, 99): "no event synchronizer: last writer wins on wall clocks loses writes",
    range(134, 135): "the auditor belongs to repair, which is not built yet",
    range(
        152, 154
    ): "end to end: the client's tests write, read, recover and fence on real bookies",
}
"""Cases that no test can show, because we do without what they are about; each with the reason."""

_MENTION = re.compile(r"\bCases? ([0-9][0-9, -]*)")


def cases_of(docstring: str | None) -> set[int]:
    """The cases that a docstring names."""
    found: set[int] = set()
    for mention in _MENTION.findall(docstring or ""):
        for part in re.findall(r"\d+(?:-\d+)?", mention):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def spans(numbers: Iterable[int]) -> str:
    """``1-3, 7`` for 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def named_in(directory: Path) -> Iterator[tuple[str, set[int]]]:
    """Every test below `directory` with the cases that it names."""
    for path in sorted(directory.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = cases_of(ast.get_docstring(node))
                if named:
                    yield f"{path.name}::{node.name}", named
