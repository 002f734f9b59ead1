"""Deferred sync: tracks the confirmed batches that must still be made durable by a force."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bookie.ledger.quorum import Quorum
from bookie.ledger.write.pending import PendingBatch


@dataclass(slots=True)
class _Round:
    number: int
    waiting: int
    done: int
    batches: list[PendingBatch]
    acked: list[int]
    """For each of `batches`, the slots that acknowledged it before the force began."""


class DeferredSync:
    """Tracks batches that are confirmed but perhaps not durable, and the running force.

    A bookie's acknowledgement counts as durable once the same bookie has answered a force that
    began after the acknowledgement. If the stream to the bookie breaks before the answer to the
    force, the acknowledgement is dropped, because the bookie may have restarted. A force names the
    `life` of the bookie process that accepted the adds, so the bookie refuses the force if it was
    restarted.
    """

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.unsynced: deque[PendingBatch] = deque()
        """Batches that are confirmed but not known to be synced, in id order."""
        self.rounds = 0
        self._round: _Round | None = None

    @property
    def number(self) -> int | None:
        """The number of the running force, as `begin` returned it; None if no force is running."""
        return self._round.number if self._round else None

    def begin(self) -> int:
        """Begin a force of all unsynced batches on every slot; return the number of this force."""
        assert self._round is None
        batches = list(self.unsynced)
        acked = [batch.acked for batch in batches]
        self._round = _Round(self.rounds, self.quorum.every_slot, 0, batches, acked)
        self.rounds += 1
        return self._round.number

    def answer(self, slot: int, *, ok: bool) -> bool:
        """Record a slot's answer to the force under way; return True if all slots have answered."""
        assert self._round is not None
        self._round.waiting &= ~(1 << slot)
        if ok:
            self._round.done |= 1 << slot
        return self._round.waiting == 0

    def forget(self, slot: int) -> None:
        """Drop a slot's acknowledgements that no force has covered, because its stream broke."""
        keep = ~(1 << slot)
        for batch in self.unsynced:
            batch.acked &= keep
        if self._round is not None:
            self._round.acked = [acked & keep for acked in self._round.acked]

    def end(
        self, is_enough: Callable[[int, PendingBatch], bool]
    ) -> tuple[list[PendingBatch], bool]:
        """End the force; return its durable batches, and True if all its batches are durable.

        Args:
            is_enough: gets a bit mask of slots and a batch; returns True if the batch is safe on
                these slots.
        """
        force = self._round
        assert force is not None
        self._round = None
        synced = []
        for batch, acked in zip(force.batches, force.acked, strict=True):
            if not is_enough(acked & force.done, batch):
                break
            assert self.unsynced[0] is batch
            synced.append(self.unsynced.popleft())
        return synced, len(synced) == len(force.batches)

    def abandon(self) -> bool:
        """Drop the force under way; return True if a force was under way."""
        was = self._round is not None
        self._round = None
        return was
