"""Replacement of bookies by a writer, one rule a test; schedules are in tests/property/protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import (
    BadRequestError,
    ForeignEnsembleError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bookie.ids import Status
from bookie.ledger.exchange import (
    CancelTimer,
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
from bookie.ledger.metadata import Fragment, LedgerState
from bookie.ledger.place import AckDomains
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import (
    AddAnswered,
    Append,
    Close,
    CloseFailed,
    Confirmed,
    Force,
    ForceAnswered,
    ForceDone,
    LacAnswered,
    Release,
    ReplaceBookies,
    Resend,
    SendBatch,
    SendLac,
    SlotConnected,
    SlotDisconnected,
    SlotLost,
    SlotSilent,
    SpanDomains,
    WriterEffect,
    WriterState,
)
from tests.unit.ledger.ledgers import ledger
from tests.unit.ledger.write.writers import ALL, connected, failed_with, kinds


def writer_of(
    sizes: tuple[int, int, int] = (3, 3, 2), limits: WriterLimits | None = None
) -> LedgerWriter:
    """A writer with all streams open, whose bookies may be replaced."""
    return connected(sizes, limits or WriterLimits())


def answer(
    writer: LedgerWriter, batch: int, slot: int, status: Status = Status.OK, epoch: int = -1
) -> list[WriterEffect]:
    epoch = writer.epochs[slot] if epoch < 0 else epoch
    return writer.step(AddAnswered(batch, slot, epoch, status))


def confirmed(writer: LedgerWriter, count: int = 1) -> None:
    """So many batches of one entry, acknowledged by all."""
    for _ in range(count):
        (send, *_) = writer.step(Append(1, 10))
        assert isinstance(send, SendBatch)
        for slot in range(writer.quorum.ensemble_size):
            answer(writer, send.batch, slot)


def proposed(writer: LedgerWriter, slot: int = 2, spare: str = "b3") -> WriteMetadata:
    """Slot `slot` refuses an add, and a newcomer is found; the compare-and-set."""
    batch = writer.window.pending[0].number
    effects = answer(writer, batch, slot, Status.READ_ONLY)
    assert ChooseNewcomers(writer.metadata.last_fragment.bookies, 1 << slot) in effects
    effects = writer.step(NewcomersChosen({slot: spare}))
    return next(effect for effect in effects if isinstance(effect, WriteMetadata))


def test_a_bookie_that_refuses_is_replaced_from_the_next_entry_on() -> None:
    """The fragment starts after the LAC; the newcomer gets what is not confirmed, and the LAC."""
    writer = writer_of()
    confirmed(writer, 2)
    writer.step(Append(1, 10))
    write = proposed(writer)
    assert write.metadata.fragments == (
        Fragment(0, ("b0", "b1", "b2")),
        Fragment(2, ("b0", "b1", "b3")),
    )
    effects = writer.step(MetadataWritten(1))
    assert ReplaceBookies({2: "b3"}) in effects
    assert (writer.epochs, writer.ownership.version) == ([0, 0, 1], 1)
    assert not writer.is_under_replicated
    effects = writer.step(SlotConnected(2, 1))
    assert kinds(effects) == [Resend, SendLac]
    assert Resend(2, 2) in effects
    assert SendLac(1, 0b100) in effects


def test_a_fragment_without_confirmed_entries_is_replaced_itself() -> None:
    """Two fragments never start at one entry."""
    writer = writer_of()
    writer.step(Append(1, 10))
    write = proposed(writer)
    assert write.metadata.fragments == (Fragment(0, ("b0", "b1", "b3")),)


def test_meanwhile_only_those_who_stay_acknowledge() -> None:
    """Rule 1: with Qa of them appends go on while the store is away; with fewer they wait."""
    writer = writer_of((3, 3, 2))
    writer.step(Append(1, 10))
    proposed(writer)
    writer.slots.restore(2)
    assert kinds(answer(writer, 0, 0)) == []
    assert kinds(answer(writer, 0, 2)) == [], "it is to be replaced"
    writer.step(MetadataFailed(MetadataUnavailableError("away")))
    assert kinds(answer(writer, 0, 1)) == [Confirmed]
    assert writer.last_add_confirmed == 0


def test_acknowledgements_count_again_if_the_change_was_overtaken() -> None:
    """Repair changed an older fragment: the change cannot happen, and is proposed anew."""
    writer = writer_of()
    confirmed(writer, 2)
    writer.step(Append(1, 10))
    write = proposed(writer)
    writer.slots.restore(2)
    answer(writer, 2, 0)
    assert kinds(answer(writer, 2, 2)) == []
    writer.step(MetadataConflict())
    assert writer.step(TimerFired(("reread", 0))) == [ReadMetadata()]
    repaired = replace(ledger(), custom_metadata={"by": b"repair"})
    effects = writer.step(MetadataRead(repaired, 5))
    assert Confirmed(2) in effects
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b100) in effects
    effects = writer.step(NewcomersChosen({2: "b4"}))
    again = next(effect for effect in effects if isinstance(effect, WriteMetadata))
    assert again.version == 5
    assert again.metadata.custom_metadata == {"by": b"repair"}
    assert again.metadata.last_fragment == Fragment(3, ("b0", "b1", "b4"))
    assert write.metadata.last_fragment == Fragment(2, ("b0", "b1", "b3"))


def test_acknowledgements_of_the_replaced_bookie_are_dropped() -> None:
    """Rule 2: its copy is outside the metadata, so its answer proves nothing."""
    writer = writer_of((3, 3, 2))
    writer.step(Append(1, 10))
    writer.step(Append(1, 10))
    answer(writer, 1, 2)
    proposed(writer)
    writer.step(MetadataWritten(1))
    answer(writer, 0, 0)
    answer(writer, 0, 1)
    assert kinds(answer(writer, 1, 0)) == []
    assert answer(writer, 1, 2, epoch=0) == [], "an answer of its time"
    assert kinds(answer(writer, 1, 2)) == [Confirmed]


def test_what_is_above_the_frozen_lac_is_kept_for_the_newcomer() -> None:
    """Rule 2: confirmed meanwhile, it is released only when the newcomer has it."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    answer(writer, 0, 0)
    assert kinds(answer(writer, 0, 1)) == [Confirmed]
    writer.step(MetadataWritten(1))
    assert Resend(0, 2) in writer.step(SlotConnected(2, 1))
    assert kinds(answer(writer, 0, 2)) == [Release]


def test_what_is_below_stops_waiting_for_the_replaced_bookie() -> None:
    """Rule 2: a confirmed batch that lacked the third copy is released with the change."""
    writer = writer_of()
    writer.step(Append(1, 10))
    answer(writer, 0, 0)
    assert kinds(answer(writer, 0, 1)) == [Confirmed]
    writer.step(SlotDisconnected(2, 0))
    effects = writer.step(TimerFired(("replace", 2)))
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b100) in effects
    writer.step(NewcomersChosen({2: "b3"}))
    assert Release(0) in writer.step(MetadataWritten(1))
    assert kinds(writer.step(SlotConnected(2, 1))) == [SendLac]


def test_newcomers_get_a_whole_deadline() -> None:
    """Rule 2: what they are sent is as new to them as an append; the rest keeps its deadline."""
    writer = writer_of()
    writer.step(Append(1, 10))
    answer(writer, 0, 0)
    assert kinds(answer(writer, 0, 1)) == [Confirmed]
    writer.step(Append(1, 10))
    writer.step(Append(1, 10))
    proposed(writer)
    effects = writer.step(MetadataWritten(1))
    deadlines = [e for e in effects if isinstance(e, StartTimer) and e.timer[0] == "add"]
    assert deadlines == [StartTimer(("add", 1), 5.0), StartTimer(("add", 2), 5.0)]


def test_a_second_failure_joins_the_next_change() -> None:
    """Rule 3: it is kept, and completes nothing by itself."""
    writer = writer_of((3, 3, 2))
    writer.step(Append(1, 10))
    proposed(writer, 2)
    effects = answer(writer, 0, 1, Status.READ_ONLY)
    assert kinds(effects) == [], "one operation at a time"
    answer(writer, 0, 0)
    effects = writer.step(MetadataWritten(1))
    assert ChooseNewcomers(("b0", "b1", "b3"), 0b010) in effects
    effects = writer.step(NewcomersChosen({1: "b4"}))
    write = next(effect for effect in effects if isinstance(effect, WriteMetadata))
    assert write.metadata.fragments == (Fragment(0, ("b0", "b4", "b3")),)
    writer.step(MetadataWritten(2))
    assert Resend(0, 1) in writer.step(SlotConnected(1, 1))
    assert Confirmed(0) in answer(writer, 0, 1)


def test_a_failure_after_the_ack_quorum_still_replaces_the_bookie() -> None:
    """apache #1390: the entry has its acknowledgements, the bookie has failed all the same."""
    writer = writer_of()
    writer.step(Append(1, 10))
    answer(writer, 0, 0)
    assert kinds(answer(writer, 0, 1)) == [Confirmed]
    assert ChooseNewcomers in kinds(answer(writer, 0, 2, Status.IO_ERROR))


def test_without_an_answer_the_store_is_read_and_the_change_found() -> None:
    """Rule 4: a lost reply of a change that was done is a success."""
    writer = writer_of()
    writer.step(Append(1, 10))
    write = proposed(writer)
    assert StartTimer(("reread", 0), 0.05) in writer.step(
        MetadataFailed(MetadataUnavailableError("no answer"))
    )
    assert writer.step(TimerFired(("reread", 0))) == [ReadMetadata()]
    effects = writer.step(MetadataRead(write.metadata, 1))
    assert ReplaceBookies({2: "b3"}) in effects


def test_without_an_answer_the_same_change_is_proposed_again() -> None:
    """Rule 4: it may still arrive, so another one would be a second truth."""
    writer = writer_of()
    confirmed(writer)
    writer.step(Append(1, 10))
    write = proposed(writer)
    answer(writer, 1, 0)
    answer(writer, 1, 1)
    assert writer.last_add_confirmed == 1
    writer.step(MetadataFailed(MetadataUnavailableError("no answer")))
    writer.step(TimerFired(("reread", 0)))
    assert writer.step(MetadataRead(ledger(), 0)) == [write]
    writer.step(MetadataConflict())  # the first one arrived in between
    writer.step(TimerFired(("reread", 0)))
    assert ReplaceBookies({2: "b3"}) in writer.step(MetadataRead(write.metadata, 1))


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_ledger_that_was_taken_ends_the_writer(state: LedgerState) -> None:
    """Rule 4: the outcome of what is pending is unknown."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataConflict())
    writer.step(TimerFired(("reread", 0)))
    effects = writer.step(MetadataRead(ledger(state=state), 3))
    assert isinstance(failed_with(effects), LedgerFencedError)
    assert writer.step(Close())  # nothing is under way any more


def test_a_foreign_fragment_is_an_error_of_its_own() -> None:
    """Rule 4: nobody but the writer chooses the bookies of an open ledger's new entries."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataConflict())
    writer.step(TimerFired(("reread", 0)))
    foreign = ledger(fragments=(Fragment(0, ("b0", "b1", "b9")),))
    error = failed_with(writer.step(MetadataRead(foreign, 3)))
    assert isinstance(error, ForeignEnsembleError)


def test_a_deleted_ledger_ends_the_writer() -> None:
    """The store says so instead of a conflict."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    effects = writer.step(MetadataFailed(NoSuchLedgerError("gone")))
    assert isinstance(failed_with(effects), NoSuchLedgerError)


def test_metadata_that_is_too_large_for_a_change_ends_the_writer() -> None:
    """The store was not asked, so to propose the same change again would change nothing."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    error = failed_with(writer.step(MetadataFailed(BadRequestError("524289 bytes are too many"))))
    assert isinstance(error, BadRequestError)


@pytest.mark.parametrize("status", [Status.FENCED, Status.UNAUTHORIZED])
def test_answers_about_the_ledger_are_heard_from_those_who_left(status: Status) -> None:
    """Rule 5: a replaced bookie may be the one that a recovery has fenced."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataWritten(1))
    effects = answer(writer, 0, 2, status, epoch=0)
    if status is Status.UNAUTHORIZED:
        assert isinstance(failed_with(effects), UnauthorizedError)
        return
    assert effects == [ReadMetadata()]
    effects = writer.step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 2))
    assert isinstance(failed_with(effects), LedgerFencedError)


def test_a_rumour_of_a_fence_harms_nobody_who_stayed() -> None:
    """Rule 5: the ledger is ours, so that only the bookie that left had lost its mind."""
    writer = writer_of()
    writer.step(Append(1, 10))
    write = proposed(writer)
    writer.step(MetadataWritten(1))
    assert writer.step(LacAnswered(2, 0, Status.FENCED)) == [ReadMetadata()]
    assert writer.step(MetadataRead(write.metadata, 1)) == []
    assert writer.slots.lost == 0


def test_other_answers_and_events_of_those_who_left_count_for_nothing() -> None:
    """Rule 5: a bookie that is in no ensemble may have collected the ledger as garbage."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataWritten(1))
    for status in (Status.OK, Status.NO_SUCH_LEDGER, Status.IO_ERROR, Status.WRONG_INCARNATION):
        assert answer(writer, 0, 2, status, epoch=0) == []
    for event in (SlotConnected(2, 0), SlotDisconnected(2, 0), SlotLost(2, 0), SlotSilent(2, 0)):
        assert writer.step(event) == []


def test_a_broken_stream_has_a_while_to_come_back() -> None:
    """Rule 6: nobody is replaced if it returns in time."""
    writer = writer_of()
    assert writer.step(SlotDisconnected(2, 0)) == [StartTimer(("replace", 2), 3.0)]
    assert writer.step(SlotDisconnected(2, 0)) == [], "another attempt to connect failed"
    writer.step(SlotConnected(2, 0))
    assert writer.step(TimerFired(("replace", 2))) == []
    writer.step(SlotDisconnected(2, 0))
    effects = writer.step(TimerFired(("replace", 2)))
    assert effects == [ChooseNewcomers(("b0", "b1", "b2"), 0b100)]


def test_a_bookie_that_shuts_down_has_a_while_to_come_back() -> None:
    """Rule 6: it says so before its stream breaks; a restart costs no change."""
    writer = writer_of()
    writer.step(Append(1, 10))
    effects = answer(writer, 0, 2, Status.SHUTTING_DOWN)
    assert effects == [StartTimer(("retry", 2), 1.0), StartTimer(("replace", 2), 3.0)]
    assert writer.step(SlotDisconnected(2, 0)) == []
    assert Resend(0, 2) in writer.step(SlotConnected(2, 0))
    assert writer.step(TimerFired(("replace", 2))) == []


def test_without_an_ack_quorum_there_is_only_a_moment() -> None:
    """Rule 6: two of three broke, and both are replaced in one change."""
    writer = writer_of()
    writer.step(SlotDisconnected(2, 0))
    effects = writer.step(SlotDisconnected(1, 0))
    assert effects == [StartTimer(("replace", 1), 0.1), StartTimer(("replace", 2), 0.1)]
    writer.step(TimerFired(("replace", 1)))
    writer.step(TimerFired(("replace", 2)))
    effects = writer.step(NewcomersChosen({1: "b3", 2: "b4"}))
    write = next(effect for effect in effects if isinstance(effect, WriteMetadata))
    assert write.metadata.last_fragment.bookies == ("b0", "b3", "b4")


def test_a_missed_deadline_replaces_the_bookie_and_saves_the_batch() -> None:
    """Rule 6: two of three are silent; the batch gets another deadline, and its newcomers."""
    writer = writer_of()
    writer.step(Append(1, 10))
    answer(writer, 0, 0)
    effects = writer.step(TimerFired(("add", 0)))
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b110) in effects
    assert StartTimer(("add", 0), 5.0) in effects
    writer.step(NewcomersChosen({1: "b3", 2: "b4"}))
    writer.step(MetadataWritten(1))
    assert Resend(0, 1) in writer.step(SlotConnected(1, 1))
    assert Confirmed(0) in answer(writer, 0, 1)


def test_without_a_spare_an_overdue_batch_fails() -> None:
    """There is nobody to wait for."""
    writer = writer_of()
    writer.step(Append(1, 10))
    writer.step(TimerFired(("add", 0)))
    assert isinstance(failed_with(writer.step(NewcomersChosen({}))), NotEnoughBookiesError)


def test_without_a_spare_the_writer_goes_on_and_asks_again() -> None:
    """Rule 6: degraded, until a spare appears."""
    writer = writer_of()
    writer.step(Append(1, 10))
    answer(writer, 0, 2, Status.READ_ONLY)
    assert writer.step(NewcomersChosen({})) == [StartTimer(("spare", 0), 1.0)]
    answer(writer, 0, 0)
    assert Confirmed(0) in answer(writer, 0, 1)
    assert ChooseNewcomers in kinds(writer.step(TimerFired(("spare", 0))))
    assert WriteMetadata in kinds(writer.step(NewcomersChosen({2: "b3"})))


def test_a_newcomer_that_never_comes_is_replaced_too() -> None:
    """It was registered, and dead."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    assert StartTimer(("replace", 2), 3.0) in writer.step(MetadataWritten(1))
    effects = writer.step(TimerFired(("replace", 2)))
    assert effects == [ChooseNewcomers(("b0", "b1", "b3"), 0b100)]


def test_a_bookie_that_lost_its_data_may_take_over_its_own_slot() -> None:
    """Rule 3: the metadata keeps its content and gets a new version, and the change ends."""
    writer = writer_of()
    writer.step(Append(1, 10))
    effects = writer.step(SlotLost(2, 0))
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b100) in effects
    effects = writer.step(NewcomersChosen({2: "b2"}))
    assert WriteMetadata(ledger(), 0) in effects
    assert ReplaceBookies({2: "b2"}) in writer.step(MetadataWritten(1))
    assert writer.slots.lost == 0
    assert Resend(0, 2) in writer.step(SlotConnected(2, 2))


def test_changes_are_limited() -> None:
    """Rule 6: so many a minute; after that bookies are skipped as without spares."""
    writer = writer_of(limits=WriterLimits(changes_per_minute_max=1))
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataWritten(1))
    assert ChooseNewcomers not in kinds(answer(writer, 0, 1, Status.READ_ONLY))
    assert ChooseNewcomers in kinds(writer.step(TimerFired(("allow", 1))))


def test_a_deadline_that_the_limit_of_changes_missed_says_so() -> None:
    """Rule 6: spares may be there; the error names the setting that kept them away."""
    writer = writer_of(limits=WriterLimits(changes_per_minute_max=1))
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataWritten(1))
    answer(writer, 0, 1, Status.READ_ONLY)
    answer(writer, 0, 0)
    error = failed_with(writer.step(TimerFired(("add", 0))))
    assert isinstance(error, NotEnoughBookiesError)
    spent = "the limit of 1 ensemble changes a minute (client.changes_per_minute_max) was spent"
    assert spent in str(error)


def test_other_missed_deadlines_blame_no_limit() -> None:
    """There is no spare, or nobody is ever replaced."""
    without_spares, without_changes = writer_of(), connected()
    for writer in (without_spares, without_changes):
        writer.step(Append(1, 10))
        answer(writer, 0, 0)
    without_spares.step(TimerFired(("add", 0)))
    for effects in (
        without_spares.step(NewcomersChosen({})),
        without_changes.step(TimerFired(("add", 0))),
    ):
        assert "limit" not in str(failed_with(effects))


def test_a_silent_bookie_is_replaced_in_all_ledgers() -> None:
    """Rule 6: another ledger waited in vain."""
    writer = writer_of()
    assert ChooseNewcomers in kinds(writer.step(SlotSilent(1, 0)))


def test_close_waits_for_the_change() -> None:
    """Rule 3: and is told if the store is away."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    assert writer.step(Close()) == []
    effects = writer.step(MetadataFailed(MetadataUnavailableError("away")))
    assert CloseFailed in kinds(effects)
    assert writer.state is WriterState.STUCK
    writer.step(Close())
    answer(writer, 0, 0)
    answer(writer, 0, 1)
    writer.step(TimerFired(("reread", 0)))
    writer.step(MetadataRead(ledger(), 0))
    writer.step(MetadataWritten(1))
    writer.step(SlotConnected(2, 1))
    effects = answer(writer, 0, 2)
    write = next(effect for effect in effects if isinstance(effect, WriteMetadata))
    assert (write.metadata.state, write.metadata.last_entry_id) == (LedgerState.CLOSED, 0)
    assert write.metadata.last_fragment.bookies == ("b0", "b1", "b3")


def test_a_store_that_is_away_stops_nobody_for_ever() -> None:
    """The window is full of what newcomers should get: the oldest is given up, as for a skip."""
    limits = WriterLimits(in_flight_bytes_max=15)
    writer = writer_of(limits=limits)
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataFailed(MetadataUnavailableError("away")))
    for number in (0, 1):
        if number:
            writer.step(Append(1, 10))
        answer(writer, number, 0)
        answer(writer, number, 1)
    assert writer.may_append(full=True)
    assert writer.last_add_confirmed == 1


def test_deferred_sync_replaces_nobody() -> None:
    """Rule 7: the rules prove nothing about entries acknowledged before their sync."""
    writer = connected((3, 3, 2), WriterLimits(), deferred_sync=True)
    writer.step(Append(1, 10))
    assert ChooseNewcomers not in kinds(answer(writer, 0, 2, Status.READ_ONLY))
    assert writer.step(SlotDisconnected(1, 0)) == []
    assert ALL & writer.slots.dead == 0b100


def test_acknowledgements_may_have_to_span_domains() -> None:
    """Two bookies of one rack are an ack quorum, and not enough; the one of the other rack is."""
    writer = writer_of()
    writer.step(SpanDomains(AckDomains.of(["r1", "r1", "r2"], 2)))
    writer.step(Append(1, 10))
    assert kinds(answer(writer, 0, 0) + answer(writer, 0, 1)) == []
    assert Confirmed(0) in answer(writer, 0, 2)


def test_a_force_spans_domains_as_well() -> None:
    """Entries that are synced in one rack alone are lost with this rack."""
    writer = connected(deferred_sync=True)
    writer.step(SpanDomains(AckDomains.of(["r1", "r1", "r2"], 2)))
    confirmed(writer)
    for number, lost in ((0, 2), (1, 1)):
        effects = writer.step(Force())
        for slot in range(3):
            status = Status.IO_ERROR if slot == lost else Status.OK
            effects += writer.step(ForceAnswered(number, slot, status))
        (done,) = (effect for effect in effects if isinstance(effect, ForceDone))
        assert (done.error is None) is (lost == 1)
        assert writer.last_add_confirmed == (0 if lost == 1 else -1)


def test_a_bookie_whose_domain_is_missed_is_replaced() -> None:
    """It misses its deadline; its successor from the same rack completes the batch."""
    writer = writer_of()
    writer.step(SpanDomains(AckDomains.of(["r1", "r1", "r2"], 2)))
    writer.step(Append(1, 10))
    answer(writer, 0, 0)
    answer(writer, 0, 1)
    effects = writer.step(TimerFired(("add", 0)))
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b100) in effects
    writer.step(NewcomersChosen({2: "b3"}))
    writer.step(MetadataWritten(1))
    writer.step(SpanDomains(AckDomains.of(["r1", "r1", "r2"], 2)))
    writer.step(SlotConnected(2, 1))
    assert Confirmed(0) in answer(writer, 0, 2)


def test_a_close_goes_over_no_foreign_fragment() -> None:
    """Its bookies may have none of what was acknowledged."""
    writer = writer_of()
    confirmed(writer)
    writer.step(Close())
    writer.step(MetadataConflict())
    writer.step(TimerFired(("reread", 0)))
    foreign = ledger(fragments=(Fragment(0, ("b7", "b8", "b9")),))
    (refused,) = writer.step(MetadataRead(foreign, 3))
    assert isinstance(refused, CloseFailed)
    assert isinstance(refused.error, ForeignEnsembleError)


def test_a_bookie_that_is_silent_again_after_a_change_that_never_was_keeps_nobody() -> None:
    """It came back during the change, was sent the batch, and hangs: its deadline counts again."""
    writer = writer_of()
    writer.step(Append(1, 10))
    proposed(writer)
    answer(writer, 0, 0)
    assert Confirmed(0) in answer(writer, 0, 1)
    writer.step(SlotDisconnected(2, 0))
    assert Resend(0, 2) in writer.step(SlotConnected(2, 0))
    assert StartTimer(("add", 0), 5.0) in writer.step(TimerFired(("add", 0)))
    assert Resend(0, 2) in writer.step(SlotConnected(2, 0))
    writer.step(MetadataConflict())
    writer.step(TimerFired(("reread", 0)))
    writer.step(MetadataRead(ledger(), 5))
    assert writer.step(Close()) == []
    effects = writer.step(TimerFired(("add", 0)))
    assert Release(0) in effects
    assert WriteMetadata in kinds(effects)


def test_a_change_that_never_was_is_not_counted() -> None:
    """The limit is about changes, not about attempts."""
    writer = writer_of(limits=WriterLimits(changes_per_minute_max=1))
    writer.step(Append(1, 10))
    proposed(writer)
    writer.step(MetadataConflict())
    writer.step(TimerFired(("reread", 0)))
    effects = writer.step(MetadataRead(ledger(), 5))
    assert CancelTimer(("allow", 1)) in effects
    assert ChooseNewcomers(("b0", "b1", "b2"), 0b100) in effects
