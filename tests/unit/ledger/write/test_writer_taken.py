"""A writer that hears FENCED, and one whose bookie lost its memory: what counts from then on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import (
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bookie.ids import Status
from bookie.ledger.exchange import (
    CancelTimer,
    MetadataFailed,
    MetadataRead,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import (
    AddAnswered,
    Append,
    Close,
    Confirmed,
    Failed,
    Force,
    ForceAnswered,
    ForceDone,
    LacAnswered,
    Release,
    SendBatch,
    SlotConnected,
    SlotDisconnected,
    SlotLost,
)
from tests.unit.ledger.ledgers import ledger
from tests.unit.ledger.write.writers import ack, connected, failed_with, kinds

TAKEN = [
    ledger(state=LedgerState.IN_RECOVERY),
    ledger().closed(-1, 0),
    replace(ledger(), c_token=77),
    ledger(fragments=(Fragment(0, ("b0", "b1", "c9")),)),
]


def accused(*, pending: bool = True) -> LedgerWriter:
    """A writer with a batch under way, to which the bookie of slot 1 said FENCED."""
    writer = connected()
    if pending:
        writer.step(Append(1, 10))
        effects = ack(writer, 0, 1, Status.FENCED)
    else:
        effects = writer.step(LacAnswered(1, 0, Status.FENCED))
    assert kinds(effects) == [ReadMetadata]
    return writer


# -- is it fenced? ---------------------------------------------------------------------------------


@pytest.mark.parametrize("found", TAKEN)
@pytest.mark.parametrize("pending", [True, False])
def test_a_ledger_that_was_taken_ends_its_writer(found: LedgerMetadata, pending: bool) -> None:
    """Not OPEN, another life of the id, or another client's ensemble: dead, outcome unknown."""
    writer = accused(pending=pending)
    error = failed_with(writer.step(MetadataRead(found, 3)))
    assert isinstance(error, NoSuchLedgerError if found.c_token else LedgerFencedError)
    for slot in range(3):
        assert ack(writer, 0, slot) == []
    assert not writer.may_append(full=True)


def test_a_bookie_that_claims_a_fence_nobody_made_is_lost() -> None:
    """The ledger is OPEN and ours: the writer goes on, and never counts on that bookie again."""
    writer = accused()
    writer.step(MetadataRead(ledger(), 0))
    assert writer.error is None
    ack(writer, 0, 0)
    assert kinds(ack(writer, 0, 2)) == [Confirmed, Release]
    writer.step(SlotConnected(1))
    assert writer.step(Append(1, 10))[0] == SendBatch(1, 1, 1, 0, 10, 0b101)


def test_what_a_bookie_said_stands_until_it_is_trusted_again() -> None:
    """Before and after the metadata is read; one that also lost its data has another reason."""
    writer = accused()
    fenced = "b1: it says that another client fenced the ledger"
    assert writer.slots.cause(1, "b1") == fenced
    writer.step(MetadataRead(ledger(), 0))
    assert writer.slots.cause(1, "b1") == fenced
    writer.step(SlotLost(2, 0))
    assert writer.slots.cause(2, "b2") == "b2 lost its data"
    back = accused()
    back.step(SlotConnected(1))
    assert back.slots.cause(1, "b1") == "b1: no answer"
    back.step(MetadataRead(ledger(), 0))
    assert back.slots.cause(1, "b1") == fenced


def test_appends_go_on_while_the_metadata_is_read() -> None:
    """The others decide: if the fence is real, they cannot make an ack quorum."""
    writer = accused()
    ack(writer, 0, 0)
    assert kinds(ack(writer, 0, 2)) == [Confirmed, Release]


def test_the_metadata_is_read_once_for_several_that_say_so() -> None:
    """And all of them are judged by it."""
    writer = accused()
    assert ReadMetadata() not in ack(writer, 0, 2, Status.FENCED)
    writer.step(MetadataRead(ledger(), 0))
    assert writer.slots.lost == 0b110


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    """Until then nobody knows; the add timeout goes on."""
    writer = accused()
    pause = StartTimer(("recheck", 0), 1.0)
    assert writer.step(MetadataFailed(MetadataUnavailableError("gone"))) == [pause]
    assert writer.step(TimerFired(("recheck", 0))) == [ReadMetadata()]
    writer.step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 3))
    assert isinstance(writer.error, LedgerFencedError)


def test_a_ledger_that_was_deleted_ends_its_writer() -> None:
    """A bookie that knows the deletion answers as if it were fenced."""
    error = failed_with(accused().step(MetadataFailed(NoSuchLedgerError("deleted"))))
    assert isinstance(error, NoSuchLedgerError)
    assert str(error).startswith("deleted; ")


def test_what_is_read_too_late_changes_nothing() -> None:
    """The writer failed meanwhile; its close is decided by its own compare-and-set."""
    writer = accused()
    assert isinstance(failed_with(writer.step(TimerFired(("add", 0)))), NotEnoughBookiesError)
    assert writer.step(Close()) == []
    (write,) = writer.step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 3))
    assert isinstance(write, WriteMetadata)


def test_a_close_waits_for_the_answer() -> None:
    """One metadata operation at a time; the store's failure leaves the decision to the close."""
    for answer in (MetadataRead(ledger(), 0), MetadataFailed(MetadataUnavailableError("gone"))):
        writer = accused(pending=False)
        assert writer.step(Close()) == []
        effects = writer.step(answer)
        assert [type(e) for e in effects if not isinstance(e, CancelTimer)] == [WriteMetadata]


# -- lost bookies ----------------------------------------------------------------------------------


def test_acknowledgements_of_a_lost_bookie_are_void() -> None:
    """Its acknowledged entries may be gone: the batch needs the two others."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 1)
    writer.step(SlotLost(1))
    assert kinds(ack(writer, 0, 0)) == []
    assert kinds(ack(writer, 0, 2)) == [Confirmed, Release]


def test_what_is_confirmed_no_longer_waits_for_a_lost_bookie() -> None:
    """Its bytes would be kept for ever."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    ack(writer, 0, 2)
    assert kinds(writer.step(SlotLost(1))) == [Release]
    assert writer.is_under_replicated


def test_late_answers_of_a_lost_bookie_count_for_nothing() -> None:
    """They were on their way, and speak of what is gone."""
    writer = connected()
    writer.step(Append(1, 10))
    writer.step(SlotLost(1))
    assert ack(writer, 0, 1) == []
    assert writer.step(AddAnswered(0, 1, 0, Status.IO_ERROR)) == []
    assert kinds(ack(writer, 0, 0)) == []


def test_a_lost_bookie_never_comes_back() -> None:
    """A stream or a probe cannot bring it back; the next batches go to the others."""
    writer = connected()
    writer.step(SlotLost(1))
    assert writer.step(SlotConnected(1)) == []
    assert writer.step(TimerFired(("retry", 1))) == []
    writer.step(SlotDisconnected(1))
    assert writer.step(SlotConnected(1)) == []
    assert writer.step(Append(1, 10))[0] == SendBatch(0, 0, 1, -1, 0, 0b101)
    ack(writer, 0, 0)
    assert kinds(ack(writer, 0, 2)) == [Confirmed, Release]


def test_another_incarnation_in_an_answer_loses_the_bookie() -> None:
    """The stream stood when the bookie was exchanged."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 1, Status.WRONG_INCARNATION)
    assert writer.slots.lost == 0b010
    writer = connected()
    writer.step(LacAnswered(1, 0, Status.WRONG_INCARNATION))
    assert writer.slots.lost == 0b010


def test_without_an_ack_quorum_the_writer_fails() -> None:
    """Two of three lost their memory: nothing can be acknowledged, and the timeout says so."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 1)
    writer.step(SlotLost(1))
    writer.step(SlotLost(2))
    ack(writer, 0, 0)
    effects = writer.step(TimerFired(("add", 0)))
    assert kinds(effects) == [Release, Failed]
    assert isinstance(failed_with(effects), NotEnoughBookiesError)


def test_what_is_confirmed_does_not_end_the_writer() -> None:
    """Its append has returned. One of its bookies lost it and the third is away: that is no reason
    to fail. The writer goes on when the third one is back."""
    writer = connected()
    writer.step(SlotDisconnected(2))
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    assert Confirmed in kinds(ack(writer, 0, 1))
    writer.step(SlotLost(1))
    assert Failed not in kinds(writer.step(TimerFired(("add", 0))))
    writer.step(SlotConnected(2))
    writer.step(Append(1, 10))
    ack(writer, 1, 0)
    assert Confirmed in kinds(ack(writer, 1, 2))


def test_a_lost_bookie_voids_what_was_not_forced() -> None:
    """With deferred sync, also of what is confirmed."""
    writer = connected(deferred_sync=True)
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    writer.step(Force())
    writer.step(SlotLost(0))
    for slot in (0, 1):
        writer.step(ForceAnswered(0, slot, Status.OK))
    effects = writer.step(ForceAnswered(0, 2, Status.IO_ERROR))
    assert any(isinstance(e, ForceDone) and e.error is not None for e in effects)
    assert writer.last_add_confirmed == -1
