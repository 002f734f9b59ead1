"""The checkers bite: each rule of the protocol, broken on purpose, is caught within a few seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bookie.entry.batch import EntryBatch
from bookie.errors import LedgerFencedError
from bookie.ids import Status
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NewcomersChosen,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum, mask_of
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.recover.recovery_events import RecoveryEffect, RecoveryEvent
from bookie.ledger.recover.recovery_tail import RecoveryTail
from bookie.ledger.write import writer_events
from bookie.ledger.write.ensemble_change import ChangeOutcome, EnsembleChange
from bookie.ledger.write.ownership import MetadataAnswer
from bookie.ledger.write.pending import PendingBatch
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import WriterEffect, WriterEvent
from tests.property.ledger.protocol_faults import Faults
from tests.property.ledger.protocol_run import Setting, run
from tests.property.ledger.protocol_world import SimBookie, ViolationError

pytestmark = pytest.mark.model

SEEDS_MAX = 20_000

METADATA_ANSWERS = (MetadataConflict, MetadataFailed, MetadataWritten)


def without_fence(effects: list[RecoveryEffect]) -> list[RecoveryEffect]:
    return [
        replace(effect, fence=False)
        if isinstance(effect, recovery_events.SendRecoveryRead)
        else effect
        for effect in effects
    ]


class ReadsWithoutFence(LedgerRecovery):
    """Recovery reads do not fence, so a denied entry may still be acknowledged."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        return without_fence(super().step(event))


class OneDenialIsEnough(LedgerRecovery):
    """The ledger ends where a single bookie denies an entry."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]

        class Hasty(Quorum):
            negatives_needed = 1

        quorum = self.quorum
        self.quorum = Hasty(quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size)


class SilenceIsDenial(LedgerRecovery):
    """A bookie that does not answer counts as one that denies."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        if (
            isinstance(event, recovery_events.RecoveryReadAnswered)
            and event.status is Status.IO_ERROR
        ):
            event = replace(event, status=Status.NO_SUCH_ENTRY)
        return super().step(event)


class CoverageOfOne(LedgerRecovery):
    """One fenced bookie is taken for coverage, and reads do not fence either."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]

        class Loose(Quorum):
            def covers(self, answered: int) -> bool:
                return answered != 0

        quorum = self.quorum
        self.quorum = Loose(quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size)

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        return without_fence(super().step(event))


class DoesNotStoreAgain(LedgerRecovery):
    """Entries that were found are not stored again on their write set."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        effects = []
        for effect in super().step(event):
            if isinstance(effect, recovery_events.SendAdd):
                answer = recovery_events.RecoveryAddAnswered(effect.round, effect.slot, Status.OK)
                effects += self.step(answer)
            else:
                effects.append(effect)
        return effects


class LooksNoFurther(LedgerRecovery):
    """Recovery closes without looking beyond the LAC that it heard while fencing."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        if isinstance(event, recovery_events.RecoveryReadAnswered):
            event = replace(event, status=Status.NO_SUCH_ENTRY, batch=None)
        return super().step(event)


class PublishesBeforeItCloses(LedgerRecovery):
    """The store names newcomers as soon as they are chosen: the next recovery reads them."""

    written: LedgerMetadata | None = None

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        if self.written is not None and isinstance(event, METADATA_ANSWERS):
            if isinstance(event, MetadataWritten):
                self.metadata, self.version = self.written, event.version
                self.tail = RecoveryTail.of(self.written)
            self.written = None
            return []
        effects = super().step(event)
        if isinstance(event, NewcomersChosen) and event.bookies and self.written is None:
            self.written = self.tail.published(self.metadata)
            effects.append(WriteMetadata(self.written, self.version))
        return effects


class ReadsItsNewEnsemble(LedgerRecovery):
    """Reads go to the bookies that entries are stored on now."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        return [
            replace(effect, bookie_id=self.tail.bookies[effect.slot])
            if isinstance(effect, recovery_events.SendRecoveryRead)
            else effect
            for effect in super().step(event)
        ]


class KeepsAcksAcrossItsChange(LedgerRecovery):
    """Copies on former bookies count for the fragment that names others in their slots."""

    def _offer_slots(self, batch: EntryBatch) -> list[RecoveryEffect]:
        effects = super()._offer_slots(batch)
        for number, effect in enumerate(effects):
            if isinstance(effect, ChooseNewcomers):
                self._offered = effect.slots | self._acked
                effects[number] = replace(effect, slots=self._offered)
        return effects

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[RecoveryEffect]:
        before = self._acked
        effects = super()._on_newcomers(bookies)
        self._acked |= before
        return effects


class ShiftedTail(RecoveryTail):
    """The fragment does not begin at the first entry that is stored on its bookies."""

    __slots__ = ()
    by = 0

    def changed(self, first_entry_id: int, newcomers: Mapping[int, str]) -> RecoveryTail:
        floor = self.fragments[-1].first_entry_id
        return super().changed(max(first_entry_id + self.by, floor), newcomers)


class TailOneTooLow(ShiftedTail):
    __slots__ = ()
    by = -1


class TailOneTooHigh(ShiftedTail):
    __slots__ = ()
    by = 1


class TailAtTheLac(RecoveryTail):
    """The fragment begins behind the LAC, though entries beyond it were stored on others."""

    __slots__ = ()

    def changed(self, first_entry_id: int, newcomers: Mapping[int, str]) -> RecoveryTail:
        changed = super().changed(first_entry_id, newcomers)
        first = replace(changed.fragments[-1], first_entry_id=self.frozen.first_entry_id)
        return replace(changed, fragments=(first,))


class UnpublishedTail(RecoveryTail):
    """The closed ledger names the bookies that the recovery began with."""

    __slots__ = ()

    def published(self, metadata: LedgerMetadata) -> LedgerMetadata:
        return metadata


class OtherTail(LedgerRecovery):
    """A recovery that keeps its tail in another way."""

    kind: type[RecoveryTail] = RecoveryTail

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.tail = self.kind.of(self.metadata)


class StartsOneTooLow(OtherTail):
    """Its fragment begins one entry too low: on the wrong bookies, or below an earlier fragment."""

    kind = TailOneTooLow


class StartsOneTooHigh(OtherTail):
    """Its fragment begins one entry too high."""

    kind = TailOneTooHigh


class StartsAtTheLac(OtherTail):
    """Its fragment begins where the recovery began to read."""

    kind = TailAtTheLac


class PublishesNoTail(OtherTail):
    """Entries stored on newcomers are not where the closed ledger says."""

    kind = UnpublishedTail


class TrustsItsNewcomers(LedgerRecovery):
    """The close does not depend on whether newcomers still have what they acknowledged."""

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        return [
            WriteMetadata(effect.metadata, effect.version)
            if isinstance(effect, recovery_events.PublishNewcomers)
            else effect
            for effect in super().step(event)
        ]


class WaitsForEveryWriteSet(LedgerRecovery):
    """Striped, entries found are stored again only when each write set has given some."""

    def _evaluate(self) -> list[RecoveryEffect]:
        heard = mask_of(self._found)
        complete = all(window & heard for window in self.quorum.windows)
        if self._found and self.waiting and not complete:
            return []
        return super()._evaluate()


class AcksOneShort(LedgerWriter):
    """Qa - 1 acknowledgements are enough."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        quorum = self.quorum
        self.delivery.quorum = Quorum(
            quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size - 1
        )


class IgnoresFences(LedgerWriter):
    """A bookie that says FENCED counts as one that stored the entries."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.status is Status.FENCED:
            event = replace(event, status=Status.OK)
        return super().step(event)


class TellsLacTooEarly(LedgerWriter):
    """Packets carry the id before their own as the LAC."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        return [
            replace(effect, last_add_confirmed=effect.first_entry_id - 1)
            if isinstance(effect, writer_events.SendBatch)
            else effect
            for effect in super().step(event)
        ]


class ConfirmsOutOfOrder(LedgerWriter):
    """A batch is confirmed when it has its acknowledgements, whatever came before it."""

    def _settle(self, batch: PendingBatch) -> list[WriterEffect]:
        window = self.window
        if batch in window.pending and self.quorum.is_acknowledged(batch.acked, batch.classes):
            window.pending.remove(batch)
            batch.confirmed = True
            window.last_add_confirmed = max(window.last_add_confirmed, batch.last_entry_id)
            window.length_confirmed = max(window.length_confirmed, batch.length_after)
            return [writer_events.Confirmed(batch.number)]
        return []


class OneClassIsEnough(LedgerWriter):
    """A striped batch is confirmed when one of its classes has an ack quorum."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        effects = super().step(event)
        if isinstance(event, writer_events.Append):
            batch = self.window.pending[-1]
            batch.classes = list(batch.classes)[:1]
        return effects


class SyncsInMind(LedgerWriter):
    """A deferred-sync writer moves its LAC when batches are written, without a force."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        effects = super().step(event)
        if self.deferred is not None and self.deferred.unsynced:
            last = self.deferred.unsynced[-1]
            self.window.last_add_confirmed = last.last_entry_id
            self.window.length_confirmed = last.length_after
            self.deferred.unsynced.clear()
        return effects


class KeepsAcksOfBrokenStreams(LedgerWriter):
    """A deferred-sync writer trusts acknowledgements from before a bookie's restart."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.SlotDisconnected):
            self.slots.disconnect(event.slot)
            return []
        return super().step(event)


class CountsVoidAcks(LedgerWriter):
    """Acknowledgements of a bookie that lost its memory go on counting."""

    def _lose(self, slots: int) -> list[WriterEffect]:
        retained = self.window.retained
        acked = {number: batch.acked for number, batch in retained.items()}
        effects = super()._lose(slots)
        for number, before in acked.items():
            if number in retained:
                retained[number].acked = before
        return effects


class BelievesEveryFence(LedgerWriter):
    """One bookie that says FENCED ends the writer, whatever the metadata says."""

    def _check_fence(self, bookie: int) -> list[WriterEffect]:
        return self._fail(LedgerFencedError(f"slot {bookie} says so"))


class CountsReplacedBookies(LedgerWriter):
    """While a change is under way the bookie that is to go acknowledges like the others."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        self.delivery.countable = -1
        return super().step(event)


class KeepsAcksAcrossTheChange(LedgerWriter):
    """Acknowledgements of a replaced bookie count for its successor."""

    def _take_newcomers(self, change: EnsembleChange) -> list[WriterEffect]:
        acked = {number: batch.acked for number, batch in self.window.retained.items()}
        effects = super()._take_newcomers(change)
        for number, before in acked.items():
            self.window.retained[number].acked = before
        return effects


class HearsFormerEpochs(LedgerWriter):
    """An acknowledgement of a bookie that was replaced counts for its successor."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.status is Status.OK:
            event = replace(event, epoch=self.epochs[event.slot])
        return super().step(event)


class BeginsAtTheLac(LedgerWriter):
    """The new fragment begins with the last confirmed entry, which newcomers do not get."""

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        window = self.window
        window.last_add_confirmed -= window.last_add_confirmed > 0
        effects = super()._on_newcomers(bookies)
        window.last_add_confirmed += window.last_add_confirmed > 0
        return effects


class BeginsTooLate(LedgerWriter):
    """The new fragment begins after all that is pending, as if the old bookies would get it."""

    def _on_newcomers(self, bookies: Mapping[int, str]) -> list[WriterEffect]:
        window, before = self.window, self.window.last_add_confirmed
        window.last_add_confirmed = window.next_entry_id - 1
        effects = super()._on_newcomers(bookies)
        window.last_add_confirmed = before
        return effects


class TakesSilenceForFailure(LedgerWriter):
    """A compare-and-set without an answer did not happen."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, MetadataFailed) and self.ownership.change is not None:
            self.ownership._operation = self.ownership.change = None
            return self._end_change(None) + self._next_operation()
        is_reread = isinstance(event, TimerFired) and event.timer[0] == "reread"
        return [] if is_reread and not self.ownership.is_busy else super().step(event)


class ProposesAnother(LedgerWriter):
    """Without an answer another change is proposed, although the first may still arrive."""

    def _on_metadata(self, event: MetadataAnswer) -> list[WriterEffect]:
        change = self.ownership.change
        if (
            isinstance(event, MetadataRead)
            and change is not None
            and change.outcome(event.metadata, event.version) is ChangeOutcome.UNDECIDED
        ):
            self.ownership._operation = self.ownership.change = None
            return self._end_change(None)
        return super()._on_metadata(event)


class TakesBusyForStored(LedgerWriter):
    """A bookie that has too many requests counts as if it had stored the batch later."""

    refusal = Status.TOO_MANY_REQUESTS

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.AddAnswered) and event.status is self.refusal:
            event = replace(event, status=Status.OK)
        return super().step(event)


class TakesLeavingForStored(TakesBusyForStored):
    """A bookie that stops counts as if it had completed what it was sent."""

    refusal = Status.SHUTTING_DOWN


class TakesSilentForStored(LedgerWriter):
    """A bookie that others waited for in vain is not waited for, and counts."""

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        if isinstance(event, writer_events.SlotSilent):
            for batch in self.window.retained.values():
                batch.acked |= 1 << event.slot
        return super().step(event)


class FencesAfterALoss(SimBookie):
    """A doubtful bookie fences open ledgers, as if somebody had taken them."""

    fences = True
    renews = False
    compares = False


class TrustsAFreshStamp(SimBookie):
    """An empty disk under a known id is a new bookie: nothing is suspected, nothing renewed."""

    renews = suspects = False


class ComparesNoIncarnation(SimBookie):
    """Writers that mean an earlier incarnation are let in."""

    compares = False


class KeepsOutOfLimbo(SimBookie):
    """It has another incarnation, and denies what it lost."""

    suspects = False


LOSSES = Setting(faults=Faults(lose_disk=0.02))
DUEL = Setting(duel=True, steps=30, faults=Faults(slow=0.35))
REPLACING = Setting(
    spares=2, faults=Faults(kill_bookie=0.004, fail_metadata=0.25, break_stream=0.03)
)
STRIPED = Setting((4, 3, 2))
CHANGES = Setting((3, 3, 3), spares=2, crashing=True, faults=Faults(lose_call=0.15))
CASES = [
    replace(DUEL, recovery=ReadsWithoutFence),
    Setting((3, 3, 2), recovery=OneDenialIsEnough),
    Setting(recovery=SilenceIsDenial),
    replace(DUEL, recovery=CoverageOfOne),
    Setting(recovery=DoesNotStoreAgain),
    Setting(recovery=LooksNoFurther),
    replace(CHANGES, recovery=PublishesBeforeItCloses),
    replace(CHANGES, recovery=ReadsItsNewEnsemble),
    replace(CHANGES, recovery=KeepsAcksAcrossItsChange),
    replace(CHANGES, recovery=StartsOneTooLow),
    replace(CHANGES, recovery=StartsOneTooHigh),
    replace(CHANGES, recovery=StartsAtTheLac),
    replace(CHANGES, recovery=PublishesNoTail),
    replace(CHANGES, recovery=TrustsItsNewcomers, faults=Faults(lose_call=0.15, lose_disk=0.02)),
    replace(STRIPED, recovery=WaitsForEveryWriteSet, loses_bookie=True, silently=True),
    Setting(writer=AcksOneShort),
    Setting(writer=IgnoresFences),
    Setting(writer=TakesBusyForStored),
    Setting(writer=TakesLeavingForStored),
    Setting(writer=TakesSilentForStored),
    Setting(writer=TellsLacTooEarly),
    Setting(writer=ConfirmsOutOfOrder),
    replace(STRIPED, writer=OneClassIsEnough),
    Setting(writer=SyncsInMind, deferred_sync=True),
    Setting(writer=KeepsAcksOfBrokenStreams, deferred_sync=True),
    replace(LOSSES, writer=CountsVoidAcks),
    replace(LOSSES, writer=BelievesEveryFence, bookie=FencesAfterALoss),
    replace(LOSSES, bookie=TrustsAFreshStamp),
    replace(LOSSES, bookie=ComparesNoIncarnation),
    replace(LOSSES, bookie=KeepsOutOfLimbo),
    replace(REPLACING, writer=CountsReplacedBookies),
    replace(REPLACING, writer=KeepsAcksAcrossTheChange),
    replace(REPLACING, writer=HearsFormerEpochs),
    replace(REPLACING, writer=BeginsAtTheLac),
    replace(REPLACING, writer=BeginsTooLate),
    replace(REPLACING, writer=TakesSilenceForFailure),
    replace(REPLACING, writer=ProposesAnother),
]


def name_of(setting: Setting) -> str:
    machines = [setting.writer, setting.recovery, setting.bookie]
    honest = (LedgerWriter, LedgerRecovery, SimBookie)
    return next(m.__name__ for m in machines if m not in honest)


@pytest.mark.parametrize("setting", CASES, ids=name_of)
def test_a_broken_rule_is_caught(setting: Setting) -> None:
    """Some seed shows the violation; the honest machines pass the same seed."""
    for seed in range(SEEDS_MAX):
        try:
            run(seed, setting)
        except ViolationError:
            honest = replace(
                setting, writer=LedgerWriter, recovery=LedgerRecovery, bookie=SimBookie
            )
            run(seed, honest)
            return
    raise AssertionError(f"{SEEDS_MAX} seeds did not show that {name_of(setting)} is wrong")
