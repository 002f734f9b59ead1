"""Sends batches slowly to bookies that limit the rate of this client.

A bookie that answers TOO_MANY_REQUESTS is alive, so it is not replaced only because of this answer.
The answer makes the bookie's slot **paced**. A paced slot gets no batch during the pause that the
bookie asked for. After the pause, the slot gets only its oldest batch. With each batch that the
bookie accepts, the slot may have one more batch in flight. So the bookie has to refuse only few
batches, although many batches wait. A slot stays paced until its bookie has accepted every waiting
batch.

Three timers belong to a paced slot. `resend` ends the pause that the bookie asked for. `paced` is
the deadline by which the bookie must answer the sent batches; the deadline of a batch itself
ignores paced slots. `patience` limits the time for which appends wait while the bookie accepts no
batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.ledger.exchange import CancelTimer, StartTimer
from bookie.ledger.write.pending import BatchWindow, WriterLimits
from bookie.ledger.write.writer_events import Resend, WriterEffect


@dataclass(slots=True)
class PacedSlot:
    """The state of one paced slot."""

    is_waiting: bool = True
    """True during the pause that the bookie asked for."""
    retry_after_seconds: float = 0.0
    """The last pause that the bookie asked for, but at least `resend_seconds`."""
    allowed: int = 1
    """The number of batches that may be in flight."""
    under_way: frozenset[int] = field(default_factory=frozenset)
    """The numbers of the batches in flight: sent, but not answered."""


class Pacing:
    """The paced slots of one writer."""

    def __init__(self, window: BatchWindow, limits: WriterLimits) -> None:
        self._window = window
        self._limits = limits
        self.slots: dict[int, PacedSlot] = {}

    @property
    def mask(self) -> int:
        return sum(1 << slot for slot in self.slots)

    def hold_back(self, slot: int, seconds: float) -> list[WriterEffect]:
        """Send no batch to a slot for `seconds`, but at least for `resend_seconds`.

        If the slot already has a pause, the call changes nothing.
        """
        effects: list[WriterEffect] = []
        paced = self.slots.get(slot)
        if paced is None:
            paced = self.slots[slot] = PacedSlot()
            effects.append(StartTimer(("patience", slot), self._limits.rate_patience_seconds))
        elif paced.is_waiting:
            return []  # the answer is to a request that was sent before the pause
        else:
            effects.append(CancelTimer(("paced", slot)))
        paced.is_waiting, paced.allowed, paced.under_way = True, 1, frozenset()
        paced.retry_after_seconds = max(seconds, self._limits.resend_seconds)
        return [*effects, StartTimer(("resend", slot), paced.retry_after_seconds)]

    def go_on(self, slot: int) -> list[WriterEffect]:
        """End the pause of a slot, and send the slot its oldest batch."""
        paced = self.slots[slot]
        paced.is_waiting = False
        return self._send(slot, paced) + self._deadline(slot)

    def taken(self, slot: int, batch: int) -> list[WriterEffect]:
        """Record that a slot's bookie accepted a batch, and send the next batches to the slot."""
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
        """Send waiting batches to paced slots that may have more batches in flight.

        An append does not restart the timer `paced`, so this timer also fires if the bookie is
        silent.
        """
        return [
            effect
            for slot, paced in list(self.slots.items())
            if not paced.is_waiting
            for effect in self._send(slot, paced)
        ]

    def end(self, slot: int) -> list[WriterEffect]:
        """Stop pacing a slot: its bookie accepted all batches, or the slot got another state."""
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
        """Restart the timer `paced` of a slot, if the slot is still paced."""
        if slot not in self.slots:
            return []
        return [StartTimer(("paced", slot), self._limits.add_timeout_seconds)]
