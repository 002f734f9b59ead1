"""Sends batches to bookies that hold this client to a rate, as slowly as they want.

A bookie that answers TOO_MANY_REQUESTS is alive: it is neither skipped nor replaced. Its slot is
**paced** from then on. It gets nothing until the time that the bookie named is over. Then it gets
its oldest batch, and for each batch that it takes the writer may send one more at a time. So hardly
anything is sent in vain, although all batches wait. The slot is no longer paced once it has taken
every batch.

Three timers belong to a paced slot. `resend` is the time that the bookie named. `paced` is the
deadline of the batches that were sent, because the deadlines of batches excuse paced slots.
`patience` is the time for which appends wait while the bookie takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.ledger.exchange import CancelTimer, StartTimer
from bookie.ledger.write.pending import BatchWindow, WriterLimits
from bookie.ledger.write.writer_events import Resend, WriterEffect


@dataclass(slots=True)
class PacedSlot:
    """A slot that gets its batches one after the other."""

    is_waiting: bool = True
    """True until the time that the bookie named is over."""
    retry_after_seconds: float = 0.0
    """The last time that the bookie named, or the shortest pause."""
    allowed: int = 1
    """The number of batches that may be under way."""
    under_way: frozenset[int] = field(default_factory=frozenset)
    """The batches that were sent and are not answered."""


class Pacing:
    """The paced slots of one writer."""

    def __init__(self, window: BatchWindow, limits: WriterLimits) -> None:
        self._window = window
        self._limits = limits
        self.slots: dict[int, PacedSlot] = {}

    @property
    def mask(self) -> int:
        """The paced slots, as a bit mask."""
        return sum(1 << slot for slot in self.slots)

    def hold_back(self, slot: int, seconds: float) -> list[WriterEffect]:
        """Send nothing to a slot for `seconds`, because its bookie wants that."""
        effects: list[WriterEffect] = []
        paced = self.slots.get(slot)
        if paced is None:
            paced = self.slots[slot] = PacedSlot()
            effects.append(StartTimer(("patience", slot), self._limits.rate_patience_seconds))
        elif paced.is_waiting:
            return []  # this is about a request that was sent before
        else:
            effects.append(CancelTimer(("paced", slot)))
        paced.is_waiting, paced.allowed, paced.under_way = True, 1, frozenset()
        paced.retry_after_seconds = max(seconds, self._limits.resend_seconds)
        return [*effects, StartTimer(("resend", slot), paced.retry_after_seconds)]

    def go_on(self, slot: int) -> list[WriterEffect]:
        """Send the oldest batch, because the time is over."""
        paced = self.slots[slot]
        paced.is_waiting = False
        return self._send(slot, paced) + self._deadline(slot)

    def taken(self, slot: int, batch: int) -> list[WriterEffect]:
        """Send the next batches, because the bookie took one."""
        paced = self.slots[slot]
        paced.under_way -= {batch}
        effects: list[WriterEffect] = [
            StartTimer(("patience", slot), self._limits.rate_patience_seconds)
        ]
        if not paced.is_waiting:
            paced.allowed += 1
            effects += self._send(slot, paced)
            effects += self._deadline(slot)
        return effects

    def appended(self) -> list[WriterEffect]:
        """Send the newest batch to paced slots that may get one more.

        Their deadlines stay: appends must not put off the end of a silent bookie.
        """
        return [
            effect
            for slot, paced in list(self.slots.items())
            if not paced.is_waiting
            for effect in self._send(slot, paced)
        ]

    def end(self, slot: int) -> list[WriterEffect]:
        """Pace the slot no longer: it has taken all, or something else happened to its bookie."""
        if self.slots.pop(slot, None) is None:
            return []
        return [CancelTimer((kind, slot)) for kind in ("resend", "paced", "patience")]

    def _send(self, slot: int, paced: PacedSlot) -> list[WriterEffect]:
        bit = 1 << slot
        effects: list[WriterEffect] = []
        for batch in self._window.retained.values():
            if len(paced.under_way) >= paced.allowed:
                break
            is_missing = batch.slots & bit and not batch.acked & bit
            if is_missing and batch.number not in paced.under_way:
                paced.under_way |= {batch.number}
                effects.append(Resend(batch.number, slot))
        return effects if paced.under_way else self.end(slot)

    def _deadline(self, slot: int) -> list[WriterEffect]:
        """Give the bookie its time for an answer, unless its slot is no longer paced."""
        if slot not in self.slots:
            return []
        return [StartTimer(("paced", slot), self._limits.add_timeout_seconds)]
