"""A recovery takes a ledger from its writer, finds its end, and closes it there.

========== =========================================================================================
state      what happens, and what ends it
========== =========================================================================================
MARKING    Compare-and-set OPEN -> IN_RECOVERY. From now on the writer can neither close the ledger
           nor change its ensemble. Keep this version of the metadata: its last ensemble stays the
           last ensemble of the recovery, even if the ledger changes later. If the ledger is already
           CLOSED -> DONE.
FENCING    Fence every bookie of the last ensemble and ask for its LAC, until the answers cover the
           ensemble: no write set has an ack quorum among the bookies that did not answer.
READING    Read forward, by batches and with fencing reads, from max(LAC, first id of the last
           fragment - 1) + 1. If one verified copy of the next entry is found, the entry exists ->
           RE-ADDING. If Qw - Qa + 1 bookies definitely deny the next entry, the ledger ends before
           it -> CLOSING. If all bookies answered without such a result, read again later; after a
           few attempts the recovery fails.
RE-ADDING  Store the packets, byte for byte, on their write sets. When each entry has Qa copies ->
           READING. If a write set can no longer reach Qa copies, other bookies take over its failed
           slots.
MEASURING  No entry was found, and the length is unknown: read the entry before, which was
           acknowledged, to get the length.
CLOSING    Compare-and-set IN_RECOVERY -> CLOSED; after a conflict, read the metadata. If another
           client has CLOSED the ledger, not below the LAC, this is a success. If it is still
           IN_RECOVERY, try again; begin with FENCING if the last fragment has changed, or if a
           newcomer has lost entries.
DONE       The ledger is CLOSED.
FAILED     The recovery did not close the ledger, which is undamaged; another recovery may start.
========== =========================================================================================

A recovery is safe because a bookie that fenced the ledger, or denied an entry on a fencing read,
refuses plain adds afterwards. So an entry that Qw - Qa + 1 members of its write set denied cannot
be acknowledged later. The entry was not acknowledged before either, because then at least one of
these members would have stored the entry. A bookie may still store entries beyond the end of the
ledger, but these entries stay unacknowledged and unreadable. A recovery stores each packet with its
original LAC, so no packet has a LAC beyond the last entry that the writer had acknowledged.

Fences and reads always go to the last ensemble that the recovery found at its start. Adds may go to
other bookies, but the metadata names these bookies only when the ledger is closed
(`recovery_tail`). A new bookie takes over its slot from the first entry that is not yet on an ack
quorum. New bookies never take over entries of an earlier fragment, because reading starts in the
last fragment. If a recovery stops early, the next recovery begins anew, without its results.

Another bookie takes over a failed slot only if no ack quorum is possible without it. A slow bookie
is not replaced while Qa other bookies store the entries; each later batch is also sent to the slow
bookie. So a recovery creates few fragments, and keeps spare bookies for slots that need them.

Source: the BookKeeper protocol document, "Closing a ledger as a reader".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import parse_header
from bookie.env.backoff import Backoff
from bookie.errors import BookieError, CorruptionError, LedgerRecoveryError, error_for_status
from bookie.ids import BATCH_SIZE_BYTES_MAX, MAX_ID, NO_ENTRY, Status
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.quorum import EVERY_ID, Quorum, mask_of, slots_of
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    NewcomersLost,
    PublishNewcomers,
    Recovered,
    RecoveryAddAnswered,
    RecoveryEffect,
    RecoveryEvent,
    RecoveryFailed,
    RecoveryReadAnswered,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    Start,
)
from bookie.ledger.recover.recovery_tail import RecoveryTail
from bookie.ledger.striping import is_run, run_from, select
from bookie.ledger.write.closing import id_given_away
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX

_RETRY = ("retry", 0)

_FATAL = frozenset({Status.NOT_PERMITTED, Status.WRONG_CLUSTER, Status.BAD_REQUEST})
"""Answers that report an error of the caller, which every other bookie would also report.

UNAUTHORIZED does not end a recovery. The password was checked before, so an UNAUTHORIZED bookie
knows another ledger with this id. A bookie that answers UNAUTHORIZED stores nothing of this ledger,
and its answer does not count.
"""


class RecoveryState(enum.Enum):
    """The states of a recovery; the table at the top of this module explains them."""

    MARKING = "marking"
    FENCING = "fencing"
    READING = "reading"
    READDING = "re-adding"
    MEASURING = "measuring"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Limits of one recovery."""

    attempts_max: int = 3
    """The number of rounds without progress after which the recovery fails."""
    retry_seconds: float = 0.5
    """The pause before the next round of requests."""
    reread_seconds: float = 0.05
    """The first pause after a failed compare-and-set; later pauses double, up to
    `retry_seconds`."""


class LedgerRecovery:
    """One client's attempt to recover one ledger. Other code must not change the fields."""

    def __init__(
        self, metadata: LedgerMetadata, version: int, limits: RecoveryLimits | None = None
    ) -> None:
        self.metadata = metadata
        self.version = version
        self.limits = limits or RecoveryLimits()
        self.quorum = Quorum.of(metadata)
        self.tail = RecoveryTail.of(metadata)
        """The fragments for the re-added entries; they are written to the metadata store only at
        the close."""
        self.state = RecoveryState.MARKING
        self.round = 0
        """The number of the current round of requests; answers to earlier rounds are ignored."""
        self.attempts_left = self.limits.attempts_max
        """The number of further rounds that may end without a decision; any progress resets this
        number."""
        self.restarts_left = self.limits.attempts_max
        self.waiting = 0
        """Slots that were asked in this round and have not answered."""
        self.fenced = 0
        """Slots whose bookies have fenced the ledger and reported their LAC."""
        self.last_add_confirmed = NO_ENTRY
        """The highest LAC that a verified packet proved in the state FENCING; later states do not
        change it."""
        self.next_entry_id = 0
        """Every entry below this id exists on an ack quorum, or was acknowledged."""
        self.length: int | None = None
        """Length of the ledger up to `next_entry_id` - 1; None until a verified packet proves
        it."""
        self.denied: dict[int, int] = {}
        """Maps an entry id, from `next_entry_id` on, to the slots that denied the entry on a
        fencing read."""
        self.silence = "no bookie answered"
        """For the error message: the last answer that was neither a success nor a denial."""
        self._found: dict[int, EntryBatch] = {}
        self._heard = 0
        """Slots that returned entries or a denial in this round of reads."""
        self._told: dict[int, int] = {}
        self._readding: EntryBatch | None = None
        self._acked = 0
        self._failed = 0
        """Slots that failed in this round of adds, and for which no newcomer was requested yet."""
        self._offered: int | None = None
        """Slots for which newcomers are being chosen; None if no choice is under way."""
        self._conflicts = 0

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        """Handle one event; return the effects, which must be carried out in order."""
        match event:
            case Start():
                return self._mark()
            case FenceAnswered():
                return self._on_fence(event) if self._is_awaited(event) else []
            case RecoveryReadAnswered():
                return self._on_read(event) if self._is_awaited(event) else []
            case RecoveryAddAnswered():
                return self._on_add(event) if self._is_awaited(event) else []
            case NewcomersChosen(bookies):
                return self._on_newcomers(bookies)
            case NewcomersLost(lost):
                return self._restart(f"{', '.join(lost)} took over and lost entries")
            case TimerFired():
                return self._on_timer()
            case MetadataRead(metadata, version):
                return self._on_metadata(metadata, version)
            case MetadataWritten(version):
                return self._on_written(version)
            case MetadataConflict():
                self._conflicts += 1
                pauses = Backoff(self.limits.reread_seconds, self.limits.retry_seconds)
                return [StartTimer(_RETRY, pauses.after(self._conflicts - 1))]
            case MetadataFailed(error):
                return self._fail(error)
            case _:
                assert_never(event)

    # -- rounds ------------------------------------------------------------------------------------

    def _begin_round(self, slots: int) -> None:
        self.round += 1
        self.waiting = slots

    def _is_awaited(
        self, event: FenceAnswered | RecoveryReadAnswered | RecoveryAddAnswered
    ) -> bool:
        """True if a slot's answer belongs to this round; record that the slot has answered."""
        bit = 1 << event.slot
        if event.round != self.round or not self.waiting & bit:
            return False
        self.waiting &= ~bit
        if event.status is not Status.OK and not event.status.is_definite_negative:
            self.silence = f"slot {event.slot}: {event.status.name} {event.message}".rstrip()
        return True

    def _undecided(self) -> list[RecoveryEffect]:
        """Retry later, or fail after the last attempt, because the answers allow no decision."""
        self.attempts_left -= 1
        if self.attempts_left > 0:
            return [StartTimer(_RETRY, self.limits.retry_seconds)]
        return self._fail(
            LedgerRecoveryError(
                f"ledger {self.metadata.ledger_id} cannot be recovered now: too few bookies "
                f"answered while {self.state.value} at entry {self.next_entry_id} ({self.silence})"
            )
        )

    def _on_timer(self) -> list[RecoveryEffect]:
        match self.state:
            case RecoveryState.FENCING:
                return self._fence()
            case RecoveryState.READING:
                return self._read()
            case RecoveryState.READDING:
                # While newcomers are being chosen, send nothing: an answer of the former bookie
                # must not count as an answer of the newcomer.
                return self._send_adds() if self._offered is None else []
            case RecoveryState.MEASURING:
                return self._measure()
            case RecoveryState.MARKING | RecoveryState.CLOSING:
                return [ReadMetadata()]
            case _:
                return []

    def _fail(self, error: BookieError) -> list[RecoveryEffect]:
        self.state = RecoveryState.FAILED
        self.waiting = 0
        return [RecoveryFailed(error)]

    # -- MARKING and FENCING -----------------------------------------------------------------------

    def _mark(self) -> list[RecoveryEffect]:
        match self.metadata.state:
            case LedgerState.CLOSED:
                return self._done()
            case LedgerState.IN_RECOVERY:
                return self._fence()
            case LedgerState.OPEN:
                marked = self.metadata.with_state(LedgerState.IN_RECOVERY)
                return [WriteMetadata(marked, self.version)]

    def _fence(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.FENCING
        self._begin_round(self.quorum.every_slot & ~self.fenced)
        bookies = self.metadata.last_fragment.bookies
        return [SendFence(self.round, slot, bookies[slot]) for slot in slots_of(self.waiting)]

    def _on_fence(self, answer: FenceAnswered) -> list[RecoveryEffect]:
        status = answer.status
        if status in _FATAL:
            return self._fail(error_for_status(status, answer.message))
        if status is Status.OK or status.is_definite_negative:
            self.fenced |= 1 << answer.slot
            self.last_add_confirmed = max(self.last_add_confirmed, answer.last_add_confirmed)
            if answer.last_entry_id != NO_ENTRY:
                self._told[answer.last_entry_id] = answer.last_length
            if self.quorum.covers(self.fenced):
                return self._start_reading()
        return [] if self.waiting else self._undecided()

    # -- READING -----------------------------------------------------------------------------------

    def _start_reading(self) -> list[RecoveryEffect]:
        # The entries before the last fragment are confirmed, but the bookies may know only an older
        # LAC.
        before = self.metadata.last_fragment.first_entry_id - 1
        last_known = max(self.last_add_confirmed, before)
        self.next_entry_id = last_known + 1
        self.length = 0 if last_known == NO_ENTRY else self._told.get(last_known)
        self.attempts_left = self.limits.attempts_max
        return self._read()

    def _read(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.READING
        self._found, self._heard = {}, 0
        self._begin_round(self.quorum.every_slot)
        bookies = self.metadata.last_fragment.bookies
        return [
            SendRecoveryRead(
                self.round,
                slot,
                bookies[slot],
                self.next_entry_id,
                MAX_ID,
                self.quorum.stripe_of(slot),
                # Without a fence, the bookie could deny the entry now, and accept it from the
                # writer later.
                fence=True,
            )
            for slot in slots_of(self.waiting)
        ]

    def _on_read(self, answer: RecoveryReadAnswered) -> list[RecoveryEffect]:
        if answer.status in _FATAL:
            return self._fail(error_for_status(answer.status, answer.message))
        if self.state is RecoveryState.MEASURING:
            return self._on_measured(answer)
        slot = answer.slot
        if answer.status is Status.OK or answer.status.is_definite_negative:
            self._heard |= 1 << slot
        stripe = self.quorum.stripe_of(slot)
        undecided = stripe.next_id(self.next_entry_id)
        denial = answer.status
        if answer.status is Status.OK:
            denial = answer.stopped_by
            batch = answer.batch
            if batch is not None and is_run(batch, stripe, self.next_entry_id):
                self._found[slot] = batch
                undecided = stripe.next_id(batch.last_entry_id + 1)
            if answer.next_entry_id != undecided:
                denial = Status.OK  # the bookie denies another id
        if denial.is_definite_negative:
            self.denied[undecided] = self.denied.get(undecided, 0) | 1 << slot
        return self._evaluate()

    def _evaluate(self) -> list[RecoveryEffect]:
        """Decide if the entry `next_entry_id` exists, as soon as the answers permit a decision."""
        quorum, entry_id = self.quorum, self.next_entry_id
        run = run_from(entry_id, list(self._found.values()))
        if run is not None:
            # In a striped ledger, the run ends too early if no bookie of the following entry has
            # answered yet. Wait for the answer of only one of these bookies, so that a silent
            # bookie does not delay the others' entries.
            following = quorum.write_mask(run.last_entry_id + 1)
            is_whole = following & self._heard or not following & self.waiting
            return self._readd(run) if is_whole else []
        members = quorum.write_mask(entry_id)
        denied = self.denied.get(entry_id, 0) & members
        if denied.bit_count() >= quorum.negatives_needed:
            return self._close() if self.length is not None else self._measure()
        return [] if self.waiting & members else self._undecided()

    # -- RE-ADDING ---------------------------------------------------------------------------------

    def _readd(self, run: EntryBatch) -> list[RecoveryEffect]:
        self._readding = next(run.split(BATCH_ENTRIES_MAX, BATCH_SIZE_BYTES_MAX))
        self._acked = 0
        return self._send_adds()

    def _classes(self, batch: EntryBatch) -> Iterable[int]:
        return self.quorum.classes_in(batch.first_entry_id, batch.count)

    def _send_adds(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.READDING
        batch = self._readding
        assert batch is not None
        self._begin_round(self.quorum.slots_for(self._classes(batch)) & ~self._acked)
        self._failed = 0
        return self._adds_to(batch, self.waiting)

    def _adds_to(self, batch: EntryBatch, slots: int) -> list[RecoveryEffect]:
        bookies = self.tail.bookies
        effects: list[RecoveryEffect] = []
        for slot in slots_of(slots):
            part = select(batch, self.quorum.stripe_of(slot))
            assert part is not None
            effects.append(SendAdd(self.round, slot, bookies[slot], part))
        return effects

    def _on_add(self, answer: RecoveryAddAnswered) -> list[RecoveryEffect]:
        batch = self._readding
        assert batch is not None
        if answer.status in _FATAL:
            return self._fail(error_for_status(answer.status, answer.message))
        if answer.status is not Status.OK:
            self._failed |= 1 << answer.slot
            return self._offer_slots(batch)
        self._acked |= 1 << answer.slot
        if not self.quorum.is_acknowledged(self._acked, self._classes(batch)):
            return self._offer_slots(batch)
        self.next_entry_id = batch.last_entry_id + 1
        self.length = parse_header(batch.packets()[-1]).length
        self.denied = {e: by for e, by in self.denied.items() if e >= self.next_entry_id}
        self.attempts_left = self.limits.attempts_max
        self._readding = None
        return self._read()

    def _offer_slots(self, batch: EntryBatch) -> list[RecoveryEffect]:
        """Request newcomers for failed slots, if no ack quorum is possible without newcomers."""
        if self._offered is not None:
            return []  # wait for the result of the choice under way
        possible = self._acked | self.waiting
        short = [
            index
            for index in self._classes(batch)
            if not self.quorum.is_acknowledged(possible, [index])
        ]
        if not short:
            return []
        failed = self._failed & self.quorum.slots_for(short)
        if failed:
            self._offered = failed
            self._failed &= ~failed
            return [ChooseNewcomers(self.tail.bookies, failed)]
        return [] if self.waiting else self._undecided()

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[RecoveryEffect]:
        batch, offered = self._readding, self._offered
        self._offered = None
        if self.state is not RecoveryState.READDING or batch is None or offered is None:
            return []
        newcomers = {slot: name for slot, name in bookies.items() if offered >> slot & 1}
        effects: list[RecoveryEffect] = []
        if newcomers:
            slots = mask_of(newcomers)
            self.tail = self.tail.changed(batch.first_entry_id, newcomers)
            # The former bookie's copies no longer count, because the fragment names the newcomer.
            self._acked &= ~slots
            # Stay in this round, so that answers in flight from the other slots stay valid.
            self.waiting |= slots
            effects = self._adds_to(batch, slots)
        else:
            self.silence += ", and no other bookie can take over"
        return effects + self._offer_slots(batch)

    # -- MEASURING and CLOSING ---------------------------------------------------------------------

    def _measure(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.MEASURING
        entry_id = self.next_entry_id - 1
        self._begin_round(self.quorum.write_mask(entry_id))
        # The entry may be in an earlier fragment. No fence is needed, because the entry was
        # acknowledged.
        bookies = self.metadata.fragment_of(entry_id).bookies
        return [
            SendRecoveryRead(
                self.round, slot, bookies[slot], entry_id, entry_id, EVERY_ID, fence=False
            )
            for slot in slots_of(self.waiting)
        ]

    def _on_measured(self, answer: RecoveryReadAnswered) -> list[RecoveryEffect]:
        entry_id = self.next_entry_id - 1
        batch = answer.batch
        if answer.status is Status.OK and batch is not None and batch.first_entry_id == entry_id:
            self.length = parse_header(batch.packets()[0]).length
            return self._close()
        return [] if self.waiting else self._undecided()

    def _close(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.CLOSING
        self.waiting = 0
        closed, newcomers = self._closed_metadata(), self.tail.newcomers
        if newcomers:
            return [PublishNewcomers(closed, self.version, newcomers)]
        return [WriteMetadata(closed, self.version)]

    def _closed_metadata(self) -> LedgerMetadata:
        assert self.length is not None
        return self.tail.published(self.metadata).closed(self.next_entry_id - 1, self.length)

    def _on_written(self, version: int) -> list[RecoveryEffect]:
        self.version = version
        if self.state is RecoveryState.MARKING:
            self.metadata = self.metadata.with_state(LedgerState.IN_RECOVERY)
            return self._fence()
        assert self.state is RecoveryState.CLOSING
        self.metadata = self._closed_metadata()
        return self._done()

    def _on_metadata(self, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        """Continue, end or fail, as the current metadata demands after a failed write."""
        if metadata.c_token != self.metadata.c_token:
            return self._fail(id_given_away(metadata.ledger_id))
        self.metadata, self.version = metadata, version
        if self.state is RecoveryState.MARKING:
            self.tail = RecoveryTail.of(metadata)
            return self._mark()
        assert self.state is RecoveryState.CLOSING
        ledger_id = metadata.ledger_id
        if metadata.state is LedgerState.CLOSED:
            if metadata.last_entry_id >= self.last_add_confirmed:
                return self._done()
            return self._fail(
                CorruptionError(
                    f"ledger {ledger_id} was closed at entry {metadata.last_entry_id}, although "
                    f"entry {self.last_add_confirmed} was confirmed"
                )
            )
        if metadata.state is LedgerState.OPEN:
            return self._fail(
                CorruptionError(f"ledger {ledger_id} went back from IN_RECOVERY to OPEN")
            )
        if metadata.last_fragment == self.tail.frozen:
            return self._close()
        # Another client replaced bookies, so the recovery has stored entries on bookies that the
        # metadata no longer names.
        return self._restart("its last fragment keeps changing")

    def _restart(self, reason: str) -> list[RecoveryEffect]:
        """Drop all results so far and restart with FENCING; fail after too many restarts."""
        self.restarts_left -= 1
        if self.restarts_left <= 0:
            return self._fail(
                LedgerRecoveryError(f"ledger {self.metadata.ledger_id} is not recovered: {reason}")
            )
        self.tail = RecoveryTail.of(self.metadata)
        self.fenced, self.last_add_confirmed = 0, NO_ENTRY
        self.denied.clear()
        self.attempts_left = self.limits.attempts_max
        return self._fence()

    def _done(self) -> list[RecoveryEffect]:
        self.state = RecoveryState.DONE
        return [Recovered(self.metadata, self.version)]
