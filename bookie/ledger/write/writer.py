"""The only writer of a ledger: it sends batches to bookies and decides when they are durable.

The driver keeps the payloads. Whenever `may_append` allows it, the driver cuts its queue into
**batches** of at most 4096 entries or 1 MiB (`BATCH_ENTRIES_MAX`, `BATCH_SIZE_BYTES_MAX`). The
state machine gets only the number of entries and the number of bytes of a batch. It gives the batch
its ids, has it sent, confirms it, and tells the driver when to drop its bytes. No code in this
module runs per entry.

A batch is confirmed when each of its classes (`quorum`) has Qa acknowledgements, and all earlier
batches are confirmed. Before the confirmation, a batch is **pending**. Only the confirmation of a
batch advances the last add confirmed (LAC), to the batch's last id. A batch is **retained** until
all its slots, except dead slots, have acknowledged it. So a bookie that reconnects gets the batches
that it missed. A slow bookie also slows the writer, because retained batches are limited. The
writer skips a failed bookie (`slots`) as long as the other bookies form ack quorums, and replaces
the bookie if there is a spare.

======== ===========================================================================================
state    leaves when
======== ===========================================================================================
OPEN     Close -> DRAINING
DRAINING no batch is retained or unsynced (a failed writer retains none) -> CLOSING; batches cannot
         be synced, or the store does not answer during an ensemble change -> STUCK
CLOSING  the ledger is CLOSED at this writer's LAC and length -> CLOSED; close refused -> STUCK
STUCK    Close -> DRAINING
CLOSED   never
======== ===========================================================================================

A failed writer (`error` is set) never acknowledges again. A failed writer can still close the
ledger at its LAC, unless another client took the ledger or confirmed entries are not synced.

**Fences.** The writer skips a bookie that answers FENCED, and reads the metadata again. If the
ledger is still OPEN and belongs to this writer, then the bookie answered wrongly, or a client
fenced the ledger without a recovery. Such a bookie counts as lost, and errors report that it has
fenced the ledger. If another client has taken the ledger, the writer fails.

**Lost bookies.** A bookie that returns with another incarnation may have lost acknowledged entries.
The lost bookie's acknowledgements of unconfirmed batches no longer count. A lost bookie may come
back only as a newcomer of an ensemble change.

**Replacing bookies** (`ensemble_change`). A slot needs another bookie when its bookie refuses a
batch, misses its deadline or is lost. A slot also needs another bookie when its stream stays broken
for a while. This time is shorter if an ack quorum needs the slot. During an ensemble change,
acknowledgements of the replaced slots do not count. The writer keeps the change's first entry and
all later entries, and sends them to the newcomers after the change. Entries before the change no
longer wait for the replaced bookies. Slots that fail during a change wait for the next change. When
the limit of changes per minute is reached, no further change begins for a while. Meanwhile, appends
with an ack quorum continue, and appends without an ack quorum wait. If a batch misses its deadline
during this wait, the writer ends.

**Epochs.** Each slot has an epoch, a number that grows when the slot gets another bookie or its
bookie is lost. The writer ignores answers and events from earlier epochs of the slot. Only the
answers FENCED and UNAUTHORIZED count in any epoch, because they may concern the ledger.

**Rates.** A bookie that answers TOO_MANY_REQUESTS is alive, and is never replaced for this answer.
The writer sends batches to this bookie slowly (`pacing`). If the bookie accepts nothing for a long
time, and a pending batch needs the bookie, the writer ends. If all batches are confirmed, and only
a close or the room for appends waits for the bookie, the writer skips the bookie.

**Deferred sync.** Batches are confirmed when they are written, not synced; the LAC advances only
after a force. An acknowledgement that no force has covered is dropped when the bookie's stream
breaks. With deferred sync, bookies are never replaced, because the safety of ensemble changes is
not proven for unsynced entries.

Source: the BookKeeper protocol document, "Writing to ledgers" and "Closing a ledger as a writer".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from bookie.errors import BookieError, ClientClosedError, error_for_status
from bookie.ids import Status
from bookie.ledger.exchange import (
    CancelTimer,
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NewcomersChosen,
    StartTimer,
    TimerFired,
    TimerId,
)
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.quorum import ENSEMBLE_SIZE_MAX, Quorum, slots_of
from bookie.ledger.write.closing import (
    end_of_writer,
    ended_unsynced,
    no_ack_quorum,
    not_synced,
    rate_spent,
)
from bookie.ledger.write.delivery import Delivery
from bookie.ledger.write.ensemble_change import EnsembleChange, Replacements
from bookie.ledger.write.ownership import (
    Changed,
    CheckFailed,
    CloseDone,
    CloseRefused,
    LedgerOwnership,
    LedgerTaken,
    MetadataAnswer,
    Outcome,
    Overtaken,
    StillOurs,
)
from bookie.ledger.write.pending import PendingBatch, WriterLimits
from bookie.ledger.write.writer_events import (
    FATAL_STATUSES,
    AddAnswered,
    Append,
    Close,
    CloseFailed,
    Failed,
    Force,
    ForceAnswered,
    ForceDone,
    Idle,
    LacAnswered,
    Release,
    ReplaceBookies,
    Resend,
    SendForce,
    SlotConnected,
    SlotDisconnected,
    SlotLost,
    SlotSilent,
    SpanDomains,
    WriterClosed,
    WriterEffect,
    WriterEvent,
    WriterState,
)

_ENDING_STATUSES = FATAL_STATUSES | {Status.FENCED, Status.WRONG_INCARNATION}
_CHANGE_WINDOW_SECONDS = 60.0

_FORMER_BOOKIE = 1 << ENSEMBLE_SIZE_MAX
"""The bit in `fenced_by` for all bookies that have answered FENCED, but have left the ensemble."""


class LedgerWriter:
    """The state machine of a ledger's writer. Other code must not change the fields."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        limits: WriterLimits | None = None,
        *,
        deferred_sync: bool = False,
    ) -> None:
        assert metadata.state is LedgerState.OPEN
        self.limits = limits or WriterLimits()
        self.quorum = Quorum.of(metadata)
        self.ownership = LedgerOwnership(metadata, version, self.limits)
        self.delivery = Delivery(self.quorum, self.limits, deferred_sync=deferred_sync)
        self.window, self.slots = self.delivery.window, self.delivery.slots
        self.epochs, self.deferred = self.delivery.epochs, self.delivery.deferred
        self.replacements = Replacements(0 if deferred_sync else self.limits.changes_per_minute_max)
        self.state = WriterState.OPEN
        self.error: BookieError | None = None
        self.fenced_by = 0
        """Slots that answered FENCED, until the metadata confirms or denies the fence."""
        self._check_is_paused = False
        self._changes_begun = 0

    # -- queries of the driver -----------------------------------------------------------------

    def may_append(self, *, full: bool) -> bool:
        """True if an `Append` is allowed now; pass ``full=True`` if the next batch is full."""
        eager = full or len(self.window.pending) < self.limits.eager_batches_max
        has_room = self.window.has_room
        return eager and has_room and self.state is WriterState.OPEN and self.error is None

    @property
    def metadata(self) -> LedgerMetadata:
        return self.ownership.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self.window.last_add_confirmed

    @property
    def lac_carried(self) -> int:
        return self.delivery.lac_carried

    @property
    def length_confirmed(self) -> int:
        return self.window.length_confirmed

    @property
    def is_under_replicated(self) -> bool:
        """True if new entries get fewer than Qw copies: a slot is skipped or needs a bookie."""
        return self.slots.dead | self.replacements.due != 0

    @property
    def _is_closed(self) -> bool:
        return self.state is WriterState.CLOSED

    @property
    def _is_working(self) -> bool:
        """True if the ledger is not closed, and appends may arrive or wait for confirmation."""
        if self.state is WriterState.STUCK:
            return bool(self.window.pending)
        return self.state in (WriterState.OPEN, WriterState.DRAINING)

    def step(self, event: WriterEvent) -> list[WriterEffect]:  # noqa: C901, PLR0912  (a table)
        """Handle one event; return the effects, which must be carried out in order."""
        match event:
            case AddAnswered():
                effects = self._on_answer(event)
            case Append(count, payload_bytes):
                effects = self._on_append(count, payload_bytes)
            case Idle():
                effects = self._publish_lac(self.slots.up, again=False)
            case LacAnswered(slot, epoch, status, message):
                effects = self._on_refusal(slot, epoch, status, message)
                if status is Status.TOO_MANY_REQUESTS and self._may_pace(slot, epoch):
                    effects += self.delivery.pacing.hold_back(slot, event.retry_after_seconds)
            case SlotConnected(slot, epoch):
                effects = self._on_connected(slot) if epoch == self.epochs[slot] else []
            case SlotDisconnected(slot, epoch):
                effects = self._on_disconnected(slot) if epoch == self.epochs[slot] else []
            case SlotLost(slot, epoch):
                effects = self._lose(1 << slot) if epoch == self.epochs[slot] else []
            case SlotSilent(slot, epoch):
                is_known = epoch == self.epochs[slot] and self.error is None
                effects = self._bury(1 << slot) if is_known and not self._is_closed else []
            case SpanDomains(domains):
                self.delivery.ack_domains, effects = domains, []
            case NewcomersChosen(bookies):
                effects = self._on_newcomers(bookies)
            case TimerFired(timer):
                effects = self._on_timer(timer)
            case Force():
                effects = self._start_force()
            case ForceAnswered(number, slot, status, _):
                effects = []
                if self.deferred is not None and self.deferred.number == number:
                    ended = self.deferred.answer(slot, ok=status is Status.OK)
                    effects = self._end_force() if ended else []
            case Close():
                effects = self._on_close()
            case MetadataWritten() | MetadataConflict() | MetadataRead() | MetadataFailed():
                effects = self._on_metadata(event)
            case _:
                assert_never(event)
        if self.replacements.due or self.fenced_by or self.state is WriterState.DRAINING:
            effects += self._next_operation()
        return effects

    # -- appends and their answers ---------------------------------------------------------------

    def _on_append(self, count: int, payload_bytes: int) -> list[WriterEffect]:
        assert self.may_append(full=True)
        return self.delivery.append(count, payload_bytes) + self._make_room()

    def _on_answer(self, answer: AddAnswered) -> list[WriterEffect]:
        slot, status = answer.slot, answer.status
        if self.error is not None or self._is_closed:
            return []
        if status in _ENDING_STATUSES or answer.epoch != self.epochs[slot]:
            return self._on_refusal(slot, answer.epoch, status, answer.message)
        bit = 1 << slot
        batch = self.window.retained.get(answer.batch)
        if status is not Status.OK:
            self.slots.refusals[slot] = answer.message or status.name
        elif batch is not None:
            batch.acked |= bit
        if self.slots.probes.get(slot) == answer.batch:
            return self._on_probed(slot, batch, answer)
        if batch is None:
            return []
        if status is Status.OK:
            return self._on_taken(slot, batch) + self._settle(batch)
        if self.slots.dead & bit:
            return []
        if status is Status.TOO_MANY_REQUESTS:
            return self.delivery.pacing.hold_back(slot, answer.retry_after_seconds)
        if status is Status.BAD_CHECKSUM and not batch.checksum_failed & bit:
            batch.checksum_failed |= bit
            return [Resend(batch.number, slot)]
        if status is Status.SHUTTING_DOWN:
            return self.delivery.skip(bit) + self._await_returns(leaving=bit)
        return self._bury(bit)

    def _on_refusal(self, slot: int, epoch: int, status: Status, said: str) -> list[WriterEffect]:
        """Handle an answer that ends the writer or its use of a slot; ignore other answers."""
        if self._is_closed:
            return []
        if epoch != self.epochs[slot]:
            if status is Status.FENCED:
                return self._check_fence(_FORMER_BOOKIE)
            is_fatal = status is Status.UNAUTHORIZED
            return self._fail(error_for_status(status, said)) if is_fatal else []
        if status in FATAL_STATUSES:
            return self._fail(error_for_status(status, said))
        if status is Status.WRONG_INCARNATION:
            return self._lose(1 << slot)
        return self._check_fence(1 << slot) if status is Status.FENCED else []

    def _settle(self, batch: PendingBatch) -> list[WriterEffect]:
        """Confirm and release batches after a new acknowledgement of `batch`."""
        effects: list[WriterEffect] = []
        if batch.confirmed:
            self.delivery.release_if_done(batch, effects)
            return effects
        self.delivery.confirm(effects)
        if self.deferred and len(self.deferred.unsynced) >= self.limits.unforced_batches_max:
            effects += self._start_force()
        return effects + self._make_room()

    def _make_room(self) -> list[WriterEffect]:
        if self.window.has_room:
            return []
        return self.delivery.make_room(is_store_away=self.ownership.silence is not None)

    # -- bookies that hold this client to a rate ---------------------------------------------------

    def _may_pace(self, slot: int, epoch: int) -> bool:
        is_up = epoch == self.epochs[slot] and self.slots.up >> slot & 1
        return bool(is_up) and self.error is None and not self._is_closed

    def _on_taken(self, slot: int, batch: PendingBatch) -> list[WriterEffect]:
        pacing = self.delivery.pacing
        if slot not in pacing.slots:
            return []
        self.slots.refusals.pop(slot, None)
        return self._unless_paced(slot, pacing.taken(slot, batch.number))

    def _on_pace(self, kind: str, slot: int) -> list[WriterEffect]:
        pacing, bit = self.delivery.pacing, 1 << slot
        if kind == "resend":
            return self._unless_paced(slot, pacing.go_on(slot))
        if kind == "paced":
            return [] if pacing.slots[slot].is_waiting else self._bury(bit)
        # The appends of a confirmed batch have returned. Only a close, or an append for which there
        # is no room, may wait for the batch's release.
        waiting = next(iter(self.window.pending), None)
        is_held_up = self.state is WriterState.DRAINING or not self.window.has_room
        if waiting is None and is_held_up:
            return self.delivery.skip(bit)
        if waiting is None or not waiting.slots & ~waiting.acked & bit:
            return [StartTimer(("patience", slot), self.limits.rate_patience_seconds)]
        bookie_id = self.metadata.last_fragment.bookies[slot]
        seconds, retry = self.limits.rate_patience_seconds, pacing.slots[slot].retry_after_seconds
        said = self.slots.refusals.get(slot, "")
        return self._fail(rate_spent(self.metadata.ledger_id, bookie_id, seconds, retry, said))

    def _unless_paced(self, slot: int, effects: list[WriterEffect]) -> list[WriterEffect]:
        """Add a `SendLac` if the slot is no longer paced, because its bookie may lack the LAC."""
        if slot in self.delivery.pacing.slots:
            return effects
        return effects + self._publish_lac(1 << slot, again=True)

    # -- slots -------------------------------------------------------------------------------------

    def _bury(self, slots: int) -> list[WriterEffect]:
        """Skip bookies that failed, and mark their slots for replacement."""
        self.replacements.want(slots)
        return self.delivery.skip(slots) + self._await_returns()

    def _lose(self, slots: int) -> list[WriterEffect]:
        """Drop acknowledgements of bookies that may have lost data, and mark their slots as due."""
        self.replacements.want(slots)
        return self.delivery.lose(slots) + self._await_returns()

    def _revive(self, slot: int) -> list[WriterEffect]:
        """Use a slot's bookie again, and send it the batches that the bookie missed."""
        bit = 1 << slot
        self.replacements.keep(bit)
        return self.delivery.revive(slot) or self._publish_lac(bit, again=True)

    def _on_connected(self, slot: int) -> list[WriterEffect]:
        self.slots.connect(slot)
        if self.error is not None or self._is_closed or self.slots.lost >> slot & 1:
            return []
        timers = [CancelTimer(("retry", slot)), CancelTimer(("replace", slot))]
        return [*timers, *self._revive(slot)]

    def _on_disconnected(self, slot: int) -> list[WriterEffect]:
        effects = self.delivery.disconnect(slot)
        return effects + self._await_returns() + self._make_room()

    def _on_timer(self, timer: TimerId) -> list[WriterEffect]:
        kind, number = timer
        if kind == "reread":
            return [*self.ownership.on_timer()]
        if kind == "allow":
            self.replacements.left += 1
            return []
        if self.error is not None:
            return []
        match kind:
            case "recheck":
                self._check_is_paused = False
                return []
            case "spare":
                self.replacements.lacks_spares = False
                return []
            case "replace":
                return self._on_not_returned(number)
            case "add":
                return self._on_add_timeout(number)
            case "force":
                known = self.deferred is not None and self.deferred.number == number
                return self._end_force() if known else []
            case "resend" | "paced" | "patience":
                is_paced = number in self.delivery.pacing.slots
                return self._on_pace(kind, number) if is_paced else []
            case _:
                assert kind == "retry"
                return self.delivery.probe(number)

    def _on_probed(
        self, slot: int, batch: PendingBatch | None, answer: AddAnswered
    ) -> list[WriterEffect]:
        if answer.status is not Status.OK:
            del self.slots.probes[slot]
            seconds = max(self.limits.retry_seconds, answer.retry_after_seconds)
            return [StartTimer(("retry", slot), seconds)]
        effects = self._revive(slot)
        return effects + self._settle(batch) if batch is not None else effects

    def _on_add_timeout(self, number: int) -> list[WriterEffect]:
        batch = self.window.retained.get(number)
        if batch is None:
            return []
        paced = self.delivery.pacing.mask & batch.slots
        effects = self._bury(batch.slots & ~batch.acked & ~self.slots.dead & ~paced)
        # The appends of this confirmed batch have returned. With deferred sync, this is not enough,
        # because a force still needs an ack quorum for this batch.
        if (batch.confirmed and not self.deferred) or self.delivery.is_acknowledged(batch):
            if number in self.window.retained:
                effects.append(StartTimer(("add", number), self.limits.add_timeout_seconds))
            return effects
        if self.delivery.is_acknowledged(batch, expected=paced):
            return [*effects, StartTimer(("add", number), self.limits.add_timeout_seconds)]
        if self.ownership.change or self.replacements.is_choosing or self.replacements.may_begin:
            batch.overdue = True
            return [*effects, StartTimer(("add", number), self.limits.add_timeout_seconds)]
        return effects + self._fail_without_quorum(batch)

    def _fail_without_quorum(self, batch: PendingBatch) -> list[WriterEffect]:
        causes = self.delivery.causes(batch, self.metadata.last_fragment.bookies)
        seconds, limit = self.limits.add_timeout_seconds, self.replacements.limit_spent
        return self._fail(no_ack_quorum(self.metadata.ledger_id, seconds, causes, limit))

    def _fail(self, error: BookieError) -> list[WriterEffect]:
        """End the writer; batches that are not confirmed have an unknown outcome."""
        if self.error is not None:
            return []
        self.error = error = end_of_writer(error, self.metadata.ledger_id)
        retained = self.window.retained
        effects: list[WriterEffect] = [CancelTimer(("add", number)) for number in retained]
        effects += [Release(number) for number in retained]
        effects += [CancelTimer(("retry", slot)) for slot in slots_of(self.slots.dead)]
        self.window.clear()
        self.fenced_by, self.replacements.due = 0, 0
        if self.deferred is not None and self.deferred.abandon():
            effects.append(ForceDone(error))
        effects.append(Failed(error))
        return effects

    # -- replacing bookies -------------------------------------------------------------------------

    def _await_returns(self, leaving: int = 0) -> list[WriterEffect]:
        """Start timers for broken slots; a slot still broken when its timer fires needs a bookie.

        The timers are shorter if an ack quorum needs these slots.
        """
        replacements = self.replacements
        if not replacements.are_allowed or self.error is not None:
            return []
        broken = (self.slots.broken | leaving) & ~self.slots.lost & ~replacements.due
        every_class = range(len(self.quorum.windows))
        is_urgent = not self.quorum.is_acknowledged(~self.slots.failing, every_class)
        if is_urgent:
            starting = broken & ~replacements.urgent
            replacements.urgent |= starting
            seconds = self.limits.urgent_seconds
        else:
            starting = broken & ~replacements.returning
            seconds = self.limits.replace_after_seconds
        replacements.returning |= starting
        return [StartTimer(("replace", slot), seconds) for slot in slots_of(starting)]

    def _on_not_returned(self, slot: int) -> list[WriterEffect]:
        bit = 1 << slot
        self.replacements.keep(bit)
        if bit & ~self.slots.up and not self._is_closed:
            self.replacements.want(bit)
        return []

    def _begin_change(self) -> list[WriterEffect]:
        """Request newcomers, if slots need a bookie and appends wait or may still arrive."""
        is_needed = self.state is WriterState.OPEN or self.window.pending
        if self.error is not None or not is_needed or not self.replacements.may_begin:
            return []
        self.replacements.is_choosing = True
        return [ChooseNewcomers(self.metadata.last_fragment.bookies, self.replacements.due)]

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        replacements = self.replacements
        replacements.is_choosing = False
        is_wanted = replacements.due and self._is_working and self.error is None
        if not is_wanted or self.ownership.is_busy:
            return []  # if slots still need bookies after the operation, the writer asks again
        newcomers = {slot: b for slot, b in bookies.items() if replacements.due >> slot & 1}
        if not newcomers:
            replacements.lacks_spares = True
            overdue = next((batch for batch in self.window.pending if batch.overdue), None)
            if overdue is not None:
                return self._fail_without_quorum(overdue)
            return [StartTimer(("spare", 0), self.limits.spare_seconds)]
        first = self.last_add_confirmed + 1
        change = EnsembleChange(self.metadata, self.ownership.version, first, newcomers)
        self.delivery.hold(change)
        replacements.left -= 1
        self._changes_begun += 1
        return [
            StartTimer(("allow", self._changes_begun), _CHANGE_WINDOW_SECONDS),
            *self.ownership.propose(change),
        ]

    def _end_change(self, change: EnsembleChange | None) -> list[WriterEffect]:
        """End a change: install its newcomers; if it failed (None), only count its slots again."""
        effects: list[WriterEffect] = []
        if change is not None and self.error is None:
            effects += self._take_newcomers(change)
        self.delivery.end_hold(effects)
        return effects + self._make_room()

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        self.replacements.keep(change.replaced)
        self.fenced_by &= ~change.replaced
        effects = self.delivery.take_newcomers(change)
        return [*effects, ReplaceBookies(change.newcomers), *self._await_returns()]

    # -- fences ------------------------------------------------------------------------------------

    def _check_fence(self, bookie: int) -> list[WriterEffect]:
        """Skip a bookie that reports a fence, and record that the metadata must be checked."""
        if self.error is not None or not self._is_working:
            return []
        self.fenced_by |= bookie
        return self.delivery.skip_fenced(bookie & self.quorum.every_slot)

    def _on_unknown_owner(self) -> list[WriterEffect]:
        if self.state is WriterState.DRAINING and not self.window.retained:
            self.fenced_by = 0
            return []  # the close will show who owns the ledger
        self._check_is_paused = True
        return [StartTimer(("recheck", 0), self.limits.retry_seconds)]

    # -- publishing the LAC, and forcing -----------------------------------------------------------

    def _publish_lac(self, slots: int, *, again: bool) -> list[WriterEffect]:
        if self.state is not WriterState.OPEN or self.error is not None:
            return []
        return self.delivery.publish_lac(slots, again=again)

    def _start_force(self) -> list[WriterEffect]:
        if self.error is not None:
            return [ForceDone(self.error)]
        if self.state not in (WriterState.OPEN, WriterState.DRAINING):
            return [ForceDone(ClientClosedError("the writer is closed"))]
        deferred = self.deferred
        if deferred is None or not deferred.unsynced:
            return [ForceDone(None)]
        if deferred.number is not None:
            return []
        number = deferred.begin()
        return [
            SendForce(number, self.quorum.every_slot),
            StartTimer(("force", number), self.limits.add_timeout_seconds),
        ]

    def _end_force(self) -> list[WriterEffect]:
        assert self.deferred is not None
        number = self.deferred.number
        assert number is not None
        synced, complete = self.deferred.end(self.delivery.is_enough)
        for batch in synced:
            self.window.advance(batch)
        error = None if complete else not_synced(self.metadata.ledger_id, self.last_add_confirmed)
        effects: list[WriterEffect] = [CancelTimer(("force", number)), ForceDone(error)]
        if error is not None and self.state is WriterState.DRAINING:
            # Do not close: the ledger would end at the LAC, before entries that were reported as
            # written.
            effects += self._stay_open(error)
        return effects

    # -- the metadata, one operation at a time -----------------------------------------------------

    def _on_close(self) -> list[WriterEffect]:
        if self.state in (WriterState.OPEN, WriterState.STUCK):
            self.state = WriterState.DRAINING
        elif self.state is WriterState.CLOSED:
            return [WriterClosed(self.metadata)]
        return []

    def _next_operation(self) -> list[WriterEffect]:
        """Begin the most urgent metadata operation, unless another operation is under way."""
        if self.ownership.is_busy:
            return []
        is_asking = self.fenced_by and not self._check_is_paused and self.error is None
        if is_asking and self._is_working:
            return [*self.ownership.check()]
        if self.state is WriterState.DRAINING and not self.window.retained:
            return self._drained()
        return self._begin_change()

    def _drained(self) -> list[WriterEffect]:
        """After all batches were released: sync unsynced batches, or else close the ledger."""
        deferred = self.deferred
        if deferred is not None and deferred.unsynced:
            if self.error is not None:
                return self._stay_open(ended_unsynced(self.error, self.last_add_confirmed))
            return self._start_force() if deferred.number is None else []
        self.state = WriterState.CLOSING
        return [*self.ownership.close(self.last_add_confirmed, self.length_confirmed)]

    def _on_metadata(self, event: MetadataAnswer) -> list[WriterEffect]:
        asked, outcome = self.ownership.step(event)
        effects: list[WriterEffect] = [*asked]
        if outcome is not None:
            effects += self._on_outcome(outcome)
        if (silence := self.ownership.silence) is not None:
            effects += self._make_room()
            if self.state is WriterState.DRAINING:
                effects += self._stay_open(silence)
        return effects

    def _stay_open(self, error: BookieError) -> list[WriterEffect]:
        self.state = WriterState.STUCK
        return [CloseFailed(error)]

    def _on_outcome(self, outcome: Outcome) -> list[WriterEffect]:
        match outcome:
            case StillOurs():
                slots, self.fenced_by = self.fenced_by & self.quorum.every_slot, 0
                return self._lose(slots)
            case CheckFailed():
                return self._on_unknown_owner()
            case LedgerTaken(error):
                return self._fail(error) + self._end_change(None)
            case Changed(change):
                return self._end_change(change)
            case Overtaken():
                self.replacements.left += 1
                return [CancelTimer(("allow", self._changes_begun)), *self._end_change(None)]
            case CloseDone():
                self.state = WriterState.CLOSED
                return [WriterClosed(self.metadata)]
            case CloseRefused(error):
                return self._stay_open(error)
