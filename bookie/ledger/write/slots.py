"""Tracks which bookies of an ensemble a writer can use.

======== ===========================================================================================
slot     meaning
======== ===========================================================================================
up       the bookie's stream is open: the writer sends it each new batch at once
down     the bookie's stream is broken but may reconnect: batches wait while the writer has room
dead     the bookie failed (by a status or the add timeout): the writer skips the bookie if other
         bookies form ack quorums. The slot is up again when the stream reopens, or when the bookie
         stores a **probe**: a batch that the writer sends from time to time to test the bookie
lost     dead for ever: the bookie may have lost entries, or reports that the ledger is fenced
======== ===========================================================================================

A dead slot has one probe at a time, because requests must not accumulate at a silent bookie.
"""

from __future__ import annotations

from bookie.ledger.quorum import slots_of


class Slots:
    """The states of slots, as bit masks, and the probes that are not answered yet."""

    def __init__(self) -> None:
        self.connected = 0
        self.broken = 0
        """Slots whose streams broke or could not be opened, and have not reconnected."""
        self.dead = 0
        self.lost = 0
        """The lost slots; every lost slot is also dead."""
        self.probing = 0
        """Dead slots that get the next batch as a probe."""
        self.probes: dict[int, int] = {}
        """Maps a dead slot to the unanswered batch that probes it."""
        self.refusals: dict[int, str] = {}
        """Maps a slot to its bookie's last reason to refuse an add; empty after the slot is
        restored."""

        self.fenced = 0
        """Slots whose bookies answered FENCED; for these slots, `cause` reports a fence, not a
        loss."""
        self.newcomers = 0
        """Slots whose bookies are new in the ensemble, and have not been up yet."""

    @property
    def failing(self) -> int:
        """The slots whose stream is broken or whose bookie is dead."""
        return self.broken | self.dead

    @property
    def up(self) -> int:
        return self.connected & ~self.dead

    def connect(self, slot: int) -> None:
        """Record that the slot's stream opened: the slot is up, unless it is lost."""
        if self.lost >> slot & 1:
            return
        self.connected |= 1 << slot
        self.broken &= ~(1 << slot)
        self.restore(slot)

    def disconnect(self, slot: int) -> None:
        """Record that the slot's stream broke: the slot is now down, or stays dead."""
        self.connected &= ~(1 << slot)
        self.broken |= 1 << slot
        self.probing &= ~(1 << slot)
        self.probes.pop(slot, None)

    def quarantine(self, slots: int) -> int:
        """Mark failed slots as dead; return the slots that were not dead before."""
        new = slots & ~self.dead
        self.dead |= slots
        return new

    def lose(self, slot: int) -> None:
        """Mark a slot as lost: its acknowledgements are void, and no more requests go to it."""
        self.disconnect(slot)
        self.dead |= 1 << slot
        self.lost |= 1 << slot

    def restore(self, slot: int) -> None:
        """Mark a slot as no longer dead, unless the slot is lost."""
        if self.lost >> slot & 1:
            return
        self.dead &= ~(1 << slot)
        self.probing &= ~(1 << slot)
        self.probes.pop(slot, None)
        self.refusals.pop(slot, None)

    def renew(self, slot: int) -> None:
        """Reset a slot for a new bookie, whose state is unknown."""
        keep = ~(1 << slot)
        self.lost &= keep
        self.fenced &= keep
        self.connected &= keep
        self.broken &= keep
        self.restore(slot)
        self.newcomers |= 1 << slot

    def may_probe(self, slot: int) -> bool:
        return bool(self.dead & self.connected & 1 << slot) and slot not in self.probes

    def targets(self, slots: int, batch: int) -> int:
        """Return the part of `slots` that gets a new batch: up slots, and dead slots to probe."""
        probed = slots & self.probing & self.connected
        self.probing &= ~probed
        self.probes.update(dict.fromkeys(slots_of(probed), batch))
        return slots & self.up | probed

    def cause(self, slot: int, bookie_id: str) -> str:
        """Return the reason why a slot's bookie has not acknowledged a batch, as text."""
        if self.fenced & self.dead & 1 << slot:
            return f"{bookie_id}: it says that another client fenced the ledger"
        if self.lost >> slot & 1:
            return f"{bookie_id} lost its data"
        if not self.connected >> slot & 1:
            return f"{bookie_id} is unreachable"
        return f"{bookie_id}: {self.refusals.get(slot, 'no answer')}"
