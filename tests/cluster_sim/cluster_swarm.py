"""What one seed draws: a cluster, its clients and its kinds of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bookie.testing.simulation.cluster_faults import FAULTS
from bookie.testing.simulation.loop import Mode
from bookie.testing.simulation.machine import KIB

QUORUMS = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (5, 3, 2))


@dataclass(frozen=True, slots=True)
class ClusterSwarm:
    """What one seed draws."""

    mode: Mode
    interleaving: float
    bookies: int
    quorums: tuple[tuple[int, int, int], ...]
    writers: int
    recoverers: int
    readers: int
    tailers: int
    deleters: int
    faults: tuple[str, ...]
    fault_pause_seconds: float
    chaos_seconds: float
    sync_seconds: float
    storage: dict[str, object]
    lost_replies: float = 0.0
    """Share of transactions with the metadata store that get no reply, at all times."""
    vanish_share: float = 0.15
    """How often a writer's process ends in the middle of its work."""
    paces: tuple[float, ...] = (0.002, 0.05, 0.3, 1.5)
    """Of writers: seconds between two appends, on average."""
    deferred_share: float = 0.0
    """How many ledgers have deferred sync."""
    movers: int = 0
    """Processes that move copies to other bookies, and fill what bookies lack."""
    by_frames: tuple[str, ...] = ()
    """The bookies that offer frames; clients take them."""

    @property
    def losses_max(self) -> int:
        """How many bookies may lose what they stored."""
        return min(quorum[2] for quorum in self.quorums) - 1


def draw_cluster(seed: int) -> ClusterSwarm:
    """The features of a seed."""
    choose = random.Random(f"cluster swarm/{seed}")
    bookies = choose.randint(3, 6)
    fitting = [quorum for quorum in QUORUMS if quorum[0] <= bookies]
    if choose.random() < 0.7:
        fitting = [quorum for quorum in fitting if quorum[2] >= 2]
    quorums = tuple(choose.sample(fitting, min(len(fitting), choose.randint(1, 3))))
    kinds = tuple(kind for kind in FAULTS if choose.random() < 0.4) or ("kill",)
    return ClusterSwarm(
        mode=choose.choice((Mode.FIFO, Mode.UNIFORM, Mode.UNIFORM, Mode.PRIORITY)),
        interleaving=choose.choice((0.0, 0.0, 0.1, 0.4)),
        bookies=bookies,
        quorums=quorums,
        writers=choose.randint(1, 3),
        recoverers=choose.randint(0, 3),
        readers=choose.randint(0, 1),
        tailers=choose.randint(0, 2),
        deleters=choose.choice((0, 0, 1)),
        faults=kinds,
        fault_pause_seconds=choose.choice((0.5, 1.5, 4.0)),
        chaos_seconds=choose.choice((4.0, 8.0, 16.0)),
        sync_seconds=choose.choice((0.0, 0.001, 0.01)),
        storage={
            "journal_allocate_bytes": 64 * KIB,
            "journal_file_bytes_max": choose.choice((64, 256)) * KIB,
            "checkpoint_interval_seconds": choose.choice((0.5, 3.0, 3600.0)),
            "idle_marker_seconds": choose.choice((0.1, 1.0)),
            "scrub_bytes_per_second": 0,
        },
        lost_replies=choose.choice((0.0, 0.0, 0.05, 0.2)),
        deferred_share=choose.choice((0.0, 0.0, 0.4)),
    )


def draw_moves(seed: int) -> ClusterSwarm:
    """The features of a seed, with movers, and a spare for them."""
    swarm = draw_cluster(seed)
    return replace(swarm, movers=1 + seed % 3, bookies=min(6, swarm.bookies + 1))


def draw_frames(seed: int) -> ClusterSwarm:
    """The features of a seed, and bookies that offer frames: all, or only every second one."""
    swarm = draw_cluster(seed)
    hosts = tuple(f"b{number + 1}" for number in range(swarm.bookies))
    return replace(swarm, by_frames=hosts if seed % 2 else hosts[::2])
