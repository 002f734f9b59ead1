"""Clusters that repair themselves, in virtual time: no seed breaks a rule or leaves a copy out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.cluster_sim.conftest import parametrize_seeds, trace_elsewhere
from tests.cluster_sim.repair_script import simulate_repairs

SEEDS, SEEDS_A_TEST = 40, 4
SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK = 10_000, 200

SOMETIMES = {
    "move repaired": 40,
    "fill repaired": 40,
    "copies reclaimed": 30,
    "wiped bookie returned": 20,
    "session expired": 10,
    "ledger with all its copies": 400,
}
"""What `SEEDS_A_TEST_OF_A_SOAK` seeds together must reach, and how often at least."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Forty seeds by default, four of them by day; ten thousand in a soak."""
    soak = SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK
    parametrize_seeds(metafunc, "seeds", (SEEDS, SEEDS_A_TEST), soak)


@pytest.mark.timeout(3600)
def test_copies_come_back_by_themselves(seeds: range, report: Callable[[str], None]) -> None:
    """Every seed ends with all copies and breaks no rule; repair has worked in many ways."""
    counts: Counter[str] = Counter()
    virtual_seconds, began = 0.0, time.process_time()
    for seed in seeds:
        try:
            outcome = simulate_repairs(seed)
        except BaseException as error:
            error.add_note(f"seed {seed} of tests.cluster_sim.repair_script")
            raise
        assert not outcome.problems, outcome.describe()
        counts += outcome.counts
        virtual_seconds += outcome.virtual_seconds
    told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
    report(
        f"repair from seed {seeds[0]}: {len(seeds)} seeds in {time.process_time() - began:.0f} CPU "
        f"seconds, {virtual_seconds / 60:.0f} simulated minutes; {told}"
    )
    share = len(seeds) / SEEDS_A_TEST_OF_A_SOAK
    least = {name: int(most * share) for name, most in SOMETIMES.items()}
    rare = {name: counts[name] for name in least if counts[name] < least[name]}
    assert not rare, f"these happened too rarely: {rare}"


def test_a_seed_of_repair_leaves_the_same_trace_in_other_processes() -> None:
    """It depends neither on hashes nor on what ran before."""
    here = simulate_repairs(3).trace
    assert (
        trace_elsewhere("repair_script", 3, "1")
        == trace_elsewhere("repair_script", 3, "4711")
        == here
    )
