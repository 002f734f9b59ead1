"""The simulation of clusters bites: each cluster with one bug is caught within a few seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster_sim.broken_clusters import BROKEN_CLUSTERS, BrokenCluster
from tests.cluster_sim.cluster_script import simulate_cluster

SEEDS_MAX = 12
"""A bug has to show within so many seeds."""


@pytest.mark.parametrize("broken", BROKEN_CLUSTERS, ids=lambda broken: broken.name)
def test_a_bug_of_a_cluster_is_found(broken: BrokenCluster, report: Callable[[str], None]) -> None:
    for seed in range(broken.first_seed, broken.first_seed + SEEDS_MAX):
        with broken.build():
            outcome = simulate_cluster(seed, broken.swarm(seed))
        if outcome.problems:
            said = next(line for line in outcome.problems[-1].splitlines() if ":" in line)
            report(f"clusters, {broken.name}: seed {seed}: {said[:100]}")
            sound = simulate_cluster(seed, broken.swarm(seed))
            assert not sound.problems, sound.describe()
            return
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")
