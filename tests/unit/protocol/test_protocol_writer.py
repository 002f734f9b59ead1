"""The writer machine, one rule a test; schedules are explored in tests/property/protocol."""

from __future__ import annotations

import pytest

from bookie.errors import (
    BookieError,
    ClientClosedError,
    ConflictError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bookie.formats.ledger_metadata import LedgerState
from bookie.ids import Status
from bookie.protocol.exchange import (
    CancelTimer,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.protocol.pending import WriterLimits
from bookie.protocol.writer import LedgerWriter, WriterState
from bookie.protocol.writer_events import (
    AddAnswered,
    Append,
    Close,
    Closed,
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
    WriterEffect,
)
from tests.unit.protocol.ledgers import ledger

ALL = 0b111


def connected(
    sizes: tuple[int, int, int] = (3, 3, 2),
    limits: WriterLimits | None = None,
    *,
    deferred_sync: bool = False,
) -> LedgerWriter:
    """A writer with all streams open."""
    writer = LedgerWriter(ledger(sizes), 0, limits, deferred_sync=deferred_sync)
    for slot in range(sizes[0]):
        assert writer.step(SlotConnected(slot)) in ([], [CancelTimer(("retry", slot))])
    return writer


def ack(
    writer: LedgerWriter, batch: int, slot: int, status: Status = Status.OK
) -> list[WriterEffect]:
    return writer.step(AddAnswered(batch, slot, 0, status))


def kinds(effects: list[WriterEffect]) -> list[type]:
    """The types of the effects, timers left out."""
    return [type(e) for e in effects if not isinstance(e, (StartTimer, CancelTimer))]


def failed_with(effects: list[WriterEffect]) -> BookieError:
    """The error of the `Failed` effect."""
    return next(effect.error for effect in effects if isinstance(effect, Failed))


def test_a_batch_is_confirmed_by_an_ack_quorum_and_released_by_all() -> None:
    """Two of three acknowledge: confirmed; the third: its bytes may go."""
    writer = connected()
    effects = writer.step(Append(2, 30))
    assert effects[0] == SendBatch(0, 0, 2, -1, 0, ALL)
    assert kinds(ack(writer, 0, 0)) == []
    assert kinds(ack(writer, 0, 2)) == [Confirmed]
    assert (writer.last_add_confirmed, writer.length_confirmed) == (1, 30)
    assert kinds(ack(writer, 0, 1)) == [Release]
    assert not writer.retained


def test_the_same_bookie_twice_is_one_acknowledgement() -> None:
    """A repeated answer of one slot does not make a quorum."""
    writer = connected()
    writer.step(Append(1, 10))
    assert kinds(ack(writer, 0, 0) + ack(writer, 0, 0)) == []


def test_acknowledgements_are_released_in_order() -> None:
    """A complete batch waits for the one before it."""
    writer = connected()
    writer.step(Append(1, 10))
    writer.step(Append(1, 10))
    assert kinds(ack(writer, 1, 0) + ack(writer, 1, 1)) == []
    ack(writer, 0, 0)
    assert [e for e in ack(writer, 0, 1) if isinstance(e, Confirmed)] == [
        Confirmed(0),
        Confirmed(1),
    ]


def test_packets_carry_the_lac_of_their_send_time_and_their_own_length() -> None:
    """The second batch knows the first as confirmed, the third does not wait for the second."""
    writer = connected()
    writer.step(Append(3, 30))
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    assert writer.step(Append(1, 5))[0] == SendBatch(1, 3, 1, 2, 30, ALL)
    assert writer.step(Append(1, 7))[0] == SendBatch(2, 4, 1, 2, 35, ALL)


def test_a_striped_batch_needs_a_quorum_for_each_of_its_classes() -> None:
    """E=4, Qw=2, Qa=2: entries 0 and 1 are on slots 0, 1 and 1, 2; all three must answer."""
    writer = connected((4, 2, 2))
    assert writer.step(Append(2, 20))[0] == SendBatch(0, 0, 2, -1, 0, 0b0111)
    assert kinds(ack(writer, 0, 0) + ack(writer, 0, 1)) == []
    assert kinds(ack(writer, 0, 2)) == [Confirmed, Release]


def test_answers_of_another_epoch_count_for_nothing() -> None:
    """An acknowledgement by a bookie that no longer stands in the slot is ignored."""
    writer = connected()
    writer.step(Append(1, 10))
    writer.epochs[0] = 1
    assert ack(writer, 0, 0) == []
    assert not writer.pending[0].acked


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.FENCED, LedgerFencedError),
        (Status.UNAUTHORIZED, UnauthorizedError),
        (Status.CONFLICT, ConflictError),
    ],
)
def test_answers_about_the_ledger_end_the_writer(status: Status, error: type[BookieError]) -> None:
    """One such answer fails everything that is unconfirmed, and nothing is confirmed after it."""
    writer = connected()
    writer.step(Append(1, 10))
    writer.step(Append(1, 10))
    effects = ack(writer, 0, 1, status)
    assert kinds(effects) == [Release, Release, Failed]
    assert isinstance(failed_with(effects), error)
    assert ack(writer, 0, 0) == []
    assert ack(writer, 0, 2) == []
    assert ack(writer, 0, 2, Status.FENCED) == []
    assert not writer.may_append(full=True)


def test_a_fence_counts_whatever_it_answers() -> None:
    """Also the answer to a batch that was confirmed without it."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 2, Status.IO_ERROR)
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    assert isinstance(failed_with(ack(writer, 0, 2, Status.FENCED)), LedgerFencedError)


@pytest.mark.parametrize(
    "status",
    [Status.READ_ONLY, Status.IO_ERROR, Status.SHUTTING_DOWN, Status.UNKNOWN_LEDGER_STATE],
)
def test_a_failed_bookie_is_skipped(status: Status) -> None:
    """With the others the ack quorum is still there: the writer goes on with two copies."""
    writer = connected()
    writer.step(Append(1, 10))
    effects = ack(writer, 0, 2, status)
    assert effects == [StartTimer(("retry", 2), 1.0)]
    assert writer.is_under_replicated
    ack(writer, 0, 0)
    assert kinds(ack(writer, 0, 1)) == [Confirmed, Release]
    assert writer.step(Append(1, 10))[0] == SendBatch(1, 1, 1, 0, 10, 0b011)


def test_a_skipped_bookie_is_tried_again() -> None:
    """After a while it gets what it has not acknowledged, and the batches that follow."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 2, Status.READ_ONLY)
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    assert writer.step(TimerFired(("retry", 2))) == []
    assert writer.step(Append(1, 10))[0] == SendBatch(1, 1, 1, 0, 10, ALL)
    assert writer.step(Append(1, 10))[0] == SendBatch(2, 2, 1, 0, 20, 0b011)
    assert writer.step(TimerFired(("retry", 2))) == []
    assert writer.step(Append(1, 10))[0] == SendBatch(3, 3, 1, 0, 30, 0b011)
    assert [e for e in ack(writer, 1, 2) if isinstance(e, Resend)] == [Resend(2, 2), Resend(3, 2)]
    assert not writer.is_under_replicated


def test_a_probe_that_fails_is_repeated_later() -> None:
    """The bookie stays skipped, and nobody waits for it."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 2, Status.READ_ONLY)
    writer.step(TimerFired(("retry", 2)))
    assert ack(writer, 0, 2, Status.READ_ONLY) == [StartTimer(("retry", 2), 1.0)]
    assert writer.slots.dead == 0b100


def test_a_probe_may_be_answered_after_its_batch_was_released() -> None:
    """Nobody waits for a probe; its answer revives the slot all the same."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 2, Status.READ_ONLY)
    assert writer.step(TimerFired(("retry", 2))) == [Resend(0, 2)]
    ack(writer, 0, 0)
    assert kinds(ack(writer, 0, 1)) == [Confirmed, Release]
    assert kinds(ack(writer, 0, 2)) == [SendLac]
    assert not writer.is_under_replicated


def test_pending_batches_probe_the_bookies_that_they_need() -> None:
    """Two of three are read-only for a moment: the batch gets through before its timeout."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 0, Status.READ_ONLY)
    ack(writer, 0, 1, Status.READ_ONLY)
    ack(writer, 0, 2)
    assert writer.step(TimerFired(("retry", 0))) == [Resend(0, 0)]
    assert kinds(ack(writer, 0, 0)) == [Confirmed, Release]


def test_a_broken_stream_proves_nothing() -> None:
    """Batches wait for the stream, and are sent again in order when it opens."""
    writer = connected()
    writer.step(Append(1, 10))
    assert writer.step(SlotDisconnected(1)) == []
    assert writer.step(Append(1, 10))[0] == SendBatch(1, 1, 1, -1, 10, 0b101)
    assert not writer.is_under_replicated
    effects = writer.step(SlotConnected(1))
    assert [e for e in effects if isinstance(e, Resend)] == [Resend(0, 1), Resend(1, 1)]


def test_the_add_timeout_buries_who_has_not_answered() -> None:
    """A confirmed batch no longer waits for the third bookie."""
    writer = connected()
    assert StartTimer(("add", 0), 5.0) in writer.step(Append(1, 10))
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    assert kinds(writer.step(TimerFired(("add", 0)))) == [Release]
    assert writer.slots.dead == 0b100


def test_without_an_ack_quorum_the_writer_waits_for_the_add_timeout() -> None:
    """Two of three fail: nothing ends before the timeout; then everything pending fails."""
    writer = connected()
    writer.step(Append(1, 10))
    assert kinds(ack(writer, 0, 0, Status.IO_ERROR) + ack(writer, 0, 1, Status.IO_ERROR)) == []
    assert writer.error is None
    effects = writer.step(TimerFired(("add", 0)))
    assert isinstance(failed_with(effects), NotEnoughBookiesError)


def test_bookies_that_return_in_time_save_the_batch() -> None:
    """Two of three fail and come back before the timeout."""
    writer = connected()
    writer.step(Append(1, 10))
    for slot in (0, 1):
        ack(writer, 0, slot, Status.SHUTTING_DOWN)
        writer.step(SlotDisconnected(slot))
    for slot in (0, 1):
        assert Resend(0, slot) in writer.step(SlotConnected(slot))
    ack(writer, 0, 0)
    assert Confirmed(0) in ack(writer, 0, 1)


def test_a_broken_checksum_is_sent_once_more() -> None:
    """The second time the bookie counts as failed."""
    writer = connected()
    writer.step(Append(1, 10))
    assert ack(writer, 0, 1, Status.BAD_CHECKSUM) == [Resend(0, 1)]
    ack(writer, 0, 1, Status.BAD_CHECKSUM)
    assert writer.slots.dead == 0b010


def test_a_busy_bookie_gets_the_batch_a_little_later() -> None:
    """TOO_MANY_REQUESTS starts a short timer, then everything unacknowledged is sent again."""
    writer = connected()
    writer.step(Append(1, 10))
    assert ack(writer, 0, 1, Status.TOO_MANY_REQUESTS) == [StartTimer(("resend", 1), 0.1)]
    assert writer.step(TimerFired(("resend", 1))) == [Resend(0, 1)]


def test_batches_grow_while_others_are_pending() -> None:
    """A lone append goes at once; behind four pending batches only a full one does."""
    writer = connected()
    for _ in range(4):
        assert writer.may_append(full=False)
        writer.step(Append(1, 10))
    assert not writer.may_append(full=False)
    assert writer.may_append(full=True)


def test_what_is_retained_is_bounded() -> None:
    """A slow third bookie holds the writer back; one whose stream is broken does not."""
    writer = connected(limits=WriterLimits(in_flight_bytes_max=15))
    for number in range(2):
        writer.step(Append(1, 10))
        ack(writer, number, 0)
        ack(writer, number, 1)
    assert not writer.may_append(full=True)
    writer.step(SlotDisconnected(2))
    assert writer.may_append(full=True)
    assert writer.slots.dead == 0b100


def test_the_lac_is_published_when_nothing_carries_it() -> None:
    """Idle after a confirmation: sent once, to all, but not while batches are pending."""
    writer = connected()
    assert writer.step(Idle()) == []
    writer.step(Append(1, 10))
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    ack(writer, 0, 1)
    assert writer.step(Idle()) == []
    ack(writer, 1, 0)
    ack(writer, 1, 1)
    assert writer.step(Idle()) == [SendLac(1, ALL)]
    assert writer.step(Idle()) == []


def test_a_fence_is_noticed_by_the_explicit_lac() -> None:
    """An idle writer learns from it that the ledger was taken over."""
    writer = connected()
    assert isinstance(failed_with(writer.step(LacAnswered(0, 0, Status.FENCED))), LedgerFencedError)


def test_a_reconnecting_bookie_hears_the_lac() -> None:
    """It may have missed the explicit LAC that was sent while its stream was broken."""
    writer = connected()
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    writer.step(SlotDisconnected(1))
    assert writer.step(Idle()) == [SendLac(0, 0b101)]
    assert SendLac(0, 0b010) in writer.step(SlotConnected(1))


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
    assert writer.step(MetadataWritten(1)) == [Closed(effect.metadata)]
    assert writer.step(Close()) == [Closed(effect.metadata)]


def test_close_waits_for_what_is_pending() -> None:
    """Nothing is cut off, and nothing new is taken."""
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
    assert writer.step(MetadataConflict()) == [ReadMetadata()]
    (effect,) = writer.step(MetadataRead(ledger(), 4))
    assert isinstance(effect, WriteMetadata)
    assert effect.version == 4


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
    assert writer.step(MetadataRead(ours, 1)) == [Closed(ours)]


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
    """What was unconfirmed had an unknown outcome; the ledger ends before it."""
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
    """Whoever has not answered does not count."""
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
    assert kinds(writer.step(LacAnswered(1, 0, Status.FENCED))) == [ForceDone, Failed]
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


def test_a_broken_stream_voids_unforced_acknowledgements_of_pending_batches() -> None:
    """With deferred sync the copy may be lost: it is stored again, and only then counts."""
    writer = connected(deferred_sync=True)
    writer.step(Append(1, 10))
    ack(writer, 0, 0)
    writer.step(SlotDisconnected(0))
    assert kinds(ack(writer, 0, 1)) == []
    assert Resend(0, 0) in writer.step(SlotConnected(0))
    assert kinds(ack(writer, 0, 0)) == [Confirmed]


def test_timers_of_what_is_over_do_nothing() -> None:
    """A timer may fire in the same moment in which it is cancelled."""
    writer = connected()
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    for kind in ("add", "retry", "force"):
        assert writer.step(TimerFired((kind, 0))) == []
    assert ack(writer, 0, 0) == []
    ack(writer, 1, 0, Status.FENCED)
    assert writer.step(TimerFired(("add", 0))) == []


def test_a_busy_bookie_that_died_meanwhile_gets_nothing() -> None:
    """Its failure is dealt with in another way."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 1, Status.TOO_MANY_REQUESTS)
    ack(writer, 0, 1, Status.IO_ERROR)
    assert writer.step(TimerFired(("resend", 1))) == []
    assert ack(writer, 0, 1, Status.TOO_MANY_REQUESTS) == []
