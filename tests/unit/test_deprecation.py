"""Deprecated spellings: how they warn, and that each leaves as `docs/compatibility.md` says."""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from bookie.config import warn_deprecated

ROOT = Path(__file__).parents[2]


def old_spelling(name: str) -> None:
    """A function that is deprecated."""
    warn_deprecated(f"{name}()", since="0.1.0", removal="0.3.0", instead="new_spelling()")


def test_a_deprecated_spelling_warns_once() -> None:
    """At the place of its use, with both versions and what to use instead."""
    with warnings.catch_warnings(record=True, action="always") as told:
        for _ in range(3):
            old_spelling("once")
    (warning,) = told
    assert warning.category is DeprecationWarning
    assert str(warning.message) == (
        "once() is deprecated since bookie 0.1.0, and 0.3.0 removes it; use new_spelling()"
    )
    assert warning.filename == __file__


def test_where_warnings_are_errors_each_use_is_one() -> None:
    """Else a test that runs later would not see it."""
    for _ in range(2):
        with pytest.raises(DeprecationWarning):
            old_spelling("each time")


def deprecations() -> Iterator[dict[str, str]]:
    """The versions that each use of `warn_deprecated` in the package names."""
    for path in sorted((ROOT / "bookie").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "warn_deprecated(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warn_deprecated":
                named = {each.arg: each.value for each in node.keywords if each.arg}
                yield {name: ast.literal_eval(named[name]) for name in ("since", "removal")}


def test_nothing_stays_beyond_its_removal_or_goes_too_early() -> None:
    """At least two minor versions lie between, and the page has a row for each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (\d+\.\d+\.\d+) \| (\d+\.\d+\.\d+) \| .* \|$", page, re.MULTILINE)
    found = list(deprecations())
    assert sorted((each["since"], each["removal"]) for each in found) == sorted(rows)
    for each in found:
        since, removal = Version(each["since"]), Version(each["removal"])
        assert removal > Version(project["version"]), f"{removal} removes it: remove it"
        assert removal.major > since.major or removal.minor >= since.minor + 2
