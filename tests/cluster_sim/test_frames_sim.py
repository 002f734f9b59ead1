"""Clusters in virtual time whose bookies offer frames: the carrier's own code, on simulated TCP.

Clients begin by gRPC, and go over to frames while everything goes wrong. Where only every second
bookie offers frames, each client goes by both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.cluster_sim.cluster_script import simulate_cluster
from tests.cluster_sim.cluster_swarm import draw_frames
from tests.cluster_sim.conftest import parametrize_seeds, trace_elsewhere
from tests.cluster_sim.log_script import simulate_logs
from tests.cluster_sim.log_swarm import draw_framed_logs

SEEDS, SEEDS_A_TEST = 60, 20
LOG_SEEDS, LOG_SEEDS_A_TEST = 24, 8
SEEDS_OF_A_SOAK, LOG_SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK = 10_000, 3000, 100

ADDS_MIN = 50
"""The least number of adds by frames for each seed, on average."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A third of the seeds by day; ten thousand in a soak."""
    soak = SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK
    parametrize_seeds(metafunc, "seeds", (SEEDS, SEEDS_A_TEST), soak)
    soak = LOG_SEEDS_OF_A_SOAK, SEEDS_A_TEST_OF_A_SOAK
    parametrize_seeds(metafunc, "log_seeds", (LOG_SEEDS, LOG_SEEDS_A_TEST), soak)


@pytest.mark.timeout(1800)
def test_clusters_keep_the_rules_by_frames(seeds: range, report: Callable[[str], None]) -> None:
    """Every seed ends calm and breaks no rule, and its adds go by frames."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate_cluster(seed, draw_frames(seed))
        assert not outcome.problems, f"with --frames: {outcome.describe()}"
        counts += outcome.counts
    told = {name: counts[name] for name in sorted(counts)}
    report(f"clusters by frames from seed {seeds[0]}: {told}")
    assert counts["add by frames"] >= ADDS_MIN * len(seeds), told


@pytest.mark.timeout(1800)
def test_logs_keep_the_rules_by_frames(log_seeds: range, report: Callable[[str], None]) -> None:
    """Writers that take a log from each other, readers, consumers, and a publisher."""
    counts: Counter[str] = Counter()
    for seed in log_seeds:
        outcome = simulate_logs(seed, draw_framed_logs(seed))
        assert not outcome.problems, f"with --frames: {outcome.describe()}"
        counts += outcome.counts
    told = {name: counts[name] for name in sorted(counts)}
    report(f"logs by frames from seed {log_seeds[0]}: {told}")
    assert counts["add by frames"] >= ADDS_MIN * len(log_seeds), told


def test_a_seed_leaves_the_same_trace_in_other_processes() -> None:
    """Frames depend on nothing but the seed, too."""
    for seed in (3, 4):
        first = simulate_cluster(seed, draw_frames(seed)).trace
        assert trace_elsewhere("cluster_script", seed, "4711", "--frames") == first
        assert simulate_cluster(seed).trace != first
    logs = simulate_logs(3, draw_framed_logs(3)).trace
    assert trace_elsewhere("log_script", 3, "4711", "--frames") == logs
