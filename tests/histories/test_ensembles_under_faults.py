"""Histories of clients of three real servers, of which each fault befalls some, are good."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.histories.checker import check, overlap_seconds
from tests.histories.ensembles import EtcdServers, Fault, Servers, ZooKeeperServers
from tests.histories.faulted_run import ClientFault, Manner, record_under_faults
from tests.histories.history import (
    Acquisition,
    Drawn,
    Effect,
    Gap,
    Outcome,
    Read,
    SessionEnd,
    Watched,
    Write,
)
from tests.histories.late_versions import check_late_versions
from tests.servers.etcd import EtcdCluster
from tests.servers.zookeeper import ZooKeeperEnsemble

SEEDS_OF_A_SOAK = 40
"""For each ensemble; half a minute each."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run by default; many, of seeds never tried before, in a soak."""
    soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
    seeds = random.SystemRandom().sample(range(1, 10**9), SEEDS_OF_A_SOAK) if soak else [0]
    metafunc.parametrize("seed", seeds)


@pytest.mark.timeout(1800)
async def test_histories_on_etcd_are_good(etcd_cluster: EtcdCluster, seed: int) -> None:
    await _run(EtcdServers(etcd_cluster), seed)


@pytest.mark.timeout(1800)
async def test_histories_on_zookeeper_are_good(
    zookeeper_ensemble: ZooKeeperEnsemble, seed: int
) -> None:
    gaps = await _run(ZooKeeperServers(zookeeper_ensemble), seed)
    assert gaps, "watches end with their connections, and no watch said so"


async def _run(servers: Servers, seed: int) -> int:
    """Run all faults in an order that the seed chooses; how often watches admitted a gap."""
    dice = random.Random(seed)
    one_way = dice.choice([Fault.DEAF_LEADER, Fault.MUTE_LEADER])
    faults = [f for f in Fault if f not in (Fault.DEAF_LEADER, Fault.MUTE_LEADER)] + [one_way]
    client_faults = list(ClientFault)
    dice.shuffle(faults)
    dice.shuffle(client_faults)
    manner = Manner(pace_seconds=dice.uniform(0.001, 0.03)) if seed else Manner()
    print(f"seed {seed}: {[f.name for f in faults]}, {[f.name for f in client_faults]}")
    history, struck = await record_under_faults(servers, seed, faults, client_faults, manner)
    kinds = Counter(type(entry) for entry in history)
    outcomes = Counter(entry.outcome for entry in history if isinstance(entry, Write))
    notices = [n for entry in history if isinstance(entry, Watched) for n in entry.notices]
    gaps = sum(isinstance(notice, Gap) for notice in notices)
    print(f"{dict(outcomes)}, {gaps} gaps, {overlap_seconds(history)} moments of two holders")
    late = isinstance(servers, ZooKeeperServers)
    assert "\n".join((check_late_versions if late else check)(history)) == ""
    assert set(struck) == {fault.name for fault in (*faults, *client_faults)}
    assert min(kinds[kind] for kind in (Write, Read, Acquisition, Effect, Drawn)) >= 20
    assert kinds[Watched] == 3
    # That of the client whose session the servers ended; a new leader may have saved the others.
    assert kinds[SessionEnd] >= 1
    assert outcomes[Outcome.OK] >= 50
    assert outcomes[Outcome.CONFLICT] >= 10
    return gaps
