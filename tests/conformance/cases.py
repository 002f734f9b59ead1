"""The numbered behaviours of a metadata store, and which test shows which of them.

A test names its cases in its docstring ("Cases 5, 6, 10-12."). Source: the list of cases gathered
from Pulsar's, BookKeeper's and ZooKeeper's own tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.conformance.backends import BACKENDS

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
    range(105, 106): "no formatting of a cluster in place: it is nuked, and made again",
    range(96, 99): "no event synchronizer: last writer wins on wall clocks loses writes",
}
"""Cases that tests cannot show, because we lack their subject; each with the reason."""

_LMDB = "about the files of LMDB, which only `local` has"
_DISK = "nothing lies between a process and its disk that an outage could cut"
_MACHINE = "a test cannot move the clock of a machine; sessions count by `boot_time_seconds`"
_COMPACTED = "only etcd forgets former revisions; elsewhere a Resync is shown by outages"

NOT_SHOWN: dict[str, dict[int, str]] = {
    "memory": {
        30: _LMDB,
        155: "no process can be killed that has a session of its own in the memory of another",
        158: _COMPACTED,
    },
    "local": {
        26: _DISK,
        110: _DISK,
        112: _DISK,
        158: _COMPACTED,
        162: _MACHINE,
    },
    "etcd": {30: _LMDB, 162: _MACHINE},
    "zk": {30: _LMDB, 158: _COMPACTED, 162: _MACHINE},
}
"""By backend: cases that no test shows on it, although one does on another; with the reason."""

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


_WORDS = {"memory": "memory", "local": "local", "etcd": "etcd", "zk": "zookeeper"}
"""Parts of the names of files whose tests are about one backend."""


def backends_of(path: Path, fixtures: set[str]) -> set[str]:
    """The backends that a test of the file `path` runs on, by what it asks for.

    What is about no backend in particular (the machine of all sessions, the layouts of ledgers) is
    shown for all of them.
    """
    if any("cut_off_backend" in fixture for fixture in fixtures):
        return {name for name, kind in BACKENDS.items() if kind.can_disconnect}
    return {name for name, word in _WORDS.items() if word in path.stem} or set(BACKENDS)


def named_in(directory: Path) -> Iterator[tuple[str, set[str], set[int]]]:
    """Every test below `directory` with its backends and the cases that it names."""
    for path in sorted(directory.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = cases_of(ast.get_docstring(node))
                if named:
                    fixtures = {argument.arg for argument in node.args.args}
                    yield f"{path.name}::{node.name}", backends_of(path, fixtures), named
