"""Random lives of the real engine: every promise is kept, and a seed always does the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.lying_devices import WAYS_TO_LIE, lie
from tests.sim.random_lives import FAILURES, Outcome, simulate

ROOT = Path(__file__).parents[2]
SEEDS = 60
SEEDS_OF_A_SOAK = 6_000
SEEDS_A_TEST = 30
BAD_SEEDS = 120
"""Seeds with bad devices, all in one test: together they have to have every fault."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A few seeds by default, many in a soak."""
    soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
    for name, seeds, step in (
        ("first_seed", SEEDS, SEEDS_A_TEST),
        ("first_bad_seed", BAD_SEEDS, BAD_SEEDS),
    ):
        if name in metafunc.fixturenames:
            last = SEEDS_OF_A_SOAK if soak else seeds
            metafunc.parametrize(name, range(0, last, step))


def live(seeds: range, simulate_one: Callable[[int], Outcome]) -> Outcome:
    """What happened in the seeds of one test, all together."""
    total = Outcome()
    for seed in seeds:
        outcome = simulate_one(seed)
        total.lives += outcome.lives
        total.requests += outcome.requests
        total.struck.update(outcome.struck)
        total.reported += outcome.reported
    assert total.requests > 100
    return total


def test_promises_are_kept_through_crashes(first_seed: int, report: Callable[[str], None]) -> None:
    """Everything acknowledged is there and identical, and nothing is denied, life after life."""
    total = live(range(first_seed, first_seed + SEEDS_A_TEST), simulate)
    report(f"seeds from {first_seed}: {total.lives} lives, {total.requests} requests")


def test_promises_are_kept_by_failing_devices(
    first_bad_seed: int, report: Callable[[str], None]
) -> None:
    """Errors, syncs that lose what they should write, stalls, full devices: all as before."""
    seeds = range(first_bad_seed, first_bad_seed + BAD_SEEDS)
    total = live(seeds, lambda seed: simulate(seed, faults=True))
    report(
        f"seeds from {first_bad_seed}, failing devices: {total.lives} lives, "
        f"{total.requests} requests, {total.struck.total()} faults: {counts(total)}"
    )
    if first_bad_seed == 0:
        wanted = {*map(str, FAILURES), "device full"}
        assert wanted == {name for name, count in total.struck.items() if count}


def test_no_lies_about_what_devices_lie_about(
    first_bad_seed: int, report: Callable[[str], None]
) -> None:
    """Lost, misdirected and flipped writes, bad sectors: bytes are right, denials are announced."""
    total = live(range(first_bad_seed, first_bad_seed + BAD_SEEDS), lie)
    report(
        f"seeds from {first_bad_seed}, lying devices: {total.lives} lives, "
        f"{total.requests} requests, {total.struck.total()} lies, {total.reported} alarms: "
        f"{counts(total)}"
    )
    if first_bad_seed == 0:
        assert {name for name, count in total.struck.items() if count} == set(WAYS_TO_LIE)


def counts(outcome: Outcome) -> str:
    """How often each fault struck."""
    return ", ".join(f"{name} {count}" for name, count in sorted(outcome.struck.items()))


@pytest.mark.parametrize(("seed", "faults"), [(3, False), (11, False), (5, True)])
def test_a_seed_does_the_same_in_any_process(seed: int, faults: bool) -> None:
    """Nothing depends on addresses, on hashes of strings, or on what ran before."""
    expected = " ".join(map(str, simulate(seed, faults=faults).traces))
    more = ["faults"] if faults else []
    for hash_seed in ("1", "4711"):
        found = subprocess.run(
            [sys.executable, "-m", "tests.sim.random_lives", str(seed), *more],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == expected
    assert simulate(seed + 1).traces != simulate(seed).traces
