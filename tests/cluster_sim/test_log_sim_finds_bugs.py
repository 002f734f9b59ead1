"""The simulation of logs bites: each log with one bug is caught within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.cluster_sim.log_script import simulate_logs
from tests.cluster_sim.log_swarm import LogSwarm, draw_logs
from tests.unit.log import broken_logs as broken

SEEDS_MAX = 12
"""A bug has to show within so many seeds."""

NETWORK = ("reset", "cut one way", "cut both ways", "pause")
METADATA = ("lost replies", "no metadata", "slow metadata")


@dataclass(frozen=True, slots=True)
class BrokenLog:
    """A bug, and where to look for it."""

    break_it: broken.Break
    faults: tuple[str, ...] = NETWORK
    lost_replies: float = 0.0
    recover_pause_seconds: float = 1000.0
    first_seed: int = 0
    """Where to begin; the one that has shown it spares the run of those before."""

    def swarm(self, seed: int) -> LogSwarm:
        """The features of a seed, with this focus."""
        drawn = draw_logs(seed)
        cluster = replace(
            drawn.cluster,
            faults=self.faults,
            lost_replies=self.lost_replies,
            fault_pause_seconds=0.5,
            chaos_seconds=6.0,
        )
        return replace(
            drawn,
            cluster=cluster,
            roll_bytes=2000,
            truncate_pause_seconds=1000.0,
            compact_pause_seconds=1000.0,
            recover_pause_seconds=self.recover_pause_seconds,
            append_pause_seconds=0.3,
            publish_pause_seconds=0.2,
            life_seconds=2.0,
        )


BROKEN_LOGS = (
    BrokenLog(broken.serves_before_it_is_in_the_chain),
    BrokenLog(broken.fences_before_it_claims),
    BrokenLog(broken.fences_only_the_last_ledger),
    BrokenLog(broken.mends_in_another_order, recover_pause_seconds=0.6, first_seed=4),
    BrokenLog(broken.counts_empty_ledgers, recover_pause_seconds=0.3),
    BrokenLog(broken.forgets_producers_at_a_takeover),
    BrokenLog(broken.ignores_the_last_batch, METADATA, lost_replies=0.2),
)
"""Others need rare moments: `unit/log/test_log_mutants.py` has a story of each."""


def _name(one: BrokenLog) -> str:
    return one.break_it.__name__


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("one", BROKEN_LOGS, ids=_name)
def test_a_bug_of_logs_is_found(one: BrokenLog, report: Callable[[str], None]) -> None:
    for number in range(SEEDS_MAX):
        seed = (one.first_seed + number) % SEEDS_MAX
        with pytest.MonkeyPatch.context() as patch:
            one.break_it(patch)
            outcome = simulate_logs(seed, one.swarm(seed))
        if outcome.problems:
            said = outcome.problems[-1].strip().splitlines()
            report(f"logs, {_name(one)}: seed {seed}: {said[0][:100]}")
            sound = simulate_logs(seed, one.swarm(seed))
            assert not sound.problems, sound.describe()
            return
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")
