"""Which bookies of an ensemble a writer can count on.

======== ===========================================================================================
slot     meaning
======== ===========================================================================================
up       its stream is open: batches are sent when they are made
down     its stream is broken: that proves nothing; batches wait until it opens, while there is room
dead     it failed (by a status, or the add timeout ran out): skipped as long as the others can
         acknowledge. Up again when its stream opens anew, or when it stores a **probe**: one batch
         that is sent to it now and then, without waiting for it
======== ===========================================================================================

There is one probe at a time, because a bookie that answers nothing must not collect requests.
"""

from __future__ import annotations

from bookie.protocol.quorum import slots_of


class Slots:
    """Sets of slots as masks, and the probes under way."""

    def __init__(self) -> None:
        self.connected = 0
        self.dead = 0
        self.probing = 0
        """Dead slots that get the next batch as a probe."""
        self.probes: dict[int, int] = {}
        """By dead slot: the batch that probes it and is not answered."""

    @property
    def up(self) -> int:
        """The slots that batches are sent to."""
        return self.connected & ~self.dead

    def connect(self, slot: int) -> None:
        """Its stream opened: it is up."""
        self.connected |= 1 << slot
        self.revive(slot)

    def disconnect(self, slot: int) -> None:
        """Its stream broke: it is down, or dead as before."""
        self.connected &= ~(1 << slot)
        self.probing &= ~(1 << slot)
        self.probes.pop(slot, None)

    def bury(self, slots: int) -> int:
        """They failed; returns those that were not dead before."""
        new = slots & ~self.dead
        self.dead |= slots
        return new

    def revive(self, slot: int) -> None:
        """It proved to be well."""
        self.dead &= ~(1 << slot)
        self.probing &= ~(1 << slot)
        self.probes.pop(slot, None)

    def may_probe(self, slot: int) -> bool:
        """Whether a probe of the slot makes sense now."""
        return bool(self.dead & self.connected & 1 << slot) and slot not in self.probes

    def targets(self, slots: int, batch: int) -> int:
        """Which of `slots` a new batch is sent to, as a probe to those that wait for one."""
        probed = slots & self.probing & self.connected
        self.probing &= ~probed
        self.probes.update(dict.fromkeys(slots_of(probed), batch))
        return slots & self.up | probed
