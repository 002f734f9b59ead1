"""Random lives of the real engine: every promise is kept, and a seed always does the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.random_lives import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 60
SEEDS_OF_A_SOAK = 20_000
SEEDS_A_TEST = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A few seeds by default, many in a soak."""
    if "first_seed" in metafunc.fixturenames:
        soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
        last = SEEDS_OF_A_SOAK if soak else SEEDS
        metafunc.parametrize("first_seed", range(0, last, SEEDS_A_TEST))


def test_promises_are_kept_through_crashes(first_seed: int, report: Callable[[str], None]) -> None:
    """Everything acknowledged is there and identical, and nothing is denied, life after life."""
    lives = requests = 0
    for seed in range(first_seed, first_seed + SEEDS_A_TEST):
        outcome = simulate(seed)
        lives += outcome.lives
        requests += outcome.requests
    assert requests > 100
    report(f"seeds {first_seed}…{seed}: {lives} lives, {requests} requests")


@pytest.mark.parametrize("seed", [3, 11, 24])
def test_a_seed_does_the_same_in_any_process(seed: int) -> None:
    """Nothing depends on addresses, on hashes of strings, or on what ran before."""
    expected = " ".join(map(str, simulate(seed).traces))
    for hash_seed in ("1", "4711"):
        found = subprocess.run(
            [sys.executable, "-m", "tests.sim.random_lives", str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == expected
    assert simulate(seed + 1).traces != simulate(seed).traces
