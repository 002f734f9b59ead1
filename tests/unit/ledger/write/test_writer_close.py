"""The writer machine: closing by compare-and-set, deferred sync."""

from __future__ import annotations

import pytest

from bookie.errors import (
    ClientClosedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from bookie.ids import Status
from bookie.ledger.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerState
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import (
    Append,
    Close,
    CloseFailed,
    Confirmed,
    Failed,
    Force,
    ForceAnswered,
    ForceDone,
    LacAnswered,
    Release,
    Resend,
    SendForce,
    SlotConnected,
    SlotDisconnected,
    WriterClosed,
    WriterEffect,
    WriterState,
)
from tests.unit.ledger.ledgers import ledger
from tests.unit.ledger.write.writers import ALL, ack, connected, kinds

# -- closing ---------------------------------------------------------------------------------------


def closing(writer: LedgerWriter) -> WriteMetadata:
    """Close and return the compare-and-set that it asks for."""
    (effect,) = writer.step(Close())
    assert isinstance(effect, WriteMetadata)
    return effect


def test_close_writes_the_lac_and_its_length() -> None:
    """CLOSED at the last confirmed entry, by compare-and-set from the version that we know."""
    writer = connected()
    writer.step(Append(2, 25))
    for slot in range(3):
        ack(writer, 0, slot)
    effect = closing(writer)
    assert (effect.metadata.last_entry_id, effect.metadata.length, effect.version) == (1, 25, 0)
    assert writer.step(MetadataWritten(1)) == [WriterClosed(effect.metadata)]
    assert writer.step(Close()) == [WriterClosed(effect.metadata)]


def test_close_waits_for_what_is_pending() -> None:
    """All pending entries stay, and new ones are refused."""
    writer = connected()
    writer.step(Append(1, 10))
    assert writer.step(Close()) == []
    assert not writer.may_append(full=True)
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    effects = ack(writer, 0, 2)
    assert isinstance(effects[-1], WriteMetadata)
    assert effects[-1].metadata.last_entry_id == 0


def test_close_retries_while_the_ledger_is_open() -> None:
    """A lost compare-and-set against an OPEN ledger is tried again with the new version."""
    writer = connected()
    closing(writer)
    assert writer.step(MetadataConflict()) == [StartTimer(("reread", 0), 0.05)]
    assert writer.step(TimerFired(("reread", 0))) == [ReadMetadata()]
    (effect,) = writer.step(MetadataRead(ledger(), 4))
    assert isinstance(effect, WriteMetadata)
    assert effect.version == 4
    assert writer.step(MetadataConflict()) == [StartTimer(("reread", 0), 0.1)]


def test_close_finds_the_ledger_in_recovery() -> None:
    """Somebody else has taken it over: an error, and never a write."""
    writer = connected()
    closing(writer)
    writer.step(MetadataConflict())
    (effect,) = writer.step(MetadataRead(ledger(state=LedgerState.IN_RECOVERY), 1))
    assert isinstance(effect, CloseFailed)
    assert isinstance(effect.error, LedgerFencedError)


def test_close_finds_the_ledger_closed_where_we_would_have() -> None:
    """Success only if last entry and length are ours."""
    writer = connected()
    ours = closing(writer).metadata
    writer.step(MetadataConflict())
    assert writer.step(MetadataRead(ours, 1)) == [WriterClosed(ours)]


@pytest.mark.parametrize(("last", "length"), [(0, 0), (-1, 3)])
def test_close_finds_the_ledger_closed_elsewhere(last: int, length: int) -> None:
    """Another last entry or another length is an error; trying again does not overwrite it."""
    writer = connected()
    closing(writer)
    writer.step(MetadataConflict())
    (effect,) = writer.step(MetadataRead(ledger().closed(last, length), 1))
    assert isinstance(effect, CloseFailed)
    assert isinstance(effect.error, LedgerClosedError)
    assert closing(writer).version == 0


def test_close_after_a_metadata_failure_may_be_tried_again() -> None:
    """The outcome of the first try is unknown; the second finds out."""
    writer = connected()
    first = closing(writer)
    error = MetadataUnavailableError("gone")
    assert writer.step(MetadataFailed(error)) == [CloseFailed(error)]
    assert writer.state is WriterState.STUCK
    assert closing(writer) == first


def test_a_failed_writer_closes_at_its_lac() -> None:
    """Unconfirmed entries had an unknown outcome; the ledger ends before them."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    writer.step(Append(1, 10))
    ack(writer, 1, 0, Status.IO_ERROR)
    ack(writer, 1, 1, Status.IO_ERROR)
    writer.step(TimerFired(("add", 1)))
    assert closing(writer).metadata.last_entry_id == 0


# -- deferred sync ---------------------------------------------------------------------------------


def deferred() -> LedgerWriter:
    """A deferred-sync writer with one confirmed, unsynced batch."""
    writer = connected(deferred_sync=True)
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    return writer


def test_the_lac_follows_a_force() -> None:
    """Confirmed is written; only forced is durable."""
    writer = deferred()
    assert writer.last_add_confirmed == -1
    assert SendForce(0, ALL) in writer.step(Force())
    writer.step(ForceAnswered(0, 0, Status.OK))
    writer.step(ForceAnswered(0, 1, Status.OK))
    assert ForceDone(None) in writer.step(ForceAnswered(0, 2, Status.IO_ERROR))
    assert writer.last_add_confirmed == 0


def test_a_restart_voids_what_was_not_forced() -> None:
    """The stream broke between the acknowledgement and the force: that copy may be gone."""
    writer = deferred()
    writer.step(Force())
    writer.step(SlotDisconnected(0))
    for slot in (0, 1):
        writer.step(ForceAnswered(0, slot, Status.OK))
    effects = writer.step(ForceAnswered(0, 2, Status.IO_ERROR))
    assert any(isinstance(e, ForceDone) and e.error is not None for e in effects)
    assert writer.last_add_confirmed == -1


def test_close_forces_first() -> None:
    """A deferred-sync ledger is closed with everything that was confirmed."""
    writer = deferred()
    assert kinds(writer.step(Close())) == [SendForce]
    for slot in (0, 1):
        writer.step(ForceAnswered(0, slot, Status.OK))
    effects = writer.step(ForceAnswered(0, 2, Status.OK))
    assert isinstance(effects[-1], WriteMetadata)
    assert effects[-1].metadata.last_entry_id == 0


def test_force_on_an_ordinary_ledger_has_nothing_to_do() -> None:
    """Every confirmed entry is durable already."""
    assert connected().step(Force()) == [ForceDone(None)]


def test_unforced_batches_are_bounded() -> None:
    """A deferred-sync writer that is never told to force does it by itself."""
    writer = connected(limits=WriterLimits(unforced_batches_max=2), deferred_sync=True)
    effects: list[WriterEffect] = []
    for number in range(2):
        writer.step(Append(1, 10))
        effects = ack(writer, number, 0) + ack(writer, number, 1)
    assert SendForce(0, ALL) in effects
    assert writer.step(Force()) == []  # one at a time; its outcome is told to everybody


def test_a_force_ends_by_its_timeout() -> None:
    """Only the bookies that answered count."""
    writer = deferred()
    writer.step(Force())
    writer.step(ForceAnswered(0, 0, Status.OK))
    effects = writer.step(TimerFired(("force", 0)))
    assert any(isinstance(e, ForceDone) and e.error is not None for e in effects)
    assert writer.step(ForceAnswered(0, 1, Status.OK)) == []
    assert writer.step(TimerFired(("force", 0))) == []


def test_a_writer_that_fails_ends_its_force() -> None:
    """Later forces fail with the same error."""
    writer = deferred()
    writer.step(Force())
    assert kinds(writer.step(LacAnswered(1, 0, Status.UNAUTHORIZED))) == [ForceDone, Failed]
    assert writer.step(Force()) == [ForceDone(writer.error)]


def test_a_closed_writer_forces_nothing() -> None:
    """The LAC of a closed ledger does not move."""
    writer = connected(deferred_sync=True)
    closing(writer)
    writer.step(MetadataWritten(1))
    (done,) = writer.step(Force())
    assert isinstance(done, ForceDone)
    assert isinstance(done.error, ClientClosedError)
    assert ack(writer, 0, 0, Status.FENCED) == []
    assert writer.step(SlotConnected(1)) == []


def test_close_gives_up_when_the_force_fails() -> None:
    """Closing at the LAC would cut off what the user was told is written; it may be repeated."""
    writer = deferred()
    writer.step(Close())
    for slot in range(2):
        writer.step(ForceAnswered(0, slot, Status.IO_ERROR))
    effects = writer.step(ForceAnswered(0, 2, Status.OK))
    assert kinds(effects) == [ForceDone, CloseFailed]
    assert kinds(writer.step(Close())) == [SendForce]


def test_a_writer_that_fails_while_it_closes_cuts_nothing_off() -> None:
    """Two streams break, so no force can come, and the batch's deadline ends the writer.

    Its append has returned. The ledger stays open however often the close is repeated: a recovery
    finds what is left.
    """
    writer = connected(deferred_sync=True)
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    assert Confirmed(0) in ack(writer, 0, 1)
    writer.step(Close())
    writer.step(SlotDisconnected(1))
    effects = writer.step(TimerFired(("add", 0)))
    assert kinds(effects) == [Release, Failed, CloseFailed]
    (error,) = (effect.error for effect in effects if isinstance(effect, CloseFailed))
    assert isinstance(error, NotEnoughBookiesError)
    assert not error.retryable
    assert "not synced" in str(error)
    assert kinds(writer.step(Close())) == [CloseFailed]
    assert writer.state is WriterState.STUCK


def test_a_failed_deferred_writer_closes_at_its_last_force() -> None:
    """Everything that was confirmed is synced, so nothing is cut off that an append returned."""
    writer = deferred()
    writer.step(Force())
    for slot in range(3):
        writer.step(ForceAnswered(0, slot, Status.OK))
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 1, slot, Status.IO_ERROR)
    assert kinds(writer.step(TimerFired(("add", 1)))) == [Release, Failed]
    assert closing(writer).metadata.last_entry_id == 0


def test_a_broken_stream_voids_unforced_acknowledgements_of_pending_batches() -> None:
    """With deferred sync the copy may be lost: it is stored again, and only then counts."""
    writer = connected(deferred_sync=True)
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    writer.step(SlotDisconnected(0))
    assert kinds(ack(writer, 0, 1)) == []
    assert Resend(0, 0) in writer.step(SlotConnected(0))
    assert kinds(ack(writer, 0, 0)) == [Confirmed]
