"""The scenarios bite: each fails with a machine that walks into the trap that its file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import pack_batch, parse_header, verify_batch
from bookie.ids import Status
from bookie.ledger.exchange import CancelTimer, MetadataRead, TimerId
from bookie.ledger.quorum import mask_of
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.recover.recovery_events import RecoveryEffect, RecoveryEvent
from bookie.ledger.write import writer_events
from bookie.ledger.write.ensemble_change import EnsembleChange
from bookie.ledger.write.ownership import CloseRefused, Outcome
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import WriterEffect, WriterEvent, WriterState
from tests.entry_batches import merged
from tests.property.ledger import test_protocol_mutants as seeded
from tests.property.ledger.protocol_world import DIGESTER, LEDGER_ID, SimBookie
from tests.scenarios.scenario_commands import run_scenario
from tests.scenarios.scenario_script import ScenarioFailedError
from tests.scenarios.scenario_world import Machines

FOLDER = Path(__file__).parent


class DropsTheSecondFailure(LedgerWriter):
    """A bookie that fails while others are being replaced is forgotten."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        effects = super()._take_newcomers(change)
        self.replacements.due = 0
        return effects


class FreezesTooEarly(LedgerWriter):
    """The fragment begins behind the LAC of the failure, though more was confirmed since."""

    frozen = -1

    def _begin_change(self) -> list[WriterEffect]:
        effects = super()._begin_change()
        if effects:
            self.frozen = self.last_add_confirmed
        return effects

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        window, before = self.window, self.window.last_add_confirmed
        window.last_add_confirmed = self.frozen
        effects = super()._on_newcomers(bookies)
        window.last_add_confirmed = before
        return effects


class IgnoresEqualEnsembles(LedgerWriter):
    """Takes a change to the same bookies for needless, and skips it."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        if change.proposal.last_fragment.bookies == change.before.last_fragment.bookies:
            self.replacements.keep(change.replaced)
            return []
        return super()._take_newcomers(change)


class ForgivesLateFailures(LedgerWriter):
    """A bookie that fails an entry with an ack quorum stays in the ensemble."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.status is Status.IO_ERROR:
            batch = self.window.retained.get(event.batch)
            if batch is not None and batch.confirmed:
                return []
        return super().step(event)


class ReplacesWhoIsBack(LedgerWriter):
    """Newcomers that were chosen are taken, whoever has returned since."""

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        self.replacements.due |= mask_of(bookies)
        return super()._on_newcomers(bookies)


class HearsWhoLeft(LedgerWriter):
    """Refusals of a bookie that was replaced count against its successor."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.status is not Status.OK:
            event = replace(event, epoch=self.epochs[event.slot])
        return super().step(event)


class DeafToFormerEpochs(LedgerWriter):
    """All answers of a bookie that was replaced are ignored, FENCED and UNAUTHORIZED as well."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.epoch != self.epochs[event.slot]:
            return []
        return super().step(event)


class ReleasesMeanwhile(LedgerWriter):
    """What is confirmed while a change is under way is released at once."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        self.delivery.held_from = 1 << 62
        return super().step(event)


class HidesTheLac(LedgerWriter):
    """A newcomer is sent the entries, and no LAC."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        is_connect = isinstance(event, writer_events.SlotConnected)
        effects = super().step(event)
        return [e for e in effects if not (is_connect and isinstance(e, writer_events.SendLac))]


class IsImpatient(LedgerWriter):
    """A bookie is replaced as soon as its stream breaks."""

    def _await_returns(self, leaving: int = 0) -> list[WriterEffect]:
        self.replacements.want((self.slots.broken | leaving) & ~self.slots.lost)
        return []


class AsksOnce(LedgerWriter):
    """It gives up as soon as it lacks a spare."""

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        effects = super()._on_newcomers(bookies)
        return effects if bookies else []


class HasNoBound(LedgerWriter):
    """As many changes as bookies fail."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        self.replacements.left = 20
        return super().step(event)


class AdoptsForeigners(LedgerWriter):
    """A last fragment that somebody else wrote is taken for the writer's own change."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        change = self.ownership.change
        if isinstance(event, MetadataRead) and change is not None:
            fragments = (*event.metadata.fragments[:-1], change.proposal.last_fragment)
            event = replace(event, metadata=replace(event.metadata, fragments=fragments))
        return super().step(event)


class OverwritesRepair(LedgerWriter):
    """After a conflict the change is proposed with the new version and the old contents."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, MetadataRead) and self.ownership.change is not None:
            event = replace(event, metadata=self.ownership.change.before)
        return super().step(event)


class ClosesOnce(LedgerWriter):
    """A close that was refused is not tried again."""

    def _on_outcome(self, outcome: Outcome) -> list[WriterEffect]:
        effects = super()._on_outcome(outcome)
        if isinstance(outcome, CloseRefused):
            self._on_close = list  # type: ignore[method-assign]
        return effects


class KeepsTheRumour(LedgerWriter):
    """A fence that a former bookie told of stays a question, whatever the metadata says."""

    def _on_outcome(self, outcome: Outcome) -> list[WriterEffect]:
        rumour = self.fenced_by & ~self.quorum.every_slot
        effects = super()._on_outcome(outcome)
        self.fenced_by |= rumour
        return effects


class BlamesTheSuccessor(LedgerWriter):
    """A fence that a replaced bookie told of is asked about as if its successor had told it."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        before = self.fenced_by
        effects = super()._take_newcomers(change)
        self.fenced_by = before
        return effects


def with_old_timers(effects: list[WriterEffect], kind: str) -> list[WriterEffect]:
    """Timers of this kind are not cancelled."""
    return [e for e in effects if not (isinstance(e, CancelTimer) and e.timer[0] == kind)]


class KeepsTheRetryTimer(LedgerWriter):
    """The timer that probes a failed bookie goes on for its successor."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        return with_old_timers(super()._take_newcomers(change), "retry")


class KeepsTheResendTimer(LedgerWriter):
    """The timer that sends to a busy bookie again goes on when it failed, and for its successor."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        return with_old_timers(super().step(event), "resend")


class BuriesTheLimited(LedgerWriter):
    """A bookie that holds the writer to a rate is replaced, as if it had failed."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered):
            is_limited = event.status is Status.TOO_MANY_REQUESTS
            event = replace(event, status=Status.IO_ERROR) if is_limited else event
        return super().step(event)


class HasNoExcuse(LedgerWriter):
    """A bookie that named a time has to take each batch before its deadline all the same."""

    def _on_add_timeout(self, number: int) -> list[WriterEffect]:
        paced, self.delivery.pacing.slots = self.delivery.pacing.slots, {}
        effects = super()._on_add_timeout(number)
        self.delivery.pacing.slots = paced
        return effects


class ExcusesForEver(LedgerWriter):
    """A bookie that named a time once may be silent as long as it likes."""

    def _on_timer(self, timer: TimerId) -> list[WriterEffect]:
        return [] if timer[0] == "paced" else super()._on_timer(timer)


class SendsAllAtOnce(LedgerWriter):
    """When the time is over, the bookie gets everything that waits, most of it in vain."""

    def _on_timer(self, timer: TimerId) -> list[WriterEffect]:
        kind, number = timer
        return self._revive(number) if kind == "resend" else super()._on_timer(timer)


class GoesOnAfterItsEnd(LedgerWriter):
    """A writer that failed takes the newcomers of the change under way."""

    def _end_change(self, change: EnsembleChange | None) -> list[WriterEffect]:
        error, self.error = self.error, None
        effects = super()._end_change(change)
        self.error = error
        return effects


class ChangesAfterItsEnd(LedgerWriter):
    """A writer that failed proposes the newcomers that it had asked for."""

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        error, self.error = self.error, None
        effects = super()._on_newcomers(bookies)
        self.error = error
        return effects


class RestsWhenStuck(LedgerWriter):
    """After a close that failed nothing is done before the next close."""

    @property
    def _is_working(self) -> bool:
        return self.state in (WriterState.OPEN, WriterState.DRAINING)


class StaysOverdue(LedgerWriter):
    """A batch that missed its deadline before a change has no other one after it."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        overdue = [batch for batch in self.window.pending if batch.overdue]
        effects = super()._take_newcomers(change)
        for batch in overdue:
            batch.overdue = True
        return effects


class ReplacesWhoRevived(LedgerWriter):
    """A bookie that is trusted again stays due for replacement."""

    def _revive(self, slot: int) -> list[WriterEffect]:
        due = self.replacements.due
        effects = super()._revive(slot)
        self.replacements.due = due
        return effects


class GivesOneChance(LedgerWriter):
    """A stream that breaks for the second time gets no time, and its bookie stays."""

    def _revive(self, slot: int) -> list[WriterEffect]:
        returning, urgent = self.replacements.returning, self.replacements.urgent
        effects = super()._revive(slot)
        self.replacements.returning, self.replacements.urgent = returning, urgent
        return effects


class EndsAtTheLimit(LedgerWriter):
    """An append without an ack quorum fails at once when the limit of changes is spent."""

    def _bury(self, slots: int) -> list[WriterEffect]:
        effects = super()._bury(slots)
        pending = self.window.pending
        if pending and self.replacements.left <= 0:
            effects += self._fail_without_quorum(pending[0])
        return effects


class ForgetsTheFence(SimBookie):
    """A bookie remembers a fence only for ledgers that it has entries of."""

    def add(
        self,
        packets: list[tuple[int, bytes]],
        *,
        recovery: bool,
        deferred: bool,
        incarnation: int,
    ) -> Status:
        self.fenced = self.fenced and bool(self.entries)
        return super().add(packets, recovery=recovery, deferred=deferred, incarnation=incarnation)


class ReadsFromTheLac(LedgerRecovery):
    """Reading begins behind the LAC, wherever the last fragment begins."""

    def _start_reading(self) -> list[RecoveryEffect]:
        first = replace(self.metadata.last_fragment, first_entry_id=0)
        before, self.metadata = self.metadata, replace(self.metadata, fragments=(first,))
        effects = super()._start_reading()
        self.metadata = before
        return effects


class WaitsForAll(LedgerRecovery):
    """Nothing is decided before each bookie has answered."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        if isinstance(event, recovery_events.FenceAnswered) and not self._is_last(event):
            return []
        return super().step(event)

    def _is_last(self, event: recovery_events.FenceAnswered) -> bool:
        self.waiting &= ~(1 << event.slot)
        last, self.waiting = not self.waiting, self.waiting or 1 << event.slot
        return last


class RaisesTheLac(LedgerRecovery):
    """What recovery stores again carries the id before its own as the LAC."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        return [
            replace(effect, batch=raised(effect.batch))
            if isinstance(effect, recovery_events.SendAdd)
            else effect
            for effect in super().step(event)
        ]


def raised(batch: EntryBatch) -> EntryBatch:
    """The same entries, each with the id before its own as the LAC."""
    packed = []
    for entry, packet in zip(verify_batch(batch, DIGESTER), batch.packets(), strict=True):
        before, payload = entry.entry_id - 1, entry.payload
        length_before = parse_header(packet).length - len(payload)
        packed.append(pack_batch(LEDGER_ID, before + 1, before, length_before, [payload], DIGESTER))
    return merged(packed)


class DeniesTheUnreadable(SimBookie):
    """An entry that it stores and cannot read does not exist, it says."""

    unreadable_status = Status.NO_SUCH_ENTRY


WRITERS: list[tuple[str, type[LedgerWriter]]] = [
    ("4097_second_failure_during_a_change", DropsTheSecondFailure),
    ("4194_ack_of_the_bookie_that_goes", seeded.CountsReplacedBookies),
    ("4194_ack_of_the_bookie_that_goes", seeded.KeepsAcksAcrossTheChange),
    ("4651_acks_of_bookies_already_given_up", seeded.CountsReplacedBookies),
    ("4660_acks_before_the_failure", seeded.BeginsTooLate),
    ("4557_confirmed_while_newcomers_are_chosen", FreezesTooEarly),
    ("1390_failure_after_the_ack_quorum", ForgivesLateFailures),
    ("4278_back_before_newcomers_are_found", ReplacesWhoIsBack),
    ("4261_replacement_equal_to_the_old", IgnoresEqualEnsembles),
    ("4459_a_slot_already_replaced", HearsWhoLeft),
    ("unknown_outcome_found_done", seeded.TakesSilenceForFailure),
    ("unknown_outcome_found_not_done", seeded.ProposesAnother),
    ("unknown_outcome_arriving_late", seeded.ProposesAnother),
    ("conflict_merged", OverwritesRepair),
    ("conflict_custom_metadata", OverwritesRepair),
    ("foreign_fragment", AdoptsForeigners),
    ("old_epoch_fenced", DeafToFormerEpochs),
    ("old_epoch_fenced_by_mistake", seeded.BelievesEveryFence),
    ("old_epoch_unauthorized", DeafToFormerEpochs),
    ("left_lane_is_silent", seeded.HearsFormerEpochs),
    ("left_lane_is_silent", HearsWhoLeft),
    ("newcomer_gets_the_lac", HidesTheLac),
    ("hysteresis_return_in_time", IsImpatient),
    ("no_spare_then_a_spare", AsksOnce),
    ("frozen_lac_and_fragment_start", ReleasesMeanwhile),
    ("appends_while_the_store_is_away", ReleasesMeanwhile),
    ("deferred_lac_follows_the_force", seeded.SyncsInMind),
    ("striped_batch_needs_each_class", seeded.OneClassIsEnough),
    ("D1_recovery_reads_fence", seeded.IgnoresFences),
    ("D3_writer_of_a_wiped_bookie", seeded.CountsVoidAcks),
    ("D5_nothing_counts_before_the_metadata", seeded.TakesSilenceForFailure),
    ("D16_lost_answer_of_a_close", ClosesOnce),
    ("D26_changes_are_limited", HasNoBound),
    ("D26_an_append_waits_for_the_limit", HasNoBound),
    ("D26_an_append_waits_for_the_limit", EndsAtTheLimit),
    ("D26_a_deadline_comes_before_the_limit", HasNoBound),
    ("old_epoch_fenced_by_mistake", KeepsTheRumour),
    ("fenced_by_who_is_replaced", BlamesTheSuccessor),
    ("replaced_and_busy_before", KeepsTheRetryTimer),
    ("replaced_and_busy_before", KeepsTheResendTimer),
    ("a_rate_is_no_failure", BuriesTheLimited),
    ("a_rate_is_no_failure", HasNoExcuse),
    ("a_rate_is_no_failure", SendsAllAtOnce),
    ("a_rate_and_then_silence", ExcusesForEver),
    ("failed_while_changing", GoesOnAfterItsEnd),
    ("failed_while_choosing", ChangesAfterItsEnd),
    ("close_failed_and_appends_go_on", RestsWhenStuck),
    ("close_failed_and_fenced", RestsWhenStuck),
    ("overdue_before_the_change", StaysOverdue),
    ("4278_back_before_newcomers_are_found", ReplacesWhoRevived),
    ("probed_back_without_a_spare", ReplacesWhoRevived),
    ("silent_elsewhere_and_back", ReplacesWhoRevived),
    ("hysteresis_each_time", GivesOneChance),
]
RECOVERIES: list[tuple[str, type[LedgerRecovery]]] = [
    ("D1_recovery_reads_fence", seeded.ReadsWithoutFence),
    ("D2_empty_last_fragment", ReadsFromTheLac),
    ("D6_coverage_of_striped_ledgers", seeded.CoverageOfOne),
    ("D7_newcomers_are_named_by_the_close", seeded.PublishesBeforeItCloses),
    ("D7_newcomers_are_named_by_the_close", seeded.KeepsAcksAcrossItsChange),
    ("D8_reads_go_to_the_frozen_ensemble", seeded.ReadsItsNewEnsemble),
    ("D8_reads_go_to_the_frozen_ensemble", seeded.PublishesNoTail),
    ("D10_recovery_adds_carry_the_old_lac", RaisesTheLac),
    ("D21_one_silent_bookie", WaitsForAll),
    ("D21_striped_write_set_without_entries", seeded.WaitsForEveryWriteSet),
    ("D28_failed_append_that_was_recovered", seeded.OneDenialIsEnough),
    ("silence_is_no_denial", seeded.SilenceIsDenial),
    ("recovery_change_begins_at_the_next_entry", seeded.StartsOneTooLow),
    ("recovery_change_begins_at_the_next_entry", seeded.StartsAtTheLac),
    ("newcomer_of_a_recovery_is_wiped", seeded.TrustsItsNewcomers),
]
CASES = [
    *[(name, Machines(writer=writer)) for name, writer in WRITERS],
    *[(name, Machines(recovery=recovery)) for name, recovery in RECOVERIES],
    ("D3_wiped_bookie_denies_nothing", Machines(bookie=seeded.KeepsOutOfLimbo)),
    ("D4_unreadable_entry_is_no_denial", Machines(bookie=DeniesTheUnreadable)),
    ("D9_fence_of_an_unknown_ledger", Machines(bookie=ForgetsTheFence)),
    ("D3_writer_of_a_wiped_bookie", Machines(bookie=seeded.TrustsAFreshStamp)),
]


@pytest.mark.parametrize(("name", "machines"), CASES)
def test_a_machine_that_walks_into_the_trap_fails(name: str, machines: Machines) -> None:
    """The honest machines pass the same file (test_scenarios)."""
    with pytest.raises(ScenarioFailedError):
        run_scenario(FOLDER / f"{name}.txt", machines)
