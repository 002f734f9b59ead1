"""Clusters that repair themselves: the real service runs in every bookie, in virtual time.

Bookies are killed, wiped, restored from older states and cut off, for longer than it takes until
they count as lost. So copies move, bookies that return reclaim theirs, and the auditor changes.
When the chaos is over, every copy has to come back by itself. Only then the checker sees the end.

Run as a program with a seed it prints the checksum of everything that happened, and with ``-v`` its
story.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bookie.api import BookKeeper, ReaderHandle
from bookie.cluster import keys
from bookie.config import RepairSettings
from bookie.ids import is_vacant
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_fill import ReplicaFill
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.replica_plan import quorum_of, settled_fragments
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.metadata import LedgerMetadata
from bookie.metadata.memory.backend import MemoryStore
from bookie.node.engine.reclaim.copy_removal import CopyRemoved
from bookie.node.own_copies import OwnCopies
from bookie.testing.simulation.simulated_cluster import (
    STORE_NAME,
    SimulatedClient,
    SimulatedCluster,
)
from tests.cluster_sim.cluster_script import (
    ClusterOutcome,
    ClusterScript,
    show_outcome,
    simulate_cluster,
)
from tests.cluster_sim.cluster_swarm import ClusterSwarm, draw_cluster
from tests.cluster_sim.stored_copies import stored_copies

REPAIR_FAULTS = ("wipe", "older", "kill", "power", "pause", "stop", "expired session")
"""By which bookies lose copies, are lost, and come back. Each seed has some of the others, too."""


def draw_repairs(seed: int) -> tuple[ClusterSwarm, RepairSettings]:
    """The features of a seed."""
    choose = random.Random(f"repair swarm/{seed}")
    swarm = draw_cluster(seed)
    size = max(quorum[0] for quorum in swarm.quorums)
    kinds = choose.sample(REPAIR_FAULTS, choose.randint(2, 4))
    others = [kind for kind in swarm.faults if choose.random() < 0.3]
    settings = RepairSettings(
        lost_bookie_delay_seconds=choose.choice((0.5, 2.0)),
        away_share_max=choose.choice((0.5, 1.0)),
        audit_interval_seconds=choose.choice((3.0, 10.0)),
        retry_seconds_max=1.0,
        unnamed_copies_grace_seconds=choose.choice((0.0, 1.0, 5.0)),
    )
    return (
        replace(
            swarm,
            bookies=min(6, max(swarm.bookies, size + 1)),
            faults=(*kinds, *others),
            fault_pause_seconds=choose.choice((0.5, 1.5)),
            chaos_seconds=choose.choice((8.0, 16.0)),
            writers=choose.randint(1, 2),
            recoverers=choose.randint(0, 2),
            movers=choose.choice((0, 0, 1)),
            deleters=choose.choice((0, 0, 0, 1)),
            deferred_share=0.0,
        ),
        settings,
    )


class RepairScript(ClusterScript):
    """One seed of a cluster that repairs itself."""

    calm_seconds = 240.0
    """Lost bookies come back, an audit finds what is missing, and pauses after failures end."""

    async def _look_at(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> None:
        """The checker sees the ledger when repair has come to rest.

        Repair cannot mend a ledger whose id a bookie knows from a former one: an operator does.
        """
        ledger_id, bookkeeper = reader.metadata.ledger_id, client.bookkeeper
        assert bookkeeper is not None
        if ledger_id in self.calls.used_again:
            await super()._look_at(client, reader, handle)
            return
        while reason := await self._find_lack(bookkeeper, ledger_id):
            self.cluster.note(f"calm: ledger {ledger_id}: {reason}")
            await asyncio.sleep(1.0)
        self.cluster.count("ledger with all its copies")
        opened = None
        while opened is None:
            await asyncio.sleep(0.2)
            opened = await self.calls.open(client, bookkeeper, ledger_id, recover=False)
        await super()._look_at(client, *opened)

    async def _find_lack(self, bookkeeper: BookKeeper, ledger_id: int) -> str:
        """Why repair has not ended yet; empty if each copy is there, and nobody is lost."""
        async with MemoryStore(STORE_NAME) as store:
            if lost := await Departures(store, keys.LOST_BOOKIES).names():
                return f"{sorted(lost)} are lost"
            marks = UnderreplicationManager(store)
            if await marks.find(ledger_id) is not None or ledger_id in await marks.locked():
                return "it is marked, or locked"
        metadata = await bookkeeper.ledger_metadata(ledger_id)
        for bookie in self.cluster.bookies:
            if owed := _owed(metadata, bookie.host):
                if bookie.node is None:
                    return f"{bookie.host} is away"
                if lacking := owed.difference(await stored_copies(bookie, metadata)):
                    return f"{bookie.host} lacks {sorted(lacking)[:5]}"
        return ""


def _owed(metadata: LedgerMetadata, bookie_id: str) -> set[int]:
    quorum = quorum_of(metadata)
    return {
        entry_id
        for fragment, last in settled_fragments(metadata)
        for entry_id in range(fragment.first_entry_id, last + 1)
        for slot in quorum.write_set(entry_id)
        if fragment.bookies[slot] == bookie_id and not is_vacant(bookie_id)
    }


@contextmanager
def _counted(counts: Any) -> Iterator[None]:
    """Count what repair does."""
    move, fill, remove = ReplicaMove.run, ReplicaFill.run, OwnCopies.remove

    async def counted_move(self: ReplicaMove, *args: Any) -> RepairOutcome:
        done = await move(self, *args)
        counts[f"move {done.outcome}"] += 1
        return done

    async def counted_fill(self: ReplicaFill, *args: Any) -> RepairOutcome:
        done = await fill(self, *args)
        counts[f"fill {done.outcome}"] += 1
        return done

    async def counted_remove(self: OwnCopies, *args: Any) -> CopyRemoved:
        removed = await remove(self, *args)
        counts["copies reclaimed"] += removed.is_whole and removed.entries > 0
        return removed

    with (
        patch.object(ReplicaMove, "run", counted_move),
        patch.object(ReplicaFill, "run", counted_fill),
        patch.object(OwnCopies, "remove", counted_remove),
    ):
        yield


def simulate_repairs(seed: int) -> ClusterOutcome:
    """One seed; `problems` of the outcome say what is wrong."""
    swarm, settings = draw_repairs(seed)

    def new_script(cluster: SimulatedCluster, swarm: ClusterSwarm) -> ClusterScript:
        cluster.repair = settings
        stack.enter_context(_counted(cluster.counts))
        return RepairScript(cluster, swarm)

    with ExitStack() as stack:
        outcome = simulate_cluster(seed, swarm, new_script)
    outcome.command = "python -m tests.cluster_sim.repair_script -v "
    return outcome


def main(arguments: list[str]) -> int:
    """Run one seed: ``SEED [-v]``."""
    logging.disable(logging.CRITICAL)
    outcome = simulate_repairs(int(arguments[0]))
    return show_outcome(outcome, with_story=len(arguments) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
