"""What one seed of logs draws: a cluster with its faults, and the policy of the logs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.cluster_sim.cluster_swarm import ClusterSwarm, draw_cluster, draw_frames


@dataclass(frozen=True, slots=True)
class LogSwarm:
    """What one seed draws."""

    cluster: ClusterSwarm
    """Its quorums are those of both logs; its clients of ledgers are not there."""
    roll_bytes: int
    append_pause_seconds: float
    """Of writers: between two rounds of appends, at most."""
    publish_pause_seconds: float
    look_pause_seconds: float
    """Between two looks at the cursors."""
    truncate_pause_seconds: float
    compact_pause_seconds: float
    recover_pause_seconds: float
    """Between two times that somebody recovers the ledger which is written."""
    life_seconds: float
    """How long a client's process lives, on average."""
    vanish_share: float = 0.5
    """How many of these ends are crashes."""


def draw_logs(seed: int) -> LogSwarm:
    """The features of a seed."""
    choose = random.Random(f"log swarm/{seed}")
    cluster = draw_cluster(seed)
    return LogSwarm(
        cluster=replace(
            cluster,
            quorums=(choose.choice(cluster.quorums),),
            fault_pause_seconds=choose.choice((0.3, 0.8, 2.0)),
            chaos_seconds=choose.choice((3.0, 6.0)),
        ),
        roll_bytes=choose.choice((600, 2000, 1 << 20)),
        append_pause_seconds=choose.choice((0.3, 1.0, 2.0)),
        publish_pause_seconds=choose.choice((0.2, 1.0)),
        look_pause_seconds=choose.choice((0.3, 1.0)),
        truncate_pause_seconds=choose.choice((1.0, 4.0, 1000.0)),
        compact_pause_seconds=random.Random(f"compact/{seed}").choice((0.5, 2.0, 1000.0)),
        recover_pause_seconds=choose.choice((2.0, 1000.0)),
        life_seconds=choose.choice((1.5, 5.0, 20.0)),
    )


def draw_framed_logs(seed: int) -> LogSwarm:
    """The features of a seed, and bookies that offer frames."""
    swarm = draw_logs(seed)
    framed = replace(swarm.cluster, by_frames=draw_frames(seed).by_frames)
    return replace(swarm, cluster=framed)
