"""The recovery machine, one rule a test; schedules are explored in tests/property/protocol."""

from __future__ import annotations

import pytest

from bookie.errors import CorruptionError, LedgerRecoveryError
from bookie.ids import Status
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
from bookie.ledger.metadata import Fragment, LedgerState
from bookie.ledger.recover.recovery import LedgerRecovery, RecoveryLimits, RecoveryState
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    Recovered,
    RecoveryEffect,
    RecoveryFailed,
    RecoveryReadAnswered,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    Start,
)
from tests.entry_batches import merged
from tests.unit.ledger.ledgers import ledger, packed
from tests.unit.ledger.recover.recoveries import (
    NO,
    error_of,
    fence_all,
    fencing,
    found,
    of_type,
    reading,
    refuse,
    stored,
)


def test_an_empty_ledger_closes_empty() -> None:
    """Fence, two denials of entry 0, CLOSED at -1 with length 0."""
    recovery = reading()
    assert refuse(recovery, 0) == []
    (write,) = refuse(recovery, 2)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry_id, write.metadata.length, write.version) == (-1, 0, 1)
    assert recovery.step(MetadataWritten(2)) == [Recovered(write.metadata, 2)]


def test_a_closed_ledger_is_left_alone() -> None:
    """Recovery of a CLOSED ledger ends at once, without a fence."""
    closed = ledger().closed(4, 50)
    assert LedgerRecovery(closed, 3).step(Start()) == [Recovered(closed, 3)]


def test_marking_loses_to_another_recovery() -> None:
    """Found IN_RECOVERY after a lost compare-and-set: go on with fencing."""
    recovery = LedgerRecovery(ledger(), 0)
    recovery.step(Start())
    assert recovery.step(MetadataConflict()) == [StartTimer(("retry", 0), 0.05)]
    assert recovery.step(TimerFired(("retry", 0))) == [ReadMetadata()]
    effects = recovery.step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 7))
    assert len(of_type(effects, SendFence)) == 3


def test_every_recovery_read_fences() -> None:
    """A denial without a fence could be followed by an acknowledgement."""
    recovery = fencing()
    reads = of_type(fence_all(recovery), SendRecoveryRead)
    assert len(reads) == 3
    assert all(read.fence and read.first_entry_id == 0 for read in reads)


def test_reading_starts_after_the_lac() -> None:
    """Everything up to the highest verified LAC was acknowledged."""
    reads = of_type(fence_all(fencing(), lac=6), SendRecoveryRead)
    assert {read.first_entry_id for read in reads} == {7}


def test_reading_never_starts_before_the_last_fragment() -> None:
    """A newcomer of the last ensemble has no LAC. Earlier fragments are still not redone."""
    bookies = ("b0", "b1", "b2")
    fragments = (Fragment(0, ("a0", "a1", "a2")), Fragment(1000, bookies))
    recovery = fencing(ledger(fragments=fragments))
    reads = of_type(fence_all(recovery, lac=-1), SendRecoveryRead)
    assert {read.first_entry_id for read in reads} == {1000}
    assert {read.bookie_id for read in reads} == set(bookies)


def test_the_length_of_an_empty_last_fragment_comes_from_the_entry_before() -> None:
    """The last fragment is empty.

    So entry 999 is read, from its own fragment and without a fence.
    """
    fragments = (Fragment(0, ("a0", "a1", "a2")), Fragment(1000, ("b0", "b1", "b2")))
    recovery = reading(metadata=ledger(fragments=fragments))
    refuse(recovery, 0)
    reads = of_type(refuse(recovery, 1), SendRecoveryRead)
    assert {read.bookie_id for read in reads} == {"a0", "a1", "a2"}
    assert not any(read.fence for read in reads)
    refuse(recovery, 0, Status.IO_ERROR)
    (write,) = found(recovery, 1, packed(999, 1))
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry_id, write.metadata.length) == (999, 10_000)


def test_the_fence_answer_may_tell_the_length() -> None:
    """The last entry stored is the LAC itself: no further read is needed."""
    recovery = fencing()
    recovery.step(FenceAnswered(recovery.round, 0, Status.OK, 4, 4, 50))
    recovery.step(FenceAnswered(recovery.round, 1, Status.OK, 4, 4, 50))
    refuse(recovery, 0)
    (write,) = refuse(recovery, 1)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry_id, write.metadata.length) == (4, 50)


def test_what_one_bookie_has_is_stored_again_verbatim() -> None:
    """One verified copy: the same packets go to the whole write set, and then reading goes on."""
    recovery = reading()
    batch = packed(0, 3, lac=-1)
    adds = of_type(found(recovery, 1, batch), SendAdd)
    assert [add.slot for add in adds] == [0, 1, 2]
    assert all(add.batch is batch for add in adds)
    assert stored(recovery, 2) == []
    reads = of_type(stored(recovery, 0), SendRecoveryRead)
    assert {read.first_entry_id for read in reads} == {3}
    (write,) = refuse(recovery, 0)  # bookie 1 denied entry 3 when it gave the others
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry_id, write.metadata.length) == (2, 30)


def test_a_denial_counts_for_one_entry_only() -> None:
    """Two bookies deny entry 0, one has it: entry 0 exists, and entry 1 is not denied by them."""
    recovery = reading()
    refuse(recovery, 0)
    found(recovery, 1, packed(0, 1))
    stored(recovery, 0)
    stored(recovery, 1)
    assert recovery.denied == {1: 0b010}
    assert recovery.next_entry_id == 1


def test_one_denial_and_silence_decide_nothing() -> None:
    """3/3/2: after three rounds of one denial and two failures recovery gives up, OPEN to retry."""
    recovery = reading()
    for _ in range(2):
        refuse(recovery, 0)
        refuse(recovery, 1, Status.IO_ERROR)
        effects = refuse(recovery, 2, Status.UNKNOWN_LEDGER_STATE)
        assert effects == [StartTimer(("retry", 0), 0.5)]
        recovery.step(TimerFired(("retry", 0)))
    refuse(recovery, 0)
    refuse(recovery, 1, Status.BAD_CHECKSUM)
    error = error_of(refuse(recovery, 2, Status.IO_ERROR))
    assert isinstance(error, LedgerRecoveryError)
    assert "at entry 0" in str(error)
    assert recovery.step(TimerFired(("retry", 0))) == []


def test_a_denial_of_another_entry_than_the_next_is_not_believed() -> None:
    """A bookie's `stopped_by` must speak about the id after its last entry."""
    recovery = reading()
    batch = packed(0, 2)
    recovery.step(RecoveryReadAnswered(recovery.round, 0, Status.OK, batch, 9, NO))
    assert recovery.denied == {}


def test_a_batch_that_does_not_start_where_asked_is_not_believed() -> None:
    """Entries 1 and 2 do not answer a question for entry 0."""
    recovery = reading()
    assert (
        recovery.step(RecoveryReadAnswered(recovery.round, 0, Status.OK, packed(1, 2), 3, NO)) == []
    )
    assert recovery.state is RecoveryState.READING


def test_fencing_needs_coverage() -> None:
    """One of three is not enough for 3/3/2; failures are asked again, then recovery fails."""
    recovery = LedgerRecovery(ledger(), 0, RecoveryLimits(attempts_max=2))
    recovery.step(Start())
    recovery.step(MetadataWritten(1))
    recovery.step(FenceAnswered(recovery.round, 0, Status.OK))
    recovery.step(FenceAnswered(recovery.round, 1, Status.IO_ERROR))
    effects = recovery.step(FenceAnswered(recovery.round, 2, Status.BAD_CHECKSUM))
    assert effects == [StartTimer(("retry", 0), 0.5)]
    again = of_type(recovery.step(TimerFired(("retry", 0))), SendFence)
    assert [send.slot for send in again] == [1, 2]
    recovery.step(FenceAnswered(recovery.round, 1, Status.IO_ERROR))
    error = error_of(recovery.step(FenceAnswered(recovery.round, 2, Status.IO_ERROR)))
    assert isinstance(error, LedgerRecoveryError)


def test_a_bookie_with_another_ledger_of_this_id_counts_for_nothing() -> None:
    """UNAUTHORIZED is neither a fence nor a denial; two others suffice."""
    recovery = fencing()
    assert recovery.step(FenceAnswered(recovery.round, 0, Status.UNAUTHORIZED)) == []
    assert recovery.step(FenceAnswered(recovery.round, 1, Status.OK)) == []
    effects = recovery.step(FenceAnswered(recovery.round, 2, Status.OK))
    assert len(of_type(effects, SendRecoveryRead)) == 3
    assert recovery.step(RecoveryReadAnswered(recovery.round, 0, Status.UNAUTHORIZED)) == []
    assert recovery.denied == {}


def test_storing_again_needs_an_ack_quorum() -> None:
    """Two of three fail without a substitute. Those two are asked again, the first is not."""
    recovery = reading()
    found(recovery, 0, packed(0, 1))
    stored(recovery, 0)
    stored(recovery, 1, Status.IO_ERROR)
    bookies = ("b0", "b1", "b2")
    assert stored(recovery, 2, Status.IO_ERROR) == [ChooseNewcomers(bookies, 0b110)]
    assert recovery.step(NewcomersChosen({})) == [StartTimer(("retry", 0), 0.5)]
    again = of_type(recovery.step(TimerFired(("retry", 0))), SendAdd)
    assert [add.slot for add in again] == [1, 2]


def test_a_striped_ledger_is_read_by_stripes() -> None:
    """E=3, Qw=2: each is asked for its ids; what they hold together goes to its write sets."""
    recovery = reading(metadata=ledger((3, 2, 2)))
    every = packed(0, 4, lac=-1)
    zero, two = every.clip(0, 0), every.clip(2, 2)
    slot_0 = merged([zero, two, every.clip(3, 3)])  # ids 0, 2, 3: residues 2 and 0
    assert found(recovery, 0, slot_0) == []  # entry 1 is not known yet
    slot_1 = merged([zero, every.clip(1, 1), every.clip(3, 3)])
    after = RecoveryReadAnswered(recovery.round, 1, Status.OK, slot_1, 4, NO)
    adds = of_type(recovery.step(after), SendAdd)
    assert [add.batch.entry_ids().tolist() for add in adds] == [[0, 2, 3], [0, 1, 3], [1, 2]]
    assert b"".join(bytes(p) for p in adds[1].batch.packets()) == bytes(slot_1.payload)


# -- closing ---------------------------------------------------------------------------------------


def closing() -> LedgerRecovery:
    recovery = reading()
    refuse(recovery, 0)
    refuse(recovery, 1)
    assert recovery.state is RecoveryState.CLOSING
    assert recovery.step(MetadataConflict()) == [StartTimer(("retry", 0), 0.05)]
    assert recovery.step(TimerFired(("retry", 0))) == [ReadMetadata()]
    return recovery


def test_the_loser_adopts_the_closed_ledger() -> None:
    """Another recovery, or the writer, closed it further on."""
    theirs = ledger().closed(3, 40)
    assert closing().step(MetadataRead(theirs, 5)) == [Recovered(theirs, 5)]


def test_a_ledger_closed_before_its_lac_is_reported() -> None:
    """That would be the loss of an acknowledged entry."""
    recovery = reading(lac=5)
    found(recovery, 0, packed(6, 1))
    stored(recovery, 0)
    stored(recovery, 1)
    refuse(recovery, 0)
    refuse(recovery, 1)
    recovery.step(MetadataConflict())
    error = error_of(recovery.step(MetadataRead(ledger().closed(4, 50), 5)))
    assert isinstance(error, CorruptionError)


def test_still_in_recovery_is_tried_again() -> None:
    """Somebody changed something else: the same end, the new version."""
    (write,) = closing().step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 8))
    assert isinstance(write, WriteMetadata)
    assert write.version == 8


def test_a_changed_last_fragment_starts_over() -> None:
    """Entries stored again are on bookies that the metadata no longer names."""
    changed = ledger(state=LedgerState.IN_RECOVERY, fragments=(Fragment(0, ("b0", "b1", "c9")),))
    sends = of_type(closing().step(MetadataRead(changed, 8)), SendFence)
    assert [send.bookie_id for send in sends] == ["b0", "b1", "c9"]


def test_denials_of_former_bookies_do_not_count_after_a_change() -> None:
    """Slots 1 and 2 have other bookies now, one of which has the entry."""
    recovery = closing()
    assert recovery.denied == {0: 0b011}
    changed = ledger(state=LedgerState.IN_RECOVERY, fragments=(Fragment(0, ("b0", "c1", "c2")),))
    recovery.step(MetadataRead(changed, 8))
    assert recovery.denied == {}
    fence_all(recovery)
    assert refuse(recovery, 0) == []
    assert recovery.state is RecoveryState.READING
    found(recovery, 1, packed(0, 1))
    for slot in range(2):
        stored(recovery, slot)
    (write,) = refuse(recovery, 0)
    assert isinstance(write, WriteMetadata)
    assert write.metadata.last_entry_id == 0


def test_a_metadata_failure_ends_recovery() -> None:
    """The error of the store is the error of the recovery."""
    recovery = LedgerRecovery(ledger(), 0)
    recovery.step(Start())
    error = LedgerRecoveryError("stand-in")
    assert recovery.step(MetadataFailed(error)) == [RecoveryFailed(error)]


@pytest.mark.parametrize("event_round", [0, 99])
def test_answers_of_another_round_are_ignored(event_round: int) -> None:
    """They speak about another question."""
    recovery = reading()
    assert recovery.step(RecoveryReadAnswered(event_round, 0, NO)) == []
    assert recovery.denied == {}


@pytest.mark.parametrize("status", [Status.BAD_REQUEST, Status.WRONG_CLUSTER])
def test_answers_about_the_caller_end_every_state(status: Status) -> None:
    """No other bookie would say better."""
    recovery = reading()
    assert of_type(refuse(recovery, 0, status), RecoveryFailed)
    recovery = reading()
    found(recovery, 0, packed(0, 1))
    assert of_type(stored(recovery, 1, status), RecoveryFailed)


def test_nobody_can_tell_the_length() -> None:
    """The entry before the end was acknowledged, and cannot be read: tried again, then given up."""
    recovery = reading(lac=4)
    refuse(recovery, 0)
    effects = refuse(recovery, 1)
    for _ in range(2):
        assert len(of_type(effects, SendRecoveryRead)) == 3
        for slot in range(3):
            effects = refuse(recovery, slot)
        assert effects == [StartTimer(("retry", 0), 0.5)]
        effects = recovery.step(TimerFired(("retry", 0)))
    for slot in range(3):
        effects = refuse(recovery, slot)
    assert isinstance(error_of(effects), LedgerRecoveryError)


def test_lost_compare_and_sets_are_read_after_ever_longer_pauses() -> None:
    """Two recoveries of one ledger do not keep the store busy."""
    recovery = LedgerRecovery(ledger(), 0)
    recovery.step(Start())
    pauses = []
    for version in range(1, 6):
        (pause,) = of_type(recovery.step(MetadataConflict()), StartTimer)
        pauses.append(pause.seconds)
        assert recovery.step(TimerFired(pause.timer)) == [ReadMetadata()]
        recovery.step(MetadataRead(ledger(), version))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5]


def test_a_ledger_that_turns_open_again_is_corrupt() -> None:
    """Nobody may do that."""
    assert isinstance(error_of(closing().step(MetadataRead(ledger(), 5))), CorruptionError)


def test_a_last_fragment_that_never_rests() -> None:
    """Each time it changes everything starts over, but not for ever."""
    recovery = closing()
    effects: list[RecoveryEffect] = []
    for number in range(3):
        changed = (Fragment(0, ("b0", "b1", f"c{number}")),)
        effects = recovery.step(
            MetadataRead(ledger(state=LedgerState.IN_RECOVERY, fragments=changed), number + 2)
        )
        if of_type(effects, RecoveryFailed):
            break
        fence_all(recovery)
        refuse(recovery, 0)
        refuse(recovery, 1)
        recovery.step(MetadataConflict())
    assert "keeps changing" in str(error_of(effects))
