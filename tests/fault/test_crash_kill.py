"""kill -9 at every named point and at random moments: nothing acknowledged is lost or changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.env.failpoints import FAILPOINTS
from tests.fault.crash_harness import CrashHarness, Kill

LIVES_PER_SERIES = 10
COOKIE_POINTS = [name for name in FAILPOINTS if name.startswith("cookie.")]
OTHER_POINTS = [name for name in FAILPOINTS if not name.startswith("cookie.")]

NTH_MAX = {
    **dict.fromkeys(OTHER_POINTS, 1),
    **dict.fromkeys(("journal.before_write", "journal.after_write"), 100),
    **dict.fromkeys(("journal.before_sync", "journal.after_sync", "add.before_ack"), 100),
    **dict.fromkeys(("journal.before_roll", "journal.after_create", "journal.after_roll"), 3),
    **dict.fromkeys(("checkpoint.after_swap", "checkpoint.after_barrier"), 3),
    **dict.fromkeys(("checkpoint.before_commit", "checkpoint.after_commit"), 3),
    **dict.fromkeys([name for name in OTHER_POINTS if name.startswith("compaction.")], 3),
    "fence.before_ack": 8,
}
"""How often a life surely passes each point; a boot, once."""


def series(seed: int) -> list[Kill]:
    """Ten lives of one bookie: a new one dies while it gets its identity, and then goes on.

    Any four seeds in a row cover every failpoint.
    """
    choose = random.Random(seed)
    first = Kill(COOKIE_POINTS[seed % len(COOKIE_POINTS)])
    units: list[list[Kill]] = []
    for name in OTHER_POINTS[seed % 4 :: 4]:
        kill = Kill(f"{name}:{choose.randint(1, NTH_MAX[name])}")
        # A journal file dies when all of it was replayed: its life ended before any checkpoint.
        before = [Kill("checkpoint.before_commit:1")] if name == "checkpoint.before_unlink" else []
        units.append([*before, kill])
    while 1 + sum(map(len, units)) < LIVES_PER_SERIES:
        units.append([Kill(after_seconds=choose.uniform(0.01, 1.0))])
    choose.shuffle(units)
    # A boot replays only what a life before it left behind.
    if units[0][-1].failpoint.startswith("boot."):
        units.reverse()
    return [first, *(kill for unit in units for kill in unit)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Forty lives by default; a thousand, of seeds never tried before, in a soak."""
    if "seed" in metafunc.fixturenames:
        soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
        seeds = random.SystemRandom().sample(range(10**9), 100) if soak else range(4)
        metafunc.parametrize("seed", seeds)


@pytest.mark.timeout(1800)
async def test_killed_bookie_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    """Every acknowledged entry comes back identical and every fence holds, life after life."""
    harness = CrashHarness(tmp_path, seed)
    try:
        await harness.initialize()
        for kill in series(seed):
            await harness.live(kill)
        await harness.finish()
    finally:
        await harness.close()
    missed = [
        life.kill.failpoint for life in harness.lives if life.kill.failpoint and not life.reached
    ]
    assert not missed, f"seed {seed}: these failpoints were never passed: {missed}"
    assert len(harness.promises.batches) > 100
    assert harness.promises.fenced


def test_series_cover_every_failpoint() -> None:
    """The four default series pass every named point at least once."""
    named = {kill.failpoint.partition(":")[0] for seed in range(4) for kill in series(seed)}
    assert named - {""} == set(FAILPOINTS)
