"""Clusters with one bug each, made by replacing one thing that the product does.

Each has a focus: the kinds of faults and the quorums with which a seed soon meets the bug. Clients'
bugs are the broken machines of the property tests, run here by the real driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import bookie.ledger.recover.driver
import bookie.ledger.write.handle
import bookie.node.start
from bookie.env import Outcome
from bookie.ids import Status
from bookie.ledger.connection.calls import carry_out_metadata
from bookie.ledger.copies import replica_move
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.exchange import MetadataFailed, MetadataWritten, WriteMetadata
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.write.ownership import LedgerOwnership, MetadataAnswer, Overtaken
from bookie.node.engine.admission import Admission
from bookie.node.engine.ledger_state import LocalLedger
from bookie.wire.commands import Reply
from tests.cluster_sim.cluster_swarm import ClusterSwarm, draw_cluster
from tests.property.ledger import test_protocol_mutants as broken

_OK = Reply(Status.OK)
_settled_fragments = settled_fragments
_add, _refusal = Admission.add, Admission.refusal
_on_change = LedgerOwnership._on_change


@dataclass(frozen=True, slots=True)
class BrokenCluster:
    """A bug: `build` installs it, and the rest says where to look for it."""

    name: str
    build: Any
    faults: tuple[str, ...]
    quorums: tuple[tuple[int, int, int], ...] = ((3, 3, 2),)
    lost_replies: float = 0.0
    """Share of transactions with the metadata store that get no reply."""
    spares: int = 1
    """Bookies beside the largest ensemble."""
    writers: int = 2
    recoverers: int = 2
    vanish_share: float = 0.15
    deleters: int = 0
    movers: int = 0
    first_seed: int = 0
    """Where to begin; the one that has shown it spares the run of those before."""

    def swarm(self, seed: int) -> ClusterSwarm:
        """The features of a seed, with this focus."""
        return replace(
            draw_cluster(seed),
            faults=self.faults,
            quorums=self.quorums,
            bookies=max(quorum[0] for quorum in self.quorums) + self.spares,
            writers=self.writers,
            recoverers=self.recoverers,
            readers=0,
            tailers=0,
            deleters=self.deleters,
            movers=self.movers,
            lost_replies=self.lost_replies,
            deferred_share=0.0,
            vanish_share=self.vanish_share,
            fault_pause_seconds=0.3,
            chaos_seconds=12.0,
        )


def with_writer(machine: type) -> AbstractContextManager[Any]:
    """Clients write by another machine."""
    return patch.object(bookie.ledger.write.handle, "LedgerWriter", machine)


def with_recovery(machine: type) -> AbstractContextManager[Any]:
    """Clients recover by another machine."""
    return patch.object(bookie.ledger.recover.driver, "LedgerRecovery", machine)


@contextmanager
def acks_before_sync() -> Iterator[None]:
    """Bookies acknowledge adds when they are in the journal's queue."""

    def add(self: Any, state: LocalLedger, *args: Any, **named: Any) -> Outcome[Reply]:
        _add(self, state, *args, **named)
        return Outcome.of(_OK)

    with patch.object(Admission, "add", add):
        yield


@contextmanager
def fences_in_memory() -> Iterator[None]:
    """Bookies forget their fences when they stop."""

    def fence(self: Any, state: LocalLedger, key: bytes) -> Outcome[Reply]:
        del self
        state.adopt_key(key)
        state.fenced = state.fence_durable = True
        return Outcome.of(_OK)

    with patch.object(Admission, "fence", fence):
        yield


@contextmanager
def moves_names_alone() -> Iterator[None]:
    """Moves name a newcomer that has no entries."""

    async def fill(*_: Any) -> None:
        """Copy nothing."""

    with patch.object(ReplicaMove, "_fill", fill):
        yield


@contextmanager
def moves_last_fragments() -> Iterator[None]:
    """Moves treat the last fragment of an open ledger as if its entries were all there."""

    def settled(metadata: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
        yield from _settled_fragments(metadata)
        if not metadata.is_closed:
            yield metadata.last_fragment, metadata.last_fragment.first_entry_id + 3

    with patch.object(replica_move, "settled_fragments", settled):
        yield


@contextmanager
def admits_after_fence() -> Iterator[None]:
    """Bookies take plain adds of fenced ledgers."""

    def refusal(self: Any, state: LocalLedger, key: bytes, *, recovery: bool) -> Reply | None:
        del recovery
        return _refusal(self, state, key, recovery=True)

    with patch.object(Admission, "refusal", refusal):
        yield


@contextmanager
def denies_what_it_lost() -> Iterator[None]:
    """A bookie with new disks is sure about all of its ledgers."""

    async def settle(
        directories: Any, engine: Any, own: Any, ledgers: Any, collector: Any, bookie_id: str
    ) -> None:
        del directories, engine, ledgers, collector, bookie_id
        await own.advance(is_in_doubt=False)

    with patch.object(bookie.node.start, "_settle_doubts", settle):
        yield


@contextmanager
def takes_every_key() -> Iterator[None]:
    """Bookies know ledgers by their ids alone."""
    with patch.object(LocalLedger, "accepts_key", lambda _self, _key: True):
        yield


ALL_ACK = ((2, 2, 2), (3, 3, 3))
"""Each entry needs every bookie of its write set, and one denial ends a ledger."""


@contextmanager
def takes_silence_for_success() -> Iterator[None]:
    """Clients take a compare-and-set without a reply for one that worked."""

    async def carry_out(ledgers: Any, ledger_id: int, token: int, effect: Any) -> Any:
        event = await carry_out_metadata(ledgers, ledger_id, token, effect)
        if isinstance(event, MetadataFailed) and isinstance(effect, WriteMetadata):
            return MetadataWritten(effect.version + 1)
        return event

    with (
        patch.object(bookie.ledger.write.handle, "carry_out_metadata", carry_out),
        patch.object(bookie.ledger.recover.driver, "carry_out_metadata", carry_out),
    ):
        yield


@contextmanager
def takes_silence_for_failure() -> Iterator[None]:
    """Writers take a change of the ensemble without a reply for one that will never happen."""

    def on_change(self: LedgerOwnership, event: MetadataAnswer) -> Any:
        if isinstance(event, MetadataFailed):
            return [], Overtaken()
        return _on_change(self, event)

    with patch.object(LedgerOwnership, "_on_change", on_change):
        yield


NETWORK = ("reset", "cut one way", "cut both ways", "pause")

BROKEN_CLUSTERS = (
    BrokenCluster("bookies acknowledge before the sync", acks_before_sync, ("power", "blackout")),
    BrokenCluster("fences do not keep writers out", admits_after_fence, NETWORK),
    BrokenCluster(
        "fences are not durable",
        fences_in_memory,
        ("blackout after a fence", "power after a fence"),
        spares=0,
    ),
    BrokenCluster(
        "a lost reply is taken for a failure",
        takes_silence_for_failure,
        ("kill", "reset"),
        ALL_ACK,
        lost_replies=0.25,
        spares=2,
        writers=4,
        recoverers=1,
        vanish_share=0.0,
        first_seed=13,
    ),
    BrokenCluster(
        "silence is taken for a denial",
        lambda: with_recovery(broken.SilenceIsDenial),
        ("power after a fence", "slow network"),
        ALL_ACK,
    ),
    BrokenCluster(
        "one denial ends a ledger",
        lambda: with_recovery(broken.OneDenialIsEnough),
        ("slow network", "slow network", "slow link"),
        writers=6,
        recoverers=6,
        vanish_share=0.0,
    ),
    BrokenCluster(
        "a wiped bookie denies entries",
        denies_what_it_lost,
        ("wipe", "kill", "reset"),
        ALL_ACK,
        recoverers=0,
        vanish_share=0.7,
    ),
    BrokenCluster(
        "an ack of a replaced bookie counts",
        lambda: with_writer(broken.HearsFormerEpochs),
        ("slow link", "slow link", "slow link", "slow sync", "pause"),
        ALL_ACK,
        spares=2,
        writers=4,
        recoverers=1,
        vanish_share=0.0,
        first_seed=2,
    ),
    BrokenCluster(
        "acks count across a change",
        lambda: with_writer(broken.KeepsAcksAcrossTheChange),
        ("pause", "slow link", "kill"),
        ALL_ACK,
        spares=2,
        writers=4,
        recoverers=1,
        vanish_share=0.0,
    ),
    BrokenCluster("one ack too few", lambda: with_writer(broken.AcksOneShort), NETWORK),
    BrokenCluster("a writer ignores fences", lambda: with_writer(broken.IgnoresFences), NETWORK),
    BrokenCluster(
        "a lost reply is taken for a success",
        takes_silence_for_success,
        ("lost replies", "kill", "pause"),
        first_seed=4,
    ),
    BrokenCluster(
        "a bookie knows a ledger by its id alone",
        takes_every_key,
        ("kill",),
        recoverers=4,
        deleters=3,
    ),
    BrokenCluster(
        "recovery stores nothing again", lambda: with_recovery(broken.DoesNotStoreAgain), NETWORK
    ),
    BrokenCluster(
        "recovery looks no further than the LAC",
        lambda: with_recovery(broken.LooksNoFurther),
        NETWORK,
        first_seed=2,
    ),
    BrokenCluster(
        "a move names a bookie without entries", moves_names_alone, ("kill",), spares=3, movers=3
    ),
    BrokenCluster(
        "a move changes the ensemble under the writer",
        moves_last_fragments,
        ("kill", "slow link"),
        recoverers=3,
        spares=3,
        movers=4,
    ),
)
