"""Delivers batches to the bookies of an ensemble: sends, confirmations and releases.

The module `writer` decides which slots failed, which slots are new, and which slots do not count
during an ensemble change.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie.ids import MAX_ID, NO_ENTRY
from bookie.ledger.exchange import CancelTimer, StartTimer
from bookie.ledger.place.policy import AckDomains
from bookie.ledger.quorum import Quorum, slots_of
from bookie.ledger.write.deferred import DeferredSync
from bookie.ledger.write.ensemble_change import EnsembleChange
from bookie.ledger.write.pacing import Pacing
from bookie.ledger.write.pending import BatchWindow, PendingBatch, WriterLimits
from bookie.ledger.write.slots import Slots
from bookie.ledger.write.writer_events import (
    Confirmed,
    Release,
    Resend,
    SendBatch,
    SendLac,
    WriterEffect,
)

_EVERY_SLOT = -1
_LATER_THAN_ALL = MAX_ID + 1


class Delivery:
    """The batches of one ledger, and the slots of its ensemble; each set of slots is a bit mask."""

    def __init__(self, quorum: Quorum, limits: WriterLimits, *, deferred_sync: bool) -> None:
        self.quorum = quorum
        self.limits = limits
        self.window = BatchWindow(quorum, limits)
        self.slots = Slots()
        self.pacing = Pacing(self.window, limits)
        self.epochs = [0] * quorum.ensemble_size
        self.deferred = DeferredSync(quorum) if deferred_sync else None
        self.lac_carried = NO_ENTRY
        """The highest LAC that a request has carried; never above the current LAC."""
        self.ack_domains: AckDomains | None = None
        """Failure domains that the acknowledgements must span, in addition to the ack quorum."""
        self.countable = _EVERY_SLOT
        """The slots whose acknowledgements count: all slots except the slots that a change
        replaces."""
        self.held_from = _LATER_THAN_ALL
        """The first entry of a running ensemble change; this entry and all later entries are kept
        for the newcomers."""

    # -- batches ---------------------------------------------------------------------------------

    def append(self, count: int, payload_bytes: int) -> list[WriterEffect]:
        """Create a batch of new entries and send it."""
        window = self.window
        first, length_before = window.next_entry_id, window.length
        batch = window.take(count, payload_bytes)
        number = batch.number
        self.lac_carried = lac = window.last_add_confirmed
        targets = self.slots.targets(batch.slots & ~self.pacing.mask, number)
        return [
            SendBatch(number, first, count, lac, length_before, targets),
            StartTimer(("add", number), self.limits.add_timeout_seconds),
            *self.pacing.appended(),
        ]

    def is_acknowledged(self, batch: PendingBatch, expected: int = 0) -> bool:
        """True if slots in `countable` form an ack quorum for the whole batch, in enough domains.

        The slots in `expected` count as if they had acknowledged the batch.
        """
        return self.is_enough((batch.acked | expected) & self.countable, batch)

    def is_enough(self, acked: int, batch: PendingBatch) -> bool:
        """True if `acked` contains an ack quorum for the whole batch, in enough domains."""
        if not self.quorum.is_acknowledged(acked, batch.classes):
            return False
        domains = self.ack_domains
        return domains is None or domains.is_enough(
            acked, (self.quorum.windows[index] for index in batch.classes)
        )

    def confirm(self, effects: list[WriterEffect]) -> None:
        """Confirm pending batches, oldest first, up to the first batch without an ack quorum."""
        pending = self.window.pending
        while pending and self.is_acknowledged(pending[0]):
            head = pending.popleft()
            head.confirmed = True
            if self.deferred is not None:
                self.deferred.unsynced.append(head)
            else:
                self.window.advance(head)
            effects.append(Confirmed(head.number))
            self.release_if_done(head, effects)

    def release_if_done(self, batch: PendingBatch, effects: list[WriterEffect]) -> None:
        """Release a confirmed batch that each of its slots, except dead slots, has acknowledged."""
        if (
            batch.confirmed
            and not batch.slots & ~batch.acked & ~self.slots.dead
            and batch.last_entry_id < self.held_from
        ):
            self._release(batch, effects)

    def _release(self, batch: PendingBatch, effects: list[WriterEffect]) -> None:
        self.window.release(batch)
        effects.append(CancelTimer(("add", batch.number)))
        effects.append(Release(batch.number))

    def _release_done(self, effects: list[WriterEffect]) -> None:
        for batch in list(self.window.retained.values()):
            self.release_if_done(batch, effects)

    def make_room(self, *, is_store_away: bool) -> list[WriterEffect]:
        """Make room for appends: skip bookies that delay the release of the oldest batches.

        Only bookies with broken streams are skipped. With `is_store_away` (the metadata store does
        not answer), also release batches that wait only for an ensemble change.
        """
        effects: list[WriterEffect] = []
        while not self.window.has_room:
            oldest = next(iter(self.window.retained.values()))
            missing = oldest.slots & ~oldest.acked & ~self.slots.dead
            if not oldest.confirmed or missing & ~self.slots.broken:
                break
            if missing:
                effects += self.skip(missing)
            elif is_store_away:
                # Otherwise, appends would stop while the metadata store does not answer. The
                # newcomers will lack this batch, like a skipped bookie.
                self._release(oldest, effects)
            else:
                break
        return effects

    def publish_lac(self, slots: int, *, again: bool) -> list[WriterEffect]:
        """Send the LAC in a request without entries, if no pending batch will carry the LAC."""
        lac = self.window.last_add_confirmed
        if self.window.pending or lac == NO_ENTRY or not slots:
            return []
        if not (again or lac > self.lac_carried):
            return []
        if not again:
            self.lac_carried = lac
        return [SendLac(lac, slots)]

    def causes(self, batch: PendingBatch, bookies: Sequence[str]) -> list[str]:
        """Return the reasons why bookies have not stored a batch, as text."""
        missing = slots_of(batch.slots & ~batch.acked)
        return [self.slots.cause(slot, bookies[slot]) for slot in missing]

    # -- slots -----------------------------------------------------------------------------------

    def skip(self, slots: int) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        for slot in slots_of(self.slots.quarantine(slots)):
            effects += self.pacing.end(slot)
            effects.append(StartTimer(("retry", slot), self.limits.retry_seconds))
        self._release_done(effects)
        return effects

    def skip_fenced(self, slots: int) -> list[WriterEffect]:
        """Skip the bookies of `slots`, which report that another client fenced the ledger."""
        self.slots.fenced |= slots
        return self.skip(slots)

    def lose(self, slots: int) -> list[WriterEffect]:
        """Drop the acknowledgements of bookies that may have lost their data."""
        effects: list[WriterEffect] = []
        for slot in slots_of(slots & ~self.slots.lost):
            self.epochs[slot] += 1  # ignore answers in flight: their data may be lost
            self.slots.lose(slot)
            effects += [CancelTimer(("retry", slot)), *self.pacing.end(slot)]
            if self.deferred is not None:
                self.deferred.forget(slot)
        for batch in self.window.retained.values():
            batch.acked &= ~slots
        self._release_done(effects)
        return effects

    def disconnect(self, slot: int) -> list[WriterEffect]:
        """Record that a slot's stream broke.

        With deferred sync, drop the slot's acknowledgements that no force has covered.
        """
        self.slots.disconnect(slot)
        if self.deferred is not None:
            self.deferred.forget(slot)
            for batch in self.window.retained.values():
                batch.acked &= ~(1 << slot)
        return self.pacing.end(slot)

    def revive(self, slot: int) -> list[WriterEffect]:
        """Use a bookie again, and send it all retained batches that it has not acknowledged."""
        bit = 1 << slot
        self.slots.restore(slot)
        effects = self.pacing.end(slot)
        effects += [
            Resend(batch.number, slot)
            for batch in self.window.retained.values()
            if batch.slots & bit and not batch.acked & bit
        ]
        lac = self.window.last_add_confirmed
        if self.slots.newcomers & bit and lac != NO_ENTRY:
            # The batches that are sent again may carry an older LAC than the other bookies know.
            effects.append(SendLac(lac, bit))
        self.slots.newcomers &= ~bit
        return effects

    def probe(self, slot: int) -> list[WriterEffect]:
        """Probe a dead slot with a pending batch that it must store, or with the next batch."""
        if not self.slots.may_probe(slot):
            return []
        bit = 1 << slot
        for batch in self.window.pending:
            if batch.slots & bit and not batch.acked & bit:
                self.slots.probes[slot] = batch.number
                return [Resend(batch.number, slot)]
        self.slots.probing |= bit
        return []

    # -- an ensemble change ------------------------------------------------------------------------

    def hold(self, change: EnsembleChange) -> None:
        """Stop counting the slots that `change` replaces; keep batches from its first entry on."""
        self.countable = ~change.replaced
        self.held_from = change.first_entry_id

    def end_hold(self, effects: list[WriterEffect]) -> None:
        """End `hold`, after the change succeeded or failed; confirm and release held batches."""
        self.countable, self.held_from = _EVERY_SLOT, _LATER_THAN_ALL
        self.confirm(effects)
        self._release_done(effects)

    def take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        """Put newcomers into slots; they store the change's first entry and all later entries."""
        replaced = change.replaced
        effects: list[WriterEffect] = []
        for slot in change.newcomers:
            self.epochs[slot] += 1
            self.slots.renew(slot)
            effects += [CancelTimer(("retry", slot)), *self.pacing.end(slot)]
            effects.append(StartTimer(("replace", slot), self.limits.replace_after_seconds))
        for batch in self.window.retained.values():
            if batch.last_entry_id < change.first_entry_id:
                batch.slots &= ~replaced
            else:
                batch.acked &= ~replaced
                batch.overdue = False
                timer = ("add", batch.number)
                effects.append(StartTimer(timer, self.limits.add_timeout_seconds))
        return effects
