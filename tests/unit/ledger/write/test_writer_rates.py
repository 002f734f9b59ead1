"""A writer whose bookies hold it to a rate: it waits as told, and replaces nobody for that."""

from __future__ import annotations

from bookie.errors import NotEnoughBookiesError, TooManyRequestsError
from bookie.ids import Status
from bookie.ledger.exchange import CancelTimer, ChooseNewcomers, StartTimer, TimerFired
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import (
    AddAnswered,
    Append,
    Close,
    Confirmed,
    Failed,
    Idle,
    LacAnswered,
    Release,
    Resend,
    SendBatch,
    SendLac,
    SlotConnected,
    SlotDisconnected,
    WriterEffect,
)
from tests.unit.ledger.write.writers import ack, connected, failed_with, kinds

CHANGES = WriterLimits()
PATIENCE = CHANGES.rate_patience_seconds


def refuse(writer: LedgerWriter, batch: int, slot: int, seconds: float = 3.0) -> list[WriterEffect]:
    """The bookie in `slot` says that the rate is used up, and when to come back."""
    status = Status.TOO_MANY_REQUESTS
    return writer.step(AddAnswered(batch, slot, 0, status, "come back", seconds))


def fire(writer: LedgerWriter, kind: str, number: int) -> list[WriterEffect]:
    return writer.step(TimerFired((kind, number)))


def append(writer: LedgerWriter, batches: int = 1) -> list[WriterEffect]:
    return [effect for _ in range(batches) for effect in writer.step(Append(1, 10))]


def resent(effects: list[WriterEffect]) -> list[int]:
    return [effect.batch for effect in effects if isinstance(effect, Resend)]


def test_the_writer_comes_back_when_it_was_told() -> None:
    """Never sooner than the bookie says, and never sooner than the shortest pause."""
    for said, waited in ((3.0, 3.0), (0.01, 0.1), (0.0, 0.1)):
        writer = connected(limits=CHANGES)
        append(writer)
        assert StartTimer(("resend", 1), waited) in refuse(writer, 0, 1, said)
        assert resent(fire(writer, "resend", 1)) == [0]


def test_batches_follow_slowly_and_in_order() -> None:
    """One, then one more for each that is taken; so hardly anything is refused again."""
    writer = connected(limits=CHANGES)
    append(writer, 8)
    for batch in range(8):
        refuse(writer, batch, 1)
    assert resent(fire(writer, "resend", 1)) == [0]
    assert resent(ack(writer, 0, 1)) == [1, 2]
    assert resent(ack(writer, 1, 1)) == [3, 4]
    assert StartTimer(("resend", 1), 3.0) in refuse(writer, 2, 1)
    assert refuse(writer, 3, 1) == [], "it is about the same second"
    assert resent(ack(writer, 4, 1)) == [], "that one passed, and the pause holds"
    assert resent(fire(writer, "resend", 1)) == [2]


def test_new_batches_wait_for_a_bookie_that_is_paced() -> None:
    writer = connected(limits=CHANGES)
    append(writer)
    refuse(writer, 0, 1)
    (sent,) = [e for e in append(writer) if isinstance(e, SendBatch)]
    assert sent.slots == 0b101
    fire(writer, "resend", 1)
    assert resent(append(writer)) == [], "one batch is under way, and not more may be"
    assert resent(ack(writer, 0, 1)) == [1, 2]
    assert resent(append(writer)) == []
    ack(writer, 1, 1)
    effects = ack(writer, 2, 1)
    assert resent(effects) == []
    ack(writer, 3, 1)
    (sent,) = [e for e in append(writer) if isinstance(e, SendBatch)]
    assert sent.slots == 0b111, "it has taken all, and is like the others again"


def test_a_bookie_that_names_a_time_is_not_replaced() -> None:
    """Its deadlines go on, however long it wants; batches are confirmed once it takes them."""
    writer = connected((3, 3, 3), limits=CHANGES)
    append(writer, 2)
    for batch in range(2):
        ack(writer, batch, 0)
        ack(writer, batch, 2)
        refuse(writer, batch, 1, 20.0)
    for _ in range(4):
        for batch in range(2):
            effects = fire(writer, "add", batch)
            assert StartTimer(("add", batch), CHANGES.add_timeout_seconds) in effects
            assert not kinds(effects)
    assert not writer.slots.dead
    assert not writer.replacements.due
    fire(writer, "resend", 1)
    assert Confirmed(0) in ack(writer, 0, 1)
    assert Confirmed(1) in ack(writer, 1, 1)
    assert not writer.delivery.pacing.slots


def test_a_silent_bookie_beside_it_is_replaced() -> None:
    """The excuse of one bookie is none for another."""
    writer = connected(limits=CHANGES)
    append(writer)
    ack(writer, 0, 0)
    refuse(writer, 0, 1, 20.0)
    effects = fire(writer, "add", 0)
    assert writer.slots.dead == 0b100
    assert any(isinstance(e, ChooseNewcomers) and e.slots == 0b100 for e in effects)
    assert writer.error is None


def test_without_hope_of_a_quorum_the_append_fails() -> None:
    """Two bookies are silent and cannot be replaced; the one that names a time is not enough."""
    writer = connected(limits=WriterLimits(changes_per_minute_max=0))
    append(writer)
    refuse(writer, 0, 1, 20.0)
    assert isinstance(failed_with(fire(writer, "add", 0)), NotEnoughBookiesError)


def test_a_bookie_that_falls_silent_after_its_time_has_failed() -> None:
    """It has as long for what it is sent again as any bookie."""
    writer = connected(limits=CHANGES)
    append(writer)
    ack(writer, 0, 0)
    refuse(writer, 0, 1)
    assert fire(writer, "paced", 1) == [], "nothing is under way to it"
    effects = fire(writer, "resend", 1)
    assert StartTimer(("paced", 1), CHANGES.add_timeout_seconds) in effects
    effects = fire(writer, "paced", 1)
    assert any(isinstance(e, ChooseNewcomers) and e.slots == 0b010 for e in effects)
    assert CancelTimer(("patience", 1)) in effects
    assert not writer.delivery.pacing.slots


def test_the_append_fails_when_the_patience_is_over() -> None:
    """The error is clear, and says when the bookie wants to be asked again."""
    writer = connected((3, 3, 3), limits=CHANGES)
    append(writer)
    ack(writer, 0, 0)
    ack(writer, 0, 2)
    assert StartTimer(("patience", 1), PATIENCE) in refuse(writer, 0, 1, 7.0)
    error = failed_with(fire(writer, "patience", 1))
    assert isinstance(error, TooManyRequestsError)
    assert error.retry_after_seconds == 7.0
    assert not error.retryable
    for part in ("b1", "rate_patience_seconds", "come back"):
        assert part in str(error)


def test_each_batch_that_is_taken_renews_the_patience() -> None:
    writer = connected((3, 3, 3), limits=CHANGES)
    append(writer, 2)
    refuse(writer, 0, 1)
    refuse(writer, 1, 1)
    assert StartTimer(("patience", 1), PATIENCE) not in fire(writer, "resend", 1)
    assert StartTimer(("patience", 1), PATIENCE) in ack(writer, 0, 1)
    assert StartTimer(("patience", 1), PATIENCE) not in refuse(writer, 1, 1)


def test_nobody_fails_if_no_append_waits() -> None:
    """The others are an ack quorum. The batch stays for the third bookie."""
    writer = connected(limits=CHANGES)
    append(writer)
    refuse(writer, 0, 1)
    ack(writer, 0, 0)
    assert Confirmed(0) in ack(writer, 0, 2)
    assert fire(writer, "patience", 1) == [StartTimer(("patience", 1), PATIENCE)]
    assert 0 in writer.window.retained
    writer.step(Close())
    fire(writer, "resend", 1)
    assert "WriteMetadata" in [type(e).__name__ for e in ack(writer, 0, 1)]


def test_a_close_waits_no_longer_than_the_patience() -> None:
    """The entries are durable without the third bookie, which may want to wait for weeks."""
    writer = connected(limits=CHANGES)
    append(writer)
    refuse(writer, 0, 1, 4e6)
    ack(writer, 0, 0)
    assert Confirmed(0) in ack(writer, 0, 2)
    assert not kinds(writer.step(Close()))
    effects = fire(writer, "patience", 1)
    assert "WriteMetadata" in [type(e).__name__ for e in effects]
    assert writer.error is None
    assert not writer.replacements.due, "it is skipped, and not replaced"


def test_appends_wait_for_room_no_longer_than_the_patience() -> None:
    """All that was appended is confirmed, and only the third bookie keeps it from its release."""
    writer = connected(limits=WriterLimits(in_flight_batches_max=8))
    append(writer)
    refuse(writer, 0, 1, 4e6)
    ack(writer, 0, 0)
    ack(writer, 0, 2)
    for batch in range(1, 8):
        append(writer)
        ack(writer, batch, 0)
        ack(writer, batch, 2)
    assert not writer.may_append(full=True)
    effects = fire(writer, "patience", 1)
    assert [e.batch for e in effects if isinstance(e, Release)] == list(range(8))
    assert writer.may_append(full=True)
    assert not writer.replacements.due, "it is skipped, and not replaced"
    assert StartTimer(("retry", 1), CHANGES.retry_seconds) in effects, "and asked again later"


def test_appends_put_no_deadline_off() -> None:
    """A bookie that is silent after its time fails, however often something is appended."""
    writer = connected(limits=CHANGES)
    append(writer)
    refuse(writer, 0, 1)
    deadline = StartTimer(("paced", 1), CHANGES.add_timeout_seconds)
    assert deadline in fire(writer, "resend", 1)
    assert deadline not in append(writer)
    assert deadline in ack(writer, 0, 1), "it took something"
    assert deadline not in append(writer)


def test_a_broken_stream_ends_the_pause() -> None:
    """What was sent on it is lost, so everything is sent again on the next one."""
    writer = connected(limits=CHANGES)
    append(writer, 2)
    refuse(writer, 0, 1)
    assert CancelTimer(("resend", 1)) in writer.step(SlotDisconnected(1))
    for kind in ("resend", "paced", "patience"):
        assert fire(writer, kind, 1) == []
    assert resent(writer.step(SlotConnected(1))) == [0, 1]


def test_a_lac_that_is_refused_follows_later() -> None:
    """Else readers would not learn of the last entry before the next one."""
    writer = connected(limits=CHANGES)
    append(writer)
    for slot in range(3):
        ack(writer, 0, slot)
    assert SendLac(0, 0b111) in writer.step(Idle())
    effects = writer.step(LacAnswered(1, 0, Status.TOO_MANY_REQUESTS, "", 2.0))
    assert StartTimer(("resend", 1), 2.0) in effects
    effects = fire(writer, "resend", 1)
    assert SendLac(0, 0b010) in effects
    assert not writer.delivery.pacing.slots


def test_a_probe_waits_as_long_as_it_was_told() -> None:
    writer = connected()
    append(writer)
    ack(writer, 0, 1, Status.IO_ERROR)
    assert resent(fire(writer, "retry", 1)) == [0]
    assert refuse(writer, 0, 1, 9.0) == [StartTimer(("retry", 1), 9.0)]
    assert not any(isinstance(e, Failed) for e in fire(writer, "retry", 1))
