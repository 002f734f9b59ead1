"""The writer machine, one rule a test; schedules are explored in tests/property/protocol."""

from __future__ import annotations

import pytest

from bookie.errors import (
    BookieError,
    ConflictError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bookie.ids import Status
from bookie.ledger.exchange import StartTimer, TimerFired
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer_events import (
    Append,
    Confirmed,
    Failed,
    Idle,
    Release,
    Resend,
    SendBatch,
    SendLac,
    SlotConnected,
    SlotDisconnected,
)
from tests.unit.ledger.write.writers import ALL, ack, connected, failed_with, kinds


def test_a_batch_is_confirmed_by_an_ack_quorum_and_released_by_all() -> None:
    """Two of three acknowledge: confirmed; the third: its bytes may go."""
    writer = connected()
    effects = writer.step(Append(2, 30))
    assert effects[0] == SendBatch(0, 0, 2, -1, 0, ALL)
    assert kinds(ack(writer, 0, 0)) == []
    assert kinds(ack(writer, 0, 2)) == [Confirmed]
    assert (writer.last_add_confirmed, writer.length_confirmed) == (1, 30)
    assert kinds(ack(writer, 0, 1)) == [Release]
    assert not writer.window.retained


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
    assert not writer.window.pending[0].acked


@pytest.mark.parametrize(
    ("status", "error"),
    [
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
    assert ack(writer, 0, 2, Status.UNAUTHORIZED) == []
    assert not writer.may_append(full=True)


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
    """TOO_MANY_REQUESTS starts a short timer, then the batch is sent again."""
    writer = connected()
    writer.step(Append(1, 10))
    effects = ack(writer, 0, 1, Status.TOO_MANY_REQUESTS)
    assert StartTimer(("resend", 1), 0.1) in effects
    assert kinds(effects) == []
    assert Resend(0, 1) in writer.step(TimerFired(("resend", 1)))


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


def test_a_reconnecting_bookie_hears_the_lac() -> None:
    """It may have missed the explicit LAC that was sent while its stream was broken."""
    writer = connected()
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    writer.step(SlotDisconnected(1))
    assert writer.step(Idle()) == [SendLac(0, 0b101)]
    assert SendLac(0, 0b010) in writer.step(SlotConnected(1))


def test_timers_of_what_is_over_do_nothing() -> None:
    """A timer may fire in the same moment in which it is cancelled."""
    writer = connected()
    writer.step(Append(1, 10))
    for slot in range(3):
        ack(writer, 0, slot)
    for kind in ("add", "retry", "force"):
        assert writer.step(TimerFired((kind, 0))) == []
    assert ack(writer, 0, 0) == []
    ack(writer, 1, 0, Status.UNAUTHORIZED)
    assert writer.step(TimerFired(("add", 0))) == []


def test_a_busy_bookie_that_died_meanwhile_gets_nothing() -> None:
    """Its failure is dealt with in another way."""
    writer = connected()
    writer.step(Append(1, 10))
    ack(writer, 0, 1, Status.TOO_MANY_REQUESTS)
    ack(writer, 0, 1, Status.IO_ERROR)
    assert writer.step(TimerFired(("resend", 1))) == []
    assert ack(writer, 0, 1, Status.TOO_MANY_REQUESTS) == []
