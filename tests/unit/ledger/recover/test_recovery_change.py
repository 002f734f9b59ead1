"""Recovery when bookies fail: who takes over, from which entry on, and who hears of it when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import LedgerRecoveryError
from bookie.ids import Status
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.recover.recovery import LedgerRecovery, RecoveryState
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    NewcomersLost,
    PublishNewcomers,
    Recovered,
    RecoveryEffect,
    RecoveryReadAnswered,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    Start,
)
from bookie.ledger.recover.recovery_tail import RecoveryTail
from tests.entry_batches import merged
from tests.unit.ledger.ledgers import ledger, packed
from tests.unit.ledger.recover.recoveries import (
    NO,
    error_of,
    fence_all,
    found,
    of_type,
    reading,
    refuse,
    stored,
)

FAILED = Status.IO_ERROR
OLD = ("b0", "b1", "b2")
NEW = ("b0", "x", "b2")
RETRY = ("retry", 0)


def all_of_three() -> LedgerMetadata:
    """A ledger whose entries need all of their three bookies."""
    return ledger((3, 3, 3))


def choosing(metadata: LedgerMetadata | None = None) -> LedgerRecovery:
    """Entry 0 is stored again; slot 1 failed, and Qa is out of reach."""
    recovery = reading(metadata=metadata or all_of_three())
    found(recovery, 0, packed(0, 1))
    stored(recovery, 0)
    assert stored(recovery, 1, FAILED) == [ChooseNewcomers(OLD, 0b010)]
    return recovery


def changed() -> LedgerRecovery:
    """Bookie x took over slot 1 at entry 0, and all three stored it."""
    recovery = choosing()
    recovery.step(NewcomersChosen({1: "x"}))
    stored(recovery, 1)
    stored(recovery, 2)
    assert recovery.state is RecoveryState.READING
    return recovery


def publishing() -> tuple[LedgerRecovery, PublishNewcomers]:
    recovery = changed()
    (publish,) = refuse(recovery, 0)
    assert isinstance(publish, PublishNewcomers)
    return recovery, publish


# -- when ------------------------------------------------------------------------------------------


def test_nobody_takes_over_while_an_ack_quorum_is_in_reach() -> None:
    """3/3/2, one fails: the two others suffice, for this batch and the next."""
    recovery = reading()
    found(recovery, 0, packed(0, 1))
    assert stored(recovery, 1, FAILED) == []
    assert stored(recovery, 0) == []
    assert len(of_type(stored(recovery, 2), SendRecoveryRead)) == 3
    adds = of_type(found(recovery, 0, packed(1, 1)), SendAdd)
    assert [add.bookie_id for add in adds] == list(OLD)  # the failed one may be back


def test_newcomers_are_sought_before_the_silent_have_answered() -> None:
    """3/3/3, one fails: no answer of the third can make up for it."""
    recovery = reading(metadata=all_of_three())
    found(recovery, 0, packed(0, 1))
    assert stored(recovery, 1, FAILED) == [ChooseNewcomers(OLD, 0b010)]


def test_a_silent_bookie_holds_no_batch_up() -> None:
    """3/3/2: slot 2 never answers anything, from the fence to the close."""
    recovery = reading()
    for entry_id in range(3):
        found(recovery, 0, packed(entry_id, 1))
        stored(recovery, 0)
        stored(recovery, 1)
        assert recovery.state is RecoveryState.READING
    refuse(recovery, 0)
    assert of_type(refuse(recovery, 1), WriteMetadata)


def test_striped_entries_do_not_wait_for_a_silent_bookie() -> None:
    """E=3, Qw=2: slot 0 has entry 0, slot 2 denies the entries after it, slot 1 is silent."""
    recovery = reading(metadata=ledger((3, 2, 2)))
    assert found(recovery, 0, packed(0, 1)) == []  # entry 1 may be on slots 1 and 2
    adds = of_type(refuse(recovery, 2), SendAdd)
    assert [(add.slot, add.batch.first_entry_id) for add in adds] == [(0, 0), (1, 0)]


def test_a_failure_tells_nothing_about_the_entry_after_a_run() -> None:
    """Slot 2 fails at once; slot 1 has the entries that make the run long."""
    recovery = reading(metadata=ledger((3, 2, 2)))
    every = packed(0, 3)
    assert found(recovery, 0, merged([every.clip(0, 0), every.clip(2, 2)])) == []
    assert refuse(recovery, 2, FAILED) == []
    answer = RecoveryReadAnswered(recovery.round, 1, Status.OK, every.clip(0, 1), 3, NO)
    adds = of_type(recovery.step(answer), SendAdd)
    assert max(add.batch.last_entry_id for add in adds) == 2


# -- who -------------------------------------------------------------------------------------------


def test_a_newcomer_is_sent_what_its_slot_stores() -> None:
    """Only the newcomer: the others' answers to this round stay good."""
    recovery = choosing()
    (add,) = recovery.step(NewcomersChosen({1: "x"}))
    assert isinstance(add, SendAdd)
    assert (add.slot, add.bookie_id, add.batch.first_entry_id) == (1, "x", 0)
    assert stored(recovery, 2) == []
    assert len(of_type(stored(recovery, 1), SendRecoveryRead)) == 3


def test_reads_and_fences_go_to_the_bookies_of_the_start() -> None:
    """The newcomer would deny entries that it was never given."""
    recovery = choosing()
    recovery.step(NewcomersChosen({1: "x"}))
    stored(recovery, 2)
    reads = of_type(stored(recovery, 1), SendRecoveryRead)
    assert [read.bookie_id for read in reads] == list(OLD)
    adds = of_type(found(recovery, 0, packed(1, 1)), SendAdd)
    assert [add.bookie_id for add in adds] == list(NEW)


def test_no_bookie_to_take_over() -> None:
    """Asked again after a pause, and the next time there is one; else recovery fails."""
    recovery = choosing()
    assert recovery.step(NewcomersChosen({})) == []
    assert stored(recovery, 2) == [StartTimer(RETRY, 0.5)]
    (again,) = recovery.step(TimerFired(RETRY))
    assert isinstance(again, SendAdd)
    assert again.bookie_id == "b1"
    assert stored(recovery, 1, FAILED) == [ChooseNewcomers(OLD, 0b010)]
    assert len(of_type(recovery.step(NewcomersChosen({1: "x"})), SendAdd)) == 1


def test_recovery_fails_when_nobody_ever_takes_over() -> None:
    """Three rounds; the message says what is missing."""
    recovery = choosing()
    stored(recovery, 2)
    effects: list[RecoveryEffect] = []
    for _ in range(3):
        effects = recovery.step(NewcomersChosen({}))
        if of_type(effects, StartTimer):
            recovery.step(TimerFired(RETRY))
            stored(recovery, 1, FAILED)
    error = error_of(effects)
    assert isinstance(error, LedgerRecoveryError)
    assert "no other bookie can take over" in str(error)


def test_a_failure_during_a_choice_joins_the_next_one() -> None:
    """The second choice knows the ensemble that the first one made."""
    recovery = choosing()
    assert stored(recovery, 2, FAILED) == []
    effects = recovery.step(NewcomersChosen({1: "x"}))
    assert of_type(effects, ChooseNewcomers) == [ChooseNewcomers(NEW, 0b100)]
    (add,) = recovery.step(NewcomersChosen({2: "y"}))
    assert isinstance(add, SendAdd)
    assert (add.slot, add.bookie_id) == (2, "y")


def test_a_newcomer_that_fails_is_replaced_too() -> None:
    """At the same first entry: its fragment is replaced, not doubled."""
    recovery = choosing()
    recovery.step(NewcomersChosen({1: "x"}))
    assert stored(recovery, 1, FAILED) == [ChooseNewcomers(NEW, 0b010)]
    recovery.step(NewcomersChosen({1: "y"}))
    assert recovery.tail.fragments == (Fragment(0, ("b0", "y", "b2")),)


def test_newcomers_that_were_not_asked_for_are_ignored() -> None:
    """Before, and after, a choice; and slots that do not fail."""
    recovery = reading(metadata=all_of_three())
    assert recovery.step(NewcomersChosen({1: "x"})) == []
    recovery = choosing()
    recovery.step(NewcomersChosen({0: "y", 1: "x"}))
    assert recovery.tail.bookies == NEW
    assert recovery.step(NewcomersChosen({2: "z"})) == []


def test_no_round_begins_while_newcomers_are_chosen() -> None:
    """Or an answer of the former bookie could pass for one of its newcomer."""
    recovery = choosing()
    assert recovery.step(TimerFired(RETRY)) == []


def test_only_slots_that_a_short_write_set_needs_are_taken_over() -> None:
    """4/2/2, entry 0 on slots 0 and 1: slots 2 and 3 are not concerned."""
    recovery = reading(metadata=ledger((4, 2, 2)))
    found(recovery, 0, packed(0, 1))
    refuse(recovery, 1)
    assert recovery.state is RecoveryState.READDING
    assert stored(recovery, 1, FAILED) == [ChooseNewcomers(("b0", "b1", "b2", "b3"), 0b0010)]


# -- the tail --------------------------------------------------------------------------------------


def test_the_fragment_begins_at_the_next_entry_to_be_stored() -> None:
    """Entries before it are on an ack quorum of the former bookies."""
    recovery = reading(lac=4, metadata=all_of_three())
    found(recovery, 0, packed(5, 2))
    for slot in range(3):
        stored(recovery, slot)
    found(recovery, 0, packed(7, 3))
    stored(recovery, 1, FAILED)
    recovery.step(NewcomersChosen({1: "x"}))
    assert recovery.tail.fragments == (Fragment(0, OLD), Fragment(7, NEW))


def test_the_tail_never_begins_below_the_last_fragment() -> None:
    """An empty last fragment at 1000: the tail replaces it, and 0 … 999 stay where they are."""
    fragments = (Fragment(0, ("a0", "a1", "a2")), Fragment(1000, OLD))
    recovery = reading(metadata=replace(all_of_three(), fragments=fragments))
    found(recovery, 0, packed(1000, 1))
    stored(recovery, 1, FAILED)
    recovery.step(NewcomersChosen({1: "x"}))
    for slot in range(3):
        stored(recovery, slot)
    (publish,) = refuse(recovery, 0)
    assert isinstance(publish, PublishNewcomers)
    assert publish.metadata.fragments == (fragments[0], Fragment(1000, NEW))


def test_several_changes_make_several_fragments() -> None:
    """First ids ascend; each newcomer is named once, the bookies of the start are not."""
    tail = RecoveryTail.of(all_of_three())
    assert tail.newcomers == ()
    for first, newcomers in [(3, {1: "x"}), (3, {2: "y"}), (9, {1: "z"})]:
        tail = tail.changed(first, newcomers)
    assert tail.fragments == (
        Fragment(0, OLD),
        Fragment(3, ("b0", "x", "y")),
        Fragment(9, ("b0", "z", "y")),
    )
    assert tail.newcomers == ("x", "y", "z")


# -- closing ---------------------------------------------------------------------------------------


def test_only_the_close_names_the_newcomers() -> None:
    """Everything written before it has the fragments as they were found."""
    recovery, publish = publishing()
    assert recovery.metadata.fragments == (Fragment(0, OLD),)
    assert publish.newcomers == ("x",)
    assert publish.metadata.fragments == (Fragment(0, NEW),)
    assert (publish.metadata.last_entry_id, publish.metadata.length) == (0, 10)
    assert recovery.step(MetadataWritten(2)) == [Recovered(publish.metadata, 2)]


def test_a_conflict_keeps_what_others_changed() -> None:
    """Earlier fragments, repaired meanwhile, and custom metadata are theirs; the tail is ours."""
    fragments = (Fragment(0, ("a0", "a1", "a2")), Fragment(5, OLD))
    recovery = reading(metadata=replace(all_of_three(), fragments=fragments))
    found(recovery, 0, packed(5, 1))
    stored(recovery, 1, FAILED)
    recovery.step(NewcomersChosen({1: "x"}))
    for slot in range(3):
        stored(recovery, slot)
    refuse(recovery, 0)
    recovery.step(MetadataConflict())
    assert recovery.step(TimerFired(RETRY)) == [ReadMetadata()]
    repaired = replace(
        recovery.metadata,
        fragments=(Fragment(0, ("a0", "c", "a2")), fragments[1]),
        custom_metadata={"owner": b"them"},
    )
    (again,) = recovery.step(MetadataRead(repaired, 9))
    assert isinstance(again, PublishNewcomers)
    assert again.version == 9
    assert again.metadata.fragments == (repaired.fragments[0], Fragment(5, NEW))
    assert again.metadata.custom_metadata == {"owner": b"them"}


def test_the_loser_adopts_another_end_with_other_bookies() -> None:
    """Two recoveries stored entries on different newcomers: one result, the one that is stored."""
    recovery, _ = publishing()
    recovery.step(MetadataConflict())
    theirs = replace(all_of_three(), fragments=(Fragment(0, ("b0", "y", "b2")),)).closed(0, 10)
    assert recovery.step(MetadataRead(theirs, 5)) == [Recovered(theirs, 5)]


def test_a_last_fragment_of_others_voids_the_tail() -> None:
    """Begun again from the fences, with the bookies that the metadata names now."""
    recovery, _ = publishing()
    recovery.step(MetadataConflict())
    theirs = (Fragment(0, ("b0", "b1", "c")),)
    marked = ledger((3, 3, 3), state=LedgerState.IN_RECOVERY, fragments=theirs)
    sends = of_type(recovery.step(MetadataRead(marked, 8)), SendFence)
    assert [send.bookie_id for send in sends] == ["b0", "b1", "c"]
    assert recovery.tail == RecoveryTail.of(marked)


def test_a_newcomer_that_lost_its_entries_voids_the_tail() -> None:
    """The metadata stays as it is.

    The tail is fenced, read and stored again without that bookie.
    """
    recovery, _ = publishing()
    sends = of_type(recovery.step(NewcomersLost(("x",))), SendFence)
    assert [send.bookie_id for send in sends] == list(OLD)
    fence_all(recovery)
    adds = of_type(found(recovery, 0, packed(0, 1)), SendAdd)
    assert [add.bookie_id for add in adds] == list(OLD)
    for slot in range(3):
        stored(recovery, slot)
    (write,) = refuse(recovery, 0)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.fragments == (Fragment(0, OLD),)


def test_newcomers_that_lose_entries_again_and_again() -> None:
    """A few times, and then the recovery fails; the ledger stays IN_RECOVERY."""
    recovery, _ = publishing()
    effects: list[RecoveryEffect] = []
    for _ in range(3):
        effects = recovery.step(NewcomersLost(("x",)))
    assert "took over and lost entries" in str(error_of(effects))


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_one_dead_bookie_stops_no_recovery_that_has_a_spare(silent: int) -> None:
    """3/3/3, one of the three never answers and times out, the spare takes over: closed."""
    recovery = reading(metadata=all_of_three())
    alive = [slot for slot in range(3) if slot != silent]
    found(recovery, alive[0], packed(0, 2))
    for slot in alive:
        stored(recovery, slot)
    stored(recovery, silent, FAILED)
    recovery.step(NewcomersChosen({silent: "x"}))
    stored(recovery, silent)
    (publish,) = refuse(recovery, alive[1])
    assert isinstance(publish, PublishNewcomers)
    assert publish.metadata.last_entry_id == 1


def test_limbo_is_no_fence() -> None:
    """A bookie that may have lost the ledger covers nothing, whatever else it says."""
    recovery = LedgerRecovery(ledger((3, 3, 3), state=LedgerState.IN_RECOVERY), 0)
    recovery.step(Start())
    doubtful = Status.UNKNOWN_LEDGER_STATE
    assert recovery.step(FenceAnswered(recovery.round, 0, doubtful, 7)) == []
    assert recovery.step(FenceAnswered(recovery.round, 1, Status.OK)) != []
    assert recovery.next_entry_id == 0
