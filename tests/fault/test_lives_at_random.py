"""Ids that are used again, stores that go back in time, and wrong clocks, as a seed draws them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bookie.node.engine.ledger_state import LocalLedger
from tests.fault.lives_episode import episode

STEPS = 150
SEEDS = 3
SEEDS_SOAK = 100

SOMETIMES = {"id used again": 3, "restore": 2, "entry read": 100, "ledger held": 5, "record": 5}
"""What the seeds of a run reach together, at least."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_nobody_sees_another_life(tmp_path: Path, is_soak: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_SOAK if is_soak else SEEDS):
        async with episode(tmp_path / str(seed), seed) as story:
            await story.run(STEPS)
        assert not story.lives.problems, f"seed {seed}: {story.lives.problems}"
        counts += story.lives.counts
    missed = {what: counts[what] for what, least in SOMETIMES.items() if counts[what] < least}
    assert not missed, f"too rare: {missed} of {counts}"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_the_episode_sees_entries_of_another_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bookies that take every key for the right one."""
    monkeypatch.setattr(LocalLedger, "accepts_key", lambda _self, _key: True)
    for seed in range(20):
        async with episode(tmp_path / str(seed), seed) as story:
            await story.run(STEPS)
        if any("of token" in problem for problem in story.lives.problems):
            return
    pytest.fail("no seed saw an entry of another life")
