"""Tests that must not run at the same time are one group for the processes that share a run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sharing import TOGETHER

ROOT = Path(__file__).parents[2]
LOCAL = re.compile(r'"bookie", "(local|demo)"|\blocal_cluster\(')
"""What lets ``bookie local`` choose ports."""


def test_who_lets_bookie_local_choose_ports_is_one_group() -> None:
    """Another such file would have to join it; none is named that is gone."""
    starts = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if LOCAL.search(path.read_text(encoding="utf-8")) and path != Path(__file__)
    }
    assert starts == {path for path, group in TOGETHER.items() if group == "bookie local"}
    assert all((ROOT / path).is_file() for path in TOGETHER)
