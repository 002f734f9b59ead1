"""The read machine: replicas, doubts, speculation, fragments and stripes."""

from __future__ import annotations

from typing import TypeVar

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import verify_batch
from bookie.errors import (
    BookieUnreachableError,
    ChecksumError,
    NoSuchEntryError,
    TooManyRequestsError,
)
from bookie.ids import Status
from bookie.ledger.exchange import CancelTimer, StartTimer, TimerFired
from bookie.ledger.metadata import Fragment
from bookie.ledger.read.reader import (
    Continue,
    Deliver,
    LedgerRead,
    ReadAnswered,
    ReadDone,
    ReaderEffect,
    ReaderLimits,
    ReadFailed,
    SendRead,
)
from tests.entry_batches import merged
from tests.unit.ledger.ledgers import DIGESTER, ledger, packed

T = TypeVar("T")
NO = Status.NO_SUCH_ENTRY


def of_type(effects: list[ReaderEffect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[ReaderEffect]) -> SendRead:
    """The one read that was sent."""
    (send,) = of_type(effects, SendRead)
    return send


def answer(
    request: int, batch: EntryBatch, next_entry_id: int = -1, stopped_by: Status = Status.OK
) -> ReadAnswered:
    entries = verify_batch(batch, DIGESTER)
    return ReadAnswered(request, Status.OK, batch, entries, next_entry_id, stopped_by)


def delivered(effects: list[ReaderEffect]) -> list[int]:
    return [entry.entry_id for deliver in of_type(effects, Deliver) for entry in deliver.entries]


def test_a_range_comes_from_one_replica() -> None:
    """Entries 2 … 9 in two answers of the same bookie, then the end."""
    read = LedgerRead(ledger(), 2, 9)
    first = sent(read.step(Continue()))
    assert (first.first_entry_id, first.last_entry_id, first.bookie_id) == (2, 9, "b2")
    assert delivered(read.step(answer(first.request, packed(2, 5), 7))) == [2, 3, 4, 5, 6]
    second = sent(read.step(Continue()))
    assert (second.first_entry_id, second.bookie_id) == (7, "b2")
    assert delivered(read.step(answer(second.request, packed(7, 3), 10))) == [7, 8, 9]
    assert read.step(Continue()) == [ReadDone()]


def test_nothing_is_asked_before_the_consumer_continues() -> None:
    """After a delivery the machine waits: that is the flow control."""
    read = LedgerRead(ledger(), 0, 9)
    effects = read.step(answer(sent(read.step(Continue())).request, packed(0, 2), 2))
    assert of_type(effects, SendRead) == []


def test_a_hole_is_read_from_the_next_replica_which_then_serves_on() -> None:
    """A bookie that was down for a while lacks entries: the next one goes on from there."""
    read = LedgerRead(ledger(), 0, 9)
    first = sent(read.step(Continue()))
    effects = read.step(answer(first.request, packed(0, 4), 4, NO))
    assert delivered(effects) == [0, 1, 2, 3]
    second = sent(read.step(Continue()))
    assert second.first_entry_id == 4
    assert second.bookie_id != first.bookie_id
    read.step(answer(second.request, packed(4, 2), 6))
    assert sent(read.step(Continue())).bookie_id == second.bookie_id


def test_any_doubt_sends_the_read_to_the_next_replica() -> None:
    """Denied, unreachable, then served by the third."""
    read = LedgerRead(ledger(), 0, 0)
    first = sent(read.step(Continue()))
    second = sent(read.step(ReadAnswered(first.request, NO)))
    third = sent(read.step(ReadAnswered(second.request, Status.IO_ERROR)))
    assert len({first.bookie_id, second.bookie_id, third.bookie_id}) == 3
    assert delivered(read.step(answer(third.request, packed(0, 1), 1))) == [0]


def test_a_wrong_digest_is_a_doubt() -> None:
    """The verified prefix is delivered; the entry that failed comes from another bookie."""
    read = LedgerRead(ledger(), 0, 3)
    first = sent(read.step(Continue()))
    effects = read.step(answer(first.request, packed(0, 2), 2, Status.BAD_CHECKSUM))
    assert delivered(effects) == [0, 1]
    second = sent(read.step(Continue()))
    assert (second.first_entry_id, second.bookie_id != first.bookie_id) == (2, True)


def test_denied_by_all_means_no_such_entry() -> None:
    """Every member of the write set said so."""
    read = LedgerRead(ledger(), 0, 0)
    effects = read.step(Continue())
    for _ in range(3):
        effects = read.step(ReadAnswered(sent(effects).request, NO))
    (failed,) = of_type(effects, ReadFailed)
    assert isinstance(failed.error, NoSuchEntryError)
    assert read.step(Continue()) == []


def test_one_bookie_in_doubt_forbids_no_such_entry() -> None:
    """Two deny, one is unreachable: after a second round the failure is that of the third."""
    read = LedgerRead(ledger(), 0, 0)
    effects = read.step(Continue())
    for attempt in range(2):
        for status in (NO, Status.IO_ERROR, NO):
            effects = read.step(ReadAnswered(sent(effects).request, status))
        if attempt == 0:
            assert effects[-1] == StartTimer(("retry", 0), 0.5)
            effects = read.step(TimerFired(("retry", 0)))
    (failed,) = of_type(effects, ReadFailed)
    assert isinstance(failed.error, BookieUnreachableError)


def test_corruption_everywhere_is_a_checksum_error() -> None:
    """The error names the damage instead of a failed read."""
    read = LedgerRead(ledger((1, 1, 1)), 0, 0)
    effects = read.step(Continue())
    for _ in range(2):
        stopped = ReadAnswered(sent(effects).request, Status.OK, None, (), 0, Status.BAD_CHECKSUM)
        effects = read.step(stopped)
        if not of_type(effects, ReadFailed):
            effects = read.step(TimerFired(("retry", 0)))
    (failed,) = of_type(effects, ReadFailed)
    assert isinstance(failed.error, ChecksumError)


def test_an_answer_that_skips_a_hole_is_refused() -> None:
    """Entries 1 and 2 do not answer a question for 0 … 2."""
    read = LedgerRead(ledger(), 0, 2)
    first = sent(read.step(Continue()))
    assert sent(read.step(answer(first.request, packed(1, 2), 3))).first_entry_id == 0


def test_a_silent_replica_is_overtaken_by_a_second() -> None:
    """After the delay another is asked; the first answer wins, the other one is ignored."""
    read = LedgerRead(ledger(), 0, 1)
    effects = read.step(Continue())
    first = sent(effects)
    timer = ("speculate", first.request)
    assert StartTimer(timer, 2.0) in effects
    second = sent(read.step(TimerFired(timer)))
    effects = read.step(answer(second.request, packed(0, 2), 2))
    assert CancelTimer(timer) in effects
    assert delivered(effects) == [0, 1]
    assert read.step(answer(first.request, packed(0, 2), 2)) == []
    assert read.step(Continue()) == [ReadDone()]


def test_a_silent_bookie_is_asked_last_from_then_on() -> None:
    """It was overtaken once, and does not delay the rest of the read."""
    read = LedgerRead(ledger(), 0, 9)
    first = sent(read.step(Continue()))
    second = sent(read.step(TimerFired(("speculate", first.request))))
    read.step(answer(second.request, packed(0, 2), 2))
    third = sent(read.step(Continue()))
    assert third.bookie_id == second.bookie_id
    read.step(ReadAnswered(third.request, NO))
    assert read.suspects == 0b001


def test_each_fragment_is_read_from_its_own_ensemble() -> None:
    """No request crosses the border of a fragment."""
    fragments = (Fragment(0, ("a0", "a1", "a2")), Fragment(4, ("b0", "b1", "b2")))
    read = LedgerRead(ledger(fragments=fragments), 2, 6)
    first = sent(read.step(Continue()))
    assert (first.last_entry_id, first.bookie_id[0]) == (3, "a")
    read.step(answer(first.request, packed(2, 2), 4))
    second = sent(read.step(Continue()))
    assert (second.first_entry_id, second.last_entry_id, second.bookie_id[0]) == (4, 6, "b")


def test_a_striped_window_is_delivered_in_order() -> None:
    """E=3, Qw=2: one read a class, delivered when all are there; a doubt moves only its class."""
    read = LedgerRead(ledger((3, 2, 2)), 0, 4)
    sends = of_type(read.step(Continue()), SendRead)
    assert [(s.first_entry_id, s.bookie_id) for s in sends] == [(0, "b0"), (1, "b1"), (2, "b2")]
    every = packed(0, 5)
    by_class = [merged([every.clip(i, i) for i in range(c, 5, 3)]) for c in range(3)]
    assert delivered(read.step(answer(sends[2].request, by_class[2], 5))) == []
    again = sent(read.step(ReadAnswered(sends[0].request, Status.IO_ERROR)))
    assert (again.first_entry_id, again.bookie_id) == (0, "b1")
    read.step(answer(sends[1].request, by_class[1], 7))
    assert delivered(read.step(answer(again.request, by_class[0], 6))) == [0, 1, 2, 3, 4]
    assert read.step(Continue()) == [ReadDone()]


def test_a_striped_part_goes_on_after_a_short_answer() -> None:
    """E=3, Qw=2: a class that came in two answers; a hole in the second is read elsewhere."""
    read = LedgerRead(ledger((3, 2, 2)), 0, 8)
    sends = of_type(read.step(Continue()), SendRead)
    every = packed(0, 9)
    first = merged([every.clip(0, 0), every.clip(3, 3)])
    again = sent(read.step(answer(sends[0].request, first, 6, NO)))
    assert (again.first_entry_id, again.bookie_id) == (6, "b1")
    effects = read.step(answer(again.request, every.clip(6, 6), 9))
    for c in (1, 2):
        part = merged([every.clip(i, i) for i in range(c, 9, 3)])
        effects = read.step(answer(sends[c].request, part, 9 + c))
    assert delivered(effects) == list(range(9))


def test_a_failure_waits_for_the_other_request() -> None:
    """Two were asked; one fails, the other still may deliver. Its timer then does nothing."""
    read = LedgerRead(ledger(), 0, 0)
    first = sent(read.step(Continue()))
    second = sent(read.step(TimerFired(("speculate", first.request))))
    assert of_type(read.step(ReadAnswered(first.request, NO)), SendRead) == []
    assert read.step(TimerFired(("speculate", first.request))) == []
    assert delivered(read.step(answer(second.request, packed(0, 1), 1))) == [0]


def limited(request: int, seconds: float) -> ReadAnswered:
    """The bookie says that the rate is used up, and when to come back."""
    status = Status.TOO_MANY_REQUESTS
    return ReadAnswered(request, status, message="come back", retry_after_seconds=seconds)


def test_a_replica_whose_rate_is_used_up_gives_way_to_another() -> None:
    read = LedgerRead(ledger(), 0, 4)
    first = sent(read.step(Continue()))
    second = sent(read.step(limited(first.request, 7.0)))
    assert second.bookie_id != first.bookie_id
    assert delivered(read.step(answer(second.request, packed(0, 5), 5))) == [0, 1, 2, 3, 4]


def test_the_read_waits_for_the_shortest_time_that_was_named() -> None:
    """Any number of times, as long as the patience lasts; a wait counts as no attempt."""
    read = LedgerRead(ledger(), 0, 4)
    effects = read.step(Continue())
    for _ in range(5):
        for seconds in (9.0, 4.0):
            effects = read.step(limited(sent(effects).request, seconds))
        effects = read.step(limited(sent(effects).request, 6.0))
        assert StartTimer(("retry", 0), 4.0) in effects
        effects = read.step(TimerFired(("retry", 0)))
    send = sent(effects)
    assert delivered(read.step(answer(send.request, packed(0, 5), 5))) == [0, 1, 2, 3, 4]


def test_the_read_fails_when_the_patience_is_over() -> None:
    read = LedgerRead(ledger(), 0, 4, limits=ReaderLimits(rate_patience_seconds=10))
    effects = read.step(Continue())
    for _ in range(3):
        for _ in range(3):
            effects = read.step(limited(sent(effects).request, 4.0))
        if of_type(effects, ReadFailed):
            break
        effects = read.step(TimerFired(("retry", 0)))
    (failed,) = of_type(effects, ReadFailed)
    assert isinstance(failed.error, TooManyRequestsError)
    assert failed.error.retry_after_seconds == 4.0
    assert read.parts[0].waited_seconds == 8.0


def test_progress_renews_the_patience() -> None:
    read = LedgerRead(ledger(), 0, 9, limits=ReaderLimits(rate_patience_seconds=10))
    effects = read.step(Continue())
    for first in (0, 5):
        for _ in range(2):
            for _ in range(3):
                effects = read.step(limited(sent(effects).request, 5.0))
            effects = read.step(TimerFired(("retry", 0)))
        read.step(answer(sent(effects).request, packed(first, 5), first + 5))
        effects = read.step(Continue())
    assert effects == [ReadDone()]
