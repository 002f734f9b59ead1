"""The engine has a face: the node and the daemon call its methods, and know none of its parts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.test_tidy import PACKAGE, ROOT

CALLERS = sorted([*(PACKAGE / "node").glob("*.py"), *(PACKAGE / "daemon").rglob("*.py")])


def reaches(text: str) -> list[str]:
    """Each place that names an attribute of an attribute of the engine."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and ast.unparse(node.value.value).rpartition(".")[2] in ("engine", "_engine")
    ]


@pytest.mark.parametrize("path", CALLERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nobody_reaches_through_the_engine(path: Path) -> None:
    """A question about a part becomes a method of `Engine`."""
    assert reaches(path.read_text(encoding="utf-8")) == []


def test_a_reach_is_noticed() -> None:
    """Through a name and through an attribute."""
    assert reaches("self._engine.scrubber.findings") == ["1: self._engine.scrubber.findings"]
    assert reaches("engine.admission.add(x)") == ["1: engine.admission.add"]
    assert reaches("self._engine.add(x)") == []
