"""Logs in virtual time: no seed breaks a rule, and together they reach rare things."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.cluster_sim.conftest import parametrize_seeds, trace_elsewhere
from tests.cluster_sim.log_observers import LOGS_SOMETIMES, LOGS_SOMETIMES_SEEDS
from tests.cluster_sim.log_script import simulate_logs

LOG_SEEDS, LOG_SEEDS_OF_A_SOAK = LOGS_SOMETIMES_SEEDS, 3000
LOG_SEEDS_A_TEST_OF_A_SOAK = LOGS_SOMETIMES_SEEDS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """By default as many as the table of rare things is for; three thousand in a soak."""
    soak = LOG_SEEDS_OF_A_SOAK, LOG_SEEDS_A_TEST_OF_A_SOAK
    parametrize_seeds(metafunc, "seeds", (LOG_SEEDS, LOG_SEEDS), soak)


@pytest.mark.timeout(1800)
def test_logs_keep_the_rules(seeds: range, report: Callable[[str], None]) -> None:
    """Every seed ends calm and breaks no rule of L1 to L9; rare things happen often enough."""
    counts: Counter[str] = Counter()
    virtual_seconds, began = 0.0, time.process_time()
    for seed in seeds:
        outcome = simulate_logs(seed)
        assert not outcome.problems, outcome.describe()
        counts += outcome.counts
        virtual_seconds += outcome.virtual_seconds
    told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
    report(
        f"logs from seed {seeds[0]}: {len(seeds)} seeds in {time.process_time() - began:.0f} CPU "
        f"seconds, {virtual_seconds / 60:.0f} simulated minutes; {told}"
    )
    share = len(seeds) / LOGS_SOMETIMES_SEEDS
    least = {name: most * share for name, most in LOGS_SOMETIMES.items()}
    rare = {name: counts[name] for name in least if counts[name] < least[name]}
    assert not rare, f"these happened too rarely: {rare}"


def test_a_seed_of_logs_leaves_the_same_trace_in_other_processes() -> None:
    """It depends neither on hashes nor on what ran before; another seed leaves another trace."""
    first = simulate_logs(3)
    assert (
        trace_elsewhere("log_script", 3, "1")
        == trace_elsewhere("log_script", 3, "4711")
        == first.trace
    )
    assert simulate_logs(5).trace != first.trace == simulate_logs(3).trace
