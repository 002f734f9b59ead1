"""The one writer of a ledger: which bookies get what, and when an append is durable.

The driver keeps the payloads. Whenever `may_append` allows, it cuts its queue into **batches** of
at most 1024 entries or 1 MiB. It passes the machine only the number of entries and bytes of a
batch. The machine gives the batch its ids, says where to send it, when it is confirmed and when its
bytes may be dropped. No code here runs per entry.

A batch is **pending** until it is confirmed: every class in it has Qa acknowledgements, and all
batches before it are confirmed. The last add confirmed (LAC) moves only then, to the batch's last
id. A batch is **retained** until every slot that the writer still waits for has answered. So a
bookie that reconnects gets what it missed, and a slow bookie holds the writer back. A bookie that
fails is skipped (`slots`) as long as the others can acknowledge.

======== ===========================================================================================
state    leaves when
======== ===========================================================================================
OPEN     Close -> DRAINING
DRAINING nothing is retained or unsynced, or the writer failed -> CLOSING; cannot sync -> STUCK
CLOSING  compare-and-set won, or lost to an equal CLOSED -> CLOSED; refused -> STUCK
STUCK    Close -> DRAINING
CLOSED   never
======== ===========================================================================================

A writer that failed (`error` is set) never acknowledges again. It may still be closed at its LAC,
unless another client has taken the ledger over.

**Fenced, or not.** A bookie that answers FENCED is skipped while the metadata is read again. If
the ledger is still OPEN and ours, that bookie failed, and is lost. Otherwise the writer fails.

**Lost bookies.** A bookie that comes back with another incarnation may have lost what it had
acknowledged. Its acknowledgements of what is not confirmed are void, and it is never used again.

**Deferred sync.** Batches are confirmed when they are written, not synced; the LAC follows only
after a force. An acknowledgement that was not forced is void when the stream it came on breaks.

**Room for ensemble change.** Each slot has an epoch: the number of bookies that stood in it before.
Answers carry it, and an answer of another epoch counts for nothing. Batches end where the LAC may
stop, so a new fragment can start at LAC + 1 without packing any entry again.

Source: the BookKeeper protocol document, "Writing to ledgers" and "Closing a ledger as a writer".
"""

from __future__ import annotations

import enum
from collections import deque
from typing import assert_never

from bookie.errors import (
    BookieError,
    ClientClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    error_for_status,
)
from bookie.formats.ledger_metadata import LedgerMetadata, LedgerState
from bookie.ids import NO_ENTRY, Status
from bookie.protocol.closing import end_of_writer, refusal_to_close
from bookie.protocol.exchange import (
    CancelTimer,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    TimerFired,
    TimerId,
    WriteMetadata,
)
from bookie.protocol.pending import BATCH_ENTRIES_MAX, DeferredSync, PendingBatch, WriterLimits
from bookie.protocol.quorum import Quorum, slots_of
from bookie.protocol.slots import Slots
from bookie.protocol.writer_events import (
    FATAL_STATUSES,
    AddAnswered,
    Append,
    Close,
    CloseFailed,
    Confirmed,
    Failed,
    Force,
    ForceAnswered,
    ForceDone,
    Idle,
    LacAnswered,
    Release,
    Resend,
    SendBatch,
    SendForce,
    SendLac,
    SlotConnected,
    SlotDisconnected,
    SlotLost,
    WriterClosed,
    WriterEffect,
    WriterEvent,
)

_ENDING_STATUSES = FATAL_STATUSES | {Status.FENCED, Status.WRONG_INCARNATION}


class WriterState(enum.Enum):
    """Where the writer is in its life; see the module's table."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"
    STUCK = "stuck"
    CLOSED = "closed"


class LedgerWriter:
    """The state of one open ledger as its writer sees it. All fields are for reading only."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        limits: WriterLimits | None = None,
        *,
        deferred_sync: bool = False,
    ) -> None:
        assert metadata.state is LedgerState.OPEN
        self.metadata = metadata
        self.version = version
        self.limits = limits or WriterLimits()
        self.quorum = Quorum(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        self.state = WriterState.OPEN
        self.error: BookieError | None = None
        self.next_entry_id = 0
        self.length = 0
        """Accumulated payload bytes up to the last id given out."""
        self.last_add_confirmed = NO_ENTRY
        self.length_confirmed = 0
        """Accumulated payload bytes up to the LAC: the ledger's length if it is closed now."""
        self.lac_carried = NO_ENTRY
        """The highest LAC that some request carried; never above the LAC."""
        self.pending: deque[PendingBatch] = deque()
        """Not confirmed, in id order. Always a subset of `retained`."""
        self.retained: dict[int, PendingBatch] = {}
        self.retained_bytes = 0
        self.deferred = DeferredSync(self.quorum) if deferred_sync else None
        self.slots = Slots()
        self.epochs = [0] * metadata.ensemble_size
        self.fenced_by = 0
        """Slots that answered FENCED, while the metadata has not confirmed or denied it."""
        self._is_checking = False
        """Whether the metadata is being read because of them."""
        self._conflicts = 0
        self._batches_made = 0

    # -- what the driver may ask -----------------------------------------------------------------

    def may_append(self, *, full: bool) -> bool:
        """Whether an `Append` is welcome now; `full` says that the batch could not grow further."""
        eager = full or len(self.pending) < self.limits.eager_batches_max
        return eager and self._has_room and self.state is WriterState.OPEN and self.error is None

    @property
    def _has_room(self) -> bool:
        limits = self.limits
        return (
            self.retained_bytes < limits.in_flight_bytes_max
            and len(self.retained) < limits.in_flight_batches_max
        )

    @property
    def is_under_replicated(self) -> bool:
        """Whether some slot is skipped, so that new entries get fewer than Qw copies."""
        return self.slots.dead != 0

    @property
    def _is_closed(self) -> bool:
        return self.state is WriterState.CLOSED

    def step(self, event: WriterEvent) -> list[WriterEffect]:  # noqa: C901, PLR0912  (a table)
        """Take one event; the effects must be carried out in their order."""
        match event:
            case AddAnswered():
                effects = self._on_answer(event)
            case Append(count, payload_bytes):
                effects = self._on_append(count, payload_bytes)
            case Idle():
                effects = self._publish_lac(self.slots.up, again=False)
            case LacAnswered(slot, epoch, status, message):
                counts = epoch == self.epochs[slot] and not self._is_closed
                effects = self._on_refusal(slot, status, message) if counts else []
            case SlotConnected(slot):
                effects = self._on_connected(slot)
            case SlotDisconnected(slot):
                effects = self._on_disconnected(slot)
            case SlotLost(slot):
                effects = self._lose(1 << slot)
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
        if self.state is WriterState.DRAINING and not self.retained:
            effects += self._drained()
        return effects

    # -- appends and their answers ---------------------------------------------------------------

    def _on_append(self, count: int, payload_bytes: int) -> list[WriterEffect]:
        assert self.may_append(full=True)
        assert 1 <= count <= BATCH_ENTRIES_MAX
        first, length_before = self.next_entry_id, self.length
        number = self._batches_made
        self._batches_made += 1
        self.next_entry_id += count
        self.length += payload_bytes
        classes = self.quorum.classes_in(first, count)
        slots = self.quorum.slots_for(classes)
        last = self.next_entry_id - 1
        batch = PendingBatch(number, last, self.length, payload_bytes, classes, slots)
        self.pending.append(batch)
        self.retained[number] = batch
        self.retained_bytes += payload_bytes
        self.lac_carried = lac = self.last_add_confirmed
        targets = self.slots.targets(slots, number)
        return [
            SendBatch(number, first, count, lac, length_before, targets),
            StartTimer(("add", number), self.limits.add_timeout_seconds),
            *self._make_room(),
        ]

    def _on_answer(self, answer: AddAnswered) -> list[WriterEffect]:
        slot, status = answer.slot, answer.status
        if self.error is not None or answer.epoch != self.epochs[slot] or self._is_closed:
            return []
        if status in _ENDING_STATUSES:
            return self._on_refusal(slot, status, answer.message)
        bit = 1 << slot
        batch = self.retained.get(answer.batch)
        if status is not Status.OK:
            self.slots.refusals[slot] = answer.message or status.name
        elif batch is not None:
            batch.acked |= bit
        if self.slots.probes.get(slot) == answer.batch:
            return self._on_probed(slot, batch, ok=status is Status.OK)
        if batch is None:
            return []
        if status is Status.OK:
            return self._settle(batch)
        if self.slots.dead & bit:
            return []
        if status is Status.TOO_MANY_REQUESTS:
            return [StartTimer(("resend", slot), self.limits.resend_seconds)]
        if status is Status.BAD_CHECKSUM and not batch.checksum_failed & bit:
            batch.checksum_failed |= bit
            return [Resend(batch.number, slot)]
        return self._bury(bit)

    def _on_refusal(self, slot: int, status: Status, message: str) -> list[WriterEffect]:
        """An answer that may end the writer, or its use of the slot; nothing else is done."""
        if status in FATAL_STATUSES:
            return self._fail(error_for_status(status, message))
        if status is Status.WRONG_INCARNATION:
            return self._lose(1 << slot)
        return self._check_fence(slot) if status is Status.FENCED else []

    def _settle(self, batch: PendingBatch) -> list[WriterEffect]:
        """After new acknowledgements of `batch`: confirm and release what can be."""
        effects: list[WriterEffect] = []
        if batch.confirmed:
            self._release_if_done(batch, effects)
            return effects
        quorum, pending = self.quorum, self.pending
        while pending and quorum.is_acknowledged(pending[0].acked, pending[0].classes):
            head = pending.popleft()
            head.confirmed = True
            if self.deferred is not None:
                self.deferred.unsynced.append(head)
            else:
                self._advance_lac(head)
            effects.append(Confirmed(head.number))
            self._release_if_done(head, effects)
        if self.deferred and len(self.deferred.unsynced) >= self.limits.unforced_batches_max:
            effects += self._start_force()
        return effects + self._make_room()

    def _advance_lac(self, batch: PendingBatch) -> None:
        assert batch.last_entry_id > self.last_add_confirmed
        self.last_add_confirmed = batch.last_entry_id
        self.length_confirmed = batch.length_after

    def _release_if_done(self, batch: PendingBatch, effects: list[WriterEffect]) -> None:
        """Drop a confirmed batch that no slot is waited for any more."""
        if batch.confirmed and not batch.slots & ~batch.acked & ~self.slots.dead:
            del self.retained[batch.number]
            self.retained_bytes -= batch.payload_bytes
            effects.append(CancelTimer(("add", batch.number)))
            effects.append(Release(batch.number))

    def _make_room(self) -> list[WriterEffect]:
        """When only broken streams hold batches back, stop waiting for those bookies."""
        if self._has_room:
            return []
        oldest = next(iter(self.retained.values()))
        missing = oldest.slots & ~oldest.acked & ~self.slots.dead
        if oldest.confirmed and not missing & self.slots.connected:
            return self._bury(missing)
        return []

    # -- slots -------------------------------------------------------------------------------------

    def _bury(self, slots: int) -> list[WriterEffect]:
        """These bookies failed: go on without them."""
        effects: list[WriterEffect] = [
            StartTimer(("retry", slot), self.limits.retry_seconds)
            for slot in slots_of(self.slots.quarantine(slots))
        ]
        for batch in list(self.retained.values()):
            self._release_if_done(batch, effects)
        return effects

    def _lose(self, slots: int) -> list[WriterEffect]:
        """These bookies may have lost what they acknowledged: nothing of theirs counts any more."""
        effects: list[WriterEffect] = []
        for slot in slots_of(slots & ~self.slots.lost):
            self.epochs[slot] += 1  # answers on their way speak of what is lost
            self.slots.lose(slot)
            effects.append(CancelTimer(("retry", slot)))
            if self.deferred is not None:
                self.deferred.forget(slot)
        for batch in list(self.retained.values()):
            batch.acked &= ~slots
            self._release_if_done(batch, effects)
        return effects

    def _revive(self, slot: int) -> list[WriterEffect]:
        """Trust a bookie again, and send it everything retained that it has not acknowledged."""
        bit = 1 << slot
        self.slots.restore(slot)
        effects: list[WriterEffect] = [
            Resend(batch.number, slot)
            for batch in self.retained.values()
            if batch.slots & bit and not batch.acked & bit
        ]
        return effects or self._publish_lac(bit, again=True)

    def _on_connected(self, slot: int) -> list[WriterEffect]:
        self.slots.connect(slot)
        if self.error is not None or self._is_closed or self.slots.lost >> slot & 1:
            return []
        return [CancelTimer(("retry", slot)), *self._revive(slot)]

    def _on_disconnected(self, slot: int) -> list[WriterEffect]:
        self.slots.disconnect(slot)
        if self.deferred is not None:
            keep = ~(1 << slot)
            self.deferred.forget(slot)
            for batch in self.retained.values():
                batch.acked &= keep
        return self._make_room()

    def _on_timer(self, timer: TimerId) -> list[WriterEffect]:
        kind, number = timer
        if kind == "reread":
            return [ReadMetadata()] if self.state is WriterState.CLOSING else []
        if self.error is not None:
            return []
        if kind == "recheck":
            return self._read_whose_it_is()
        if kind == "add":
            return self._on_add_timeout(number)
        if kind == "force":
            known = self.deferred is not None and self.deferred.number == number
            return self._end_force() if known else []
        if kind == "resend":
            return self._revive(number) if self.slots.up & 1 << number else []
        assert kind == "retry"
        return self._probe(number)

    def _probe(self, slot: int) -> list[WriterEffect]:
        """Try a dead slot, with a batch that needs it if there is one, else with the next."""
        if not self.slots.may_probe(slot):
            return []
        bit = 1 << slot
        for batch in self.pending:
            if batch.slots & bit and not batch.acked & bit:
                self.slots.probes[slot] = batch.number
                return [Resend(batch.number, slot)]
        self.slots.probing |= bit
        return []

    def _on_probed(self, slot: int, batch: PendingBatch | None, *, ok: bool) -> list[WriterEffect]:
        if not ok:
            del self.slots.probes[slot]
            return [StartTimer(("retry", slot), self.limits.retry_seconds)]
        effects = self._revive(slot)
        return effects + self._settle(batch) if batch is not None else effects

    def _on_add_timeout(self, number: int) -> list[WriterEffect]:
        batch = self.retained.get(number)
        if batch is None:
            return []
        effects = self._bury(batch.slots & ~batch.acked & ~self.slots.dead)
        if self.quorum.is_acknowledged(batch.acked, batch.classes):
            return effects
        bookies = self.metadata.last_fragment.bookies
        missing = slots_of(batch.slots & ~batch.acked)
        causes = [self.slots.cause(slot, bookies[slot]) for slot in missing]
        return effects + self._fail(
            NotEnoughBookiesError(
                f"ledger {self.metadata.ledger_id}: no ack quorum answered within "
                f"{self.limits.add_timeout_seconds:g} s ({'; '.join(causes)})"
            )
        )

    def _fail(self, error: BookieError) -> list[WriterEffect]:
        """Nothing is acknowledged from now on; what was not has an unknown outcome."""
        if self.error is not None:
            return []
        self.error = error = end_of_writer(error, self.metadata.ledger_id)
        effects: list[WriterEffect] = [CancelTimer(("add", number)) for number in self.retained]
        effects += [Release(number) for number in self.retained]
        effects += [CancelTimer(("retry", slot)) for slot in slots_of(self.slots.dead)]
        self.pending.clear()
        self.retained.clear()
        self.retained_bytes = 0
        if self.deferred is not None and self.deferred.abandon():
            effects.append(ForceDone(error))
        effects.append(Failed(error))
        return effects

    # -- is it fenced? -----------------------------------------------------------------------------

    def _check_fence(self, slot: int) -> list[WriterEffect]:
        """A bookie says that another client took the ledger: see whether the metadata says so."""
        if self.error is not None or self.state not in (WriterState.OPEN, WriterState.DRAINING):
            return []
        effects = self._bury(1 << slot)
        is_known, self.fenced_by = self.fenced_by != 0, self.fenced_by | 1 << slot
        return effects if is_known else effects + self._read_whose_it_is()

    def _read_whose_it_is(self) -> list[WriterEffect]:
        if self._is_checking or not self.fenced_by:
            return []
        if self.state not in (WriterState.OPEN, WriterState.DRAINING):
            return []
        self._is_checking = True
        return [ReadMetadata()]

    def _on_whose_it_is(self, event: MetadataRead | MetadataFailed) -> list[WriterEffect]:
        self._is_checking = False
        slots, self.fenced_by = self.fenced_by, 0
        if self.error is not None:
            return []
        if isinstance(event, MetadataRead):
            if self._is_ours(event.metadata):
                return self._lose(slots)
            return self._fail(
                LedgerFencedError(
                    f"another client took ledger {self.metadata.ledger_id} over: "
                    f"it is {event.metadata.state.name} now"
                )
            )
        if isinstance(event.error, NoSuchLedgerError):
            return self._fail(event.error)
        if self.state is WriterState.DRAINING and not self.retained:
            return []  # closing decides it
        self.fenced_by = slots
        return [StartTimer(("recheck", 0), self.limits.retry_seconds)]

    def _is_ours(self, found: LedgerMetadata) -> bool:
        """Whether this writer created the ledger and no other client has taken it."""
        return (
            found.state is LedgerState.OPEN
            and found.c_token == self.metadata.c_token
            and found.last_fragment == self.metadata.last_fragment
        )

    # -- publishing the LAC, and forcing -----------------------------------------------------------

    def _publish_lac(self, slots: int, *, again: bool) -> list[WriterEffect]:
        """Send the LAC on its own, when nothing is on its way that would carry it."""
        lac = self.last_add_confirmed
        if self.pending or self.state is not WriterState.OPEN or self.error is not None:
            return []
        if lac == NO_ENTRY or not slots or not (again or lac > self.lac_carried):
            return []
        if not again:
            self.lac_carried = lac
        return [SendLac(lac, slots)]

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
        synced, complete = self.deferred.end()
        for batch in synced:
            self._advance_lac(batch)
        error = None
        if not complete:
            error = NotEnoughBookiesError(
                f"ledger {self.metadata.ledger_id}: entries after {self.last_add_confirmed} could "
                f"not be synced on an ack quorum"
            )
        effects: list[WriterEffect] = [CancelTimer(("force", number)), ForceDone(error)]
        if error is not None and self.state is WriterState.DRAINING:
            # Closing at the LAC would cut off what the user was told is written.
            self.state = WriterState.STUCK
            effects.append(CloseFailed(error))
        return effects

    # -- closing -----------------------------------------------------------------------------------

    def _on_close(self) -> list[WriterEffect]:
        if self.state in (WriterState.OPEN, WriterState.STUCK):
            self.state = WriterState.DRAINING
        elif self.state is WriterState.CLOSED:
            return [WriterClosed(self.metadata)]
        return []

    def _drained(self) -> list[WriterEffect]:
        """Everything is confirmed, or the writer failed: sync what is not, then close."""
        if self._is_checking:
            return []  # one metadata operation at a time
        deferred = self.deferred
        if deferred is None or not deferred.unsynced or self.error is not None:
            return self._write_closed()
        return self._start_force() if deferred.number is None else []

    def _write_closed(self) -> list[WriterEffect]:
        self.state = WriterState.CLOSING
        closed = self.metadata.closed(self.last_add_confirmed, self.length_confirmed)
        return [WriteMetadata(closed, self.version)]

    def _on_metadata(
        self, event: MetadataWritten | MetadataConflict | MetadataRead | MetadataFailed
    ) -> list[WriterEffect]:
        if self._is_checking:
            assert isinstance(event, MetadataRead | MetadataFailed)
            return self._on_whose_it_is(event)
        assert self.state is WriterState.CLOSING
        match event:
            case MetadataWritten(version):
                self.version = version
                closed = self.metadata.closed(self.last_add_confirmed, self.length_confirmed)
                return self._end(closed)
            case MetadataConflict():
                pause = self.limits.reread_seconds * 2.0 ** min(self._conflicts, 20)
                self._conflicts += 1
                return [StartTimer(("reread", 0), min(pause, self.limits.reread_seconds_max))]
            case MetadataFailed(error):
                self.state = WriterState.STUCK
                return [CloseFailed(error)]
            case MetadataRead(metadata, version):
                return self._on_metadata_read(metadata, version)

    def _on_metadata_read(self, metadata: LedgerMetadata, version: int) -> list[WriterEffect]:
        if metadata.state is LedgerState.OPEN:
            self.metadata, self.version = metadata, version
            return self._write_closed()
        error = refusal_to_close(metadata, self.last_add_confirmed, self.length_confirmed)
        if error is None:
            return self._end(metadata)
        self.state = WriterState.STUCK
        return [CloseFailed(error)]

    def _end(self, metadata: LedgerMetadata) -> list[WriterEffect]:
        self.metadata = metadata
        self.state = WriterState.CLOSED
        return [WriterClosed(metadata)]
