"""The table of mutants fits the tree: each text stands in its file once, and each killer exists."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import chosen, verdict_of
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS


@functools.cache
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def _tests(path: str) -> frozenset[str]:
    """The names of a file's tests."""
    return frozenset(
        node.name
        for node in ast.parse(_text(path)).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name.replace(" ", "_"))
def test_a_mutant_fits_the_tree(mutant: Mutant, tmp_path: Path) -> None:
    """Whoever changes the text looks at the mutant as well."""
    path = tmp_path / mutant.path
    path.parent.mkdir(parents=True)
    path.write_text(_text(mutant.path), encoding="utf-8")
    mutant.apply(tmp_path)
    changed = path.read_text(encoding="utf-8")
    assert changed != _text(mutant.path)
    ast.parse(changed)
    assert mutant.killers
    for killer in mutant.killers:
        file, _, test = killer.partition("::")
        assert not test or test.partition("[")[0] in _tests(file), killer


def test_each_mutant_has_a_name_of_its_own() -> None:
    """`-k` chooses by it."""
    assert [name for name, count in Counter(one.name for one in MUTANTS).items() if count > 1] == []


def test_a_text_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Nobody knows which of them is meant."""
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n", encoding="utf-8")
    for before in ("x = 1\n", "y"):
        mutant = Mutant("twice", "a.py", before, "", (), "")
        with pytest.raises(ValueError, match="it has to stand there once"):
            mutant.apply(tmp_path)


def test_mutants_are_chosen_by_files_and_names() -> None:
    """Either narrows the other down."""
    assert chosen([], []) == list(MUTANTS)
    found = chosen(["log/read/", "coordination/"], ["late", "seek"])
    assert {one.path.split("/")[1] for one in found} == {"coordination", "log"}
    assert all("late" in one.name or "seek" in one.name for one in found)


@pytest.mark.parametrize(
    ("harmless", "outcome", "is_right"),
    [
        ("", "failed", True),
        ("", "stood still", True),
        ("", "passed", False),
        ("", "not run", False),
        ("for a reason", "passed", True),
        ("for a reason", "failed", False),
        ("for a reason", "not run", False),
    ],
)
def test_what_an_outcome_means(harmless: str, outcome: str, is_right: bool) -> None:
    """A bug that no test ran with was not killed."""
    mutant = Mutant("any", "a.py", "x", "y", (), "", harmless)
    assert verdict_of(mutant, outcome)[0] is is_right
