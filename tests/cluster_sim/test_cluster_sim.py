"""Whole clusters in virtual time: no seed breaks a rule, and together they reach rare things."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.cluster_sim.cluster_observers import SOMETIMES, SOMETIMES_SEEDS
from tests.cluster_sim.cluster_script import simulate_cluster
from tests.cluster_sim.cluster_swarm import draw_moves
from tests.cluster_sim.conftest import parametrize_seeds, trace_elsewhere

SEEDS = 80
SEEDS_A_TEST = 40
"""All rare things happen in each test."""

MOVES, MOVES_A_TEST = 24, 12
"""Seeds in which copies move, likewise."""
SEEDS_OF_A_SOAK = 10_000
SEEDS_A_TEST_OF_A_SOAK = SOMETIMES_SEEDS
SEEDS_A_TRACE = 50
"""One seed of so many is run twice more, in processes of its own."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Eighty seeds by default, the second half at night; ten thousand in a soak."""
    soak = SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK
    parametrize_seeds(metafunc, "clusters", (SEEDS, SEEDS_A_TEST), soak)
    parametrize_seeds(metafunc, "moves", (MOVES, MOVES_A_TEST), soak)


@pytest.mark.timeout(1800)
def test_clusters_keep_the_rules(clusters: range, report: Callable[[str], None]) -> None:
    """Every seed ends calm and breaks no rule; rare things happen often enough."""
    counts: Counter[str] = Counter()
    virtual_seconds, began = 0.0, time.monotonic()
    for seed in clusters:
        try:
            outcome = simulate_cluster(seed)
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} shows it again")
            raise
        assert not outcome.problems, outcome.describe()
        counts += outcome.counts
        virtual_seconds += outcome.virtual_seconds
    rate = len(clusters) / (time.monotonic() - began)
    told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
    report(
        f"clusters from seed {clusters[0]}: {rate:.1f} seeds/s, "
        f"{virtual_seconds / 3600:.2f} simulated hours; {told}"
    )
    share = len(clusters) / SOMETIMES_SEEDS
    rare = {name: counts[name] for name in SOMETIMES if counts[name] < SOMETIMES[name] * share}
    assert not rare, f"these happened too rarely: {rare}"
    for seed in clusters[::SEEDS_A_TRACE]:
        assert trace_elsewhere("cluster_script", seed, "1") == trace_elsewhere(
            "cluster_script", seed, "4711"
        )


@pytest.mark.timeout(1800)
def test_moves_of_copies_keep_the_rules(moves: range, report: Callable[[str], None]) -> None:
    """Bookies are taken out of ledgers under writers, recoveries, deletions and losses."""
    counts: Counter[str] = Counter()
    for seed in moves:
        outcome = simulate_cluster(seed, draw_moves(seed))
        assert not outcome.problems, f"seed {seed}: {outcome.describe()}"
        counts += outcome.counts
    told = {name: count for name, count in sorted(counts.items()) if name.startswith("copies")}
    report(f"moves from seed {moves[0]}: {told}")
    assert counts["copies repaired"] >= len(moves), told
    assert counts["copies open"] >= len(moves), told


def test_a_cluster_does_not_depend_on_what_ran_before() -> None:
    """A seed leaves the same trace after another one, and another seed leaves another."""
    first = simulate_cluster(3)
    assert simulate_cluster(3).trace == first.trace == trace_elsewhere("cluster_script", 3, "0")
    assert simulate_cluster(5).trace != first.trace
