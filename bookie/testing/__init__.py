"""Real bookies for your own tests; they run in the test's process and start within 0.1 s.

::

    import bookie.testing

    async def test_orders_survive_a_dead_bookie():
        async with bookie.testing.cluster(bookies=4) as c, c.connect() as bk:
            async with bk.create_ledger() as writer:
                await writer.append(b"before")
                await c.kill(0)
                await writer.append(b"after")

Each bookie has the real node, engine and gRPC server, listens on the loopback device, and stores
its files in a temporary directory. The metadata is in memory. Clients reach each bookie through a
relay, which can stop the traffic. A kill of a bookie is simulated: see the methods of
`BookieCluster`. `sync_cluster` runs such a cluster for `bookie.sync`. pytest finds the fixtures
`bookie_cluster` and `sync_bookie_cluster`.

| module | content |
|---|---|
| `bookie_cluster`, `sync_bookie_cluster` | the clusters and their methods |
| `bookie_lives` | one bookie, which can be stopped, killed and started again |
| `link` | the relay in front of a bookie |
| `mortal_disk` | files that a bookie cannot change after its kill |
| `faulty_memory` | the metadata store in memory, with faults of its sessions |
| `simulation` | whole clusters in virtual time |
| `torture` | real processes, killed or disturbed while they use a log: ``bookie torture`` |
| `pytest_plugin` | the fixtures |

`simulate` runs your code on a cluster in which everything is simulated. The cluster runs in virtual
time, and a seed determines its faults.

The modules of this package are imported at first use, because pytest imports the package in every
project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "FAULTS",
    "SIMULATED_URI",
    "BookieCluster",
    "SimulationOutcome",
    "SyncBookieCluster",
    "cluster",
    "simulate",
    "sync_cluster",
]

if TYPE_CHECKING:
    from bookie.testing.bookie_cluster import BookieCluster, cluster
    from bookie.testing.simulation.cluster_faults import FAULTS
    from bookie.testing.simulation.simulate import SimulationOutcome, simulate
    from bookie.testing.simulation.simulated_cluster import SIMULATED_URI
    from bookie.testing.sync_bookie_cluster import SyncBookieCluster, sync_cluster
else:
    _HOMES = {
        "BookieCluster": "bookie_cluster",
        "cluster": "bookie_cluster",
        "FAULTS": "simulation.cluster_faults",
        "SimulationOutcome": "simulation.simulate",
        "simulate": "simulation.simulate",
        "SIMULATED_URI": "simulation.simulated_cluster",
        "SyncBookieCluster": "sync_bookie_cluster",
        "sync_cluster": "sync_bookie_cluster",
    }

    def __getattr__(name: str) -> object:
        """Import a public name of this package at its first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
