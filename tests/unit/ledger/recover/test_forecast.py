"""The forecast of a recovery: it says what the machine would do, and what it lacks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bookie.errors import WrongClusterError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataWritten,
    NewcomersChosen,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import Fragment, LedgerState
from bookie.ledger.quorum import Quorum
from bookie.ledger.recover.explain import RANDOM_ORDERS
from bookie.ledger.recover.recovery import LedgerRecovery, RecoveryLimits, RecoveryState
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    Recovered,
    RecoveryAddAnswered,
    RecoveryEvent,
    RecoveryFailed,
    RecoveryReadAnswered,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    Start,
)
from bookie.ledger.recover.recovery_forecast import (
    ForecastAnswer,
    Question,
    RecoveryForecast,
    Shortfall,
    WouldClose,
    WouldFail,
    highest_first,
    lowest_first,
)
from tests.entry_batches import merged
from tests.unit.ledger.ledgers import ledger, packed

ROUNDS = 150

Order = Callable[[ForecastAnswer], tuple[bool, float]]


@dataclass
class Bookies:
    """Entries of each slot, by id. A slot may be silent, or in limbo: then it denies nothing."""

    held: list[set[int]]
    lac: int = NO_ENTRY
    silent: set[int] = field(default_factory=set)
    limbo: set[int] = field(default_factory=set)

    def stores(self, bookie_id: str) -> bool:
        return int(bookie_id.removeprefix("b")) not in self.silent

    def answer(self, question: Question) -> ForecastAnswer:
        match question:
            case ChooseNewcomers():
                return NewcomersChosen({})
            case SendFence(round_, slot):
                return FenceAnswered(round_, slot, self._status(slot, Status.OK), self.lac)
            case SendRecoveryRead():
                return self._read(question)

    def _status(self, slot: int, status: Status) -> Status:
        if slot in self.silent:
            return Status.IO_ERROR
        return Status.UNKNOWN_LEDGER_STATE if slot in self.limbo else status

    def _read(self, read: SendRecoveryRead) -> RecoveryReadAnswered:
        slot, stripe = read.slot, read.stripe
        entry_id = stripe.next_id(read.first_entry_id)
        run = []
        while slot not in self.silent and entry_id <= read.last_entry_id:
            if entry_id not in self.held[slot]:
                break
            run.append(entry_id)
            entry_id = stripe.next_id(entry_id + 1)
        denial = self._status(slot, Status.NO_SUCH_ENTRY)
        if not run:
            return RecoveryReadAnswered(read.round, slot, denial, next_entry_id=entry_id)
        batch = merged([packed(one, 1) for one in run])
        stopped_by = denial if entry_id <= read.last_entry_id else Status.OK
        return RecoveryReadAnswered(read.round, slot, Status.OK, batch, entry_id, stopped_by)


def outcome_of(
    bookies: Bookies,
    sizes: tuple[int, int, int] = (3, 3, 2),
    order: Order = lowest_first,
    fragments: tuple[Fragment, ...] | None = None,
) -> WouldClose | WouldFail:
    """The end of an imagined recovery, which hears the answers of a round in this order."""
    forecast = RecoveryForecast(ledger(sizes, fragments=fragments), 7, bookies.stores)
    questions = forecast.begin()
    while forecast.outcome is None:
        answers = sorted(map(bookies.answer, questions), key=order)
        questions = [question for answer in answers for question in forecast.answer(answer)]
    return forecast.outcome


def test_what_is_on_an_ack_quorum_is_kept() -> None:
    """Entries beyond the LAC are stored again, and the ledger ends behind them."""
    bookies = Bookies([{0, 1, 2}, {0, 1, 2}, {0}], lac=0)
    assert outcome_of(bookies) == WouldClose(2, 30, first_readded_id=1)


def test_an_empty_ledger_closes_empty() -> None:
    """There are no entries to store again."""
    assert outcome_of(Bookies([set(), set(), set()])) == WouldClose(-1, 0)


def test_the_order_of_answers_may_decide() -> None:
    """One bookie has an entry that was not acknowledged: both ends are right."""
    bookies = Bookies([{0, 1}, {0}, {0}], lac=0)
    assert outcome_of(bookies) == WouldClose(0, 10)
    assert outcome_of(bookies, order=highest_first) == WouldClose(1, 20, 1)


def test_too_few_can_be_fenced() -> None:
    """Two of three are silent: an ack quorum could hide among them, one more has to answer."""
    failure = outcome_of(Bookies([{0}, {0}, {0}], silent={1, 2}))
    assert isinstance(failure, WouldFail)
    assert failure.state is RecoveryState.FENCING
    assert failure.shortfalls == (Shortfall(("b0", "b1", "b2"), ("b1", "b2"), 1),)


def test_each_write_set_lacks_its_own_answers() -> None:
    """Striped, only the write sets in which an ack quorum could hide are named."""
    failure = outcome_of(Bookies([set()] * 5, silent={1, 2}), (5, 3, 2))
    assert isinstance(failure, WouldFail)
    assert [lack.write_set for lack in failure.shortfalls] == [
        ("b0", "b1", "b2"),
        ("b1", "b2", "b3"),
    ]
    assert all((lack.missing, lack.needed) == (("b1", "b2"), 1) for lack in failure.shortfalls)


def test_limbo_fences_nothing() -> None:
    """One bookie in limbo does no harm; two could hide an ack quorum."""
    assert outcome_of(Bookies([{0}, {0}, {0}], lac=0, limbo={0})) == WouldClose(0, 10)
    failure = outcome_of(Bookies([{0}, {0}, {0}], lac=0, limbo={0, 1}))
    assert isinstance(failure, WouldFail)
    assert failure.shortfalls == (Shortfall(("b0", "b1", "b2"), ("b0", "b1"), 1),)


def test_an_entry_cannot_be_decided() -> None:
    """All can be fenced, but two answer reads with an error."""
    bookies = Bookies([{0}, {0}, {0}], lac=0)
    forecast = RecoveryForecast(ledger(), 0, bookies.stores)
    reads = [read for fence in forecast.begin() for read in forecast.answer(bookies.answer(fence))]
    for read in reads:
        assert isinstance(read, SendRecoveryRead)
        status = Status.NO_SUCH_ENTRY if read.slot == 0 else Status.IO_ERROR
        forecast.answer(RecoveryReadAnswered(read.round, read.slot, status, next_entry_id=1))
    failure = forecast.outcome
    assert isinstance(failure, WouldFail)
    assert (failure.state, failure.entry_id) == (RecoveryState.READING, 1)
    assert failure.shortfalls == (Shortfall(("b0", "b1", "b2"), ("b1", "b2"), 1),)


def test_entries_that_cannot_be_stored() -> None:
    """With Qa = 3 a dead bookie needs a newcomer: without one the write set is named."""
    bookies = Bookies([{0}, {0}, {0}], silent={2})
    failure = outcome_of(bookies, (3, 3, 3))
    assert isinstance(failure, WouldFail)
    assert failure.state is RecoveryState.READDING
    assert failure.shortfalls == (Shortfall(("b0", "b1", "b2"), ("b2",), 1),)


def test_newcomers_are_named() -> None:
    """A bookie that is free takes over the slot of the dead one."""
    bookies = Bookies([{0}, {0}, {0}], silent={2})
    forecast = RecoveryForecast(ledger((3, 3, 3)), 0, bookies.stores)
    questions = forecast.begin()
    while forecast.outcome is None:
        answers = [
            NewcomersChosen({2: "b9"}) if isinstance(one, ChooseNewcomers) else bookies.answer(one)
            for one in questions
        ]
        questions = [question for answer in answers for question in forecast.answer(answer)]
    assert forecast.outcome == WouldClose(0, 10, 0, ("b9",))


def test_the_length_cannot_be_read() -> None:
    """The entry before the end lies in an older fragment, whose bookies are silent."""
    fragments = (Fragment(0, ("b3", "b4", "b5")), Fragment(1, ("b0", "b1", "b2")))
    forecast = RecoveryForecast(ledger(fragments=fragments), 0, lambda _: True)
    questions = forecast.begin()
    bookies = Bookies([set(), set(), set()])
    while forecast.outcome is None:
        answers = [
            RecoveryReadAnswered(one.round, one.slot, Status.IO_ERROR)
            if isinstance(one, SendRecoveryRead) and not one.fence
            else bookies.answer(one)
            for one in questions
        ]
        questions = [question for answer in answers for question in forecast.answer(answer)]
    failure = forecast.outcome
    assert isinstance(failure, WouldFail)
    assert (failure.state, failure.entry_id) == (RecoveryState.MEASURING, 0)
    assert failure.shortfalls == (Shortfall(("b3", "b4", "b5"), ("b3", "b4", "b5"), 1),)


def test_a_refusal_lacks_no_answers() -> None:
    """The caller is refused: more bookies would not help."""
    forecast = RecoveryForecast(ledger(), 0, lambda _: True)
    forecast.begin()
    forecast.answer(FenceAnswered(1, 0, Status.WRONG_CLUSTER))
    failure = forecast.outcome
    assert isinstance(failure, WouldFail)
    assert isinstance(failure.error, WrongClusterError)
    assert failure.shortfalls == ()


def test_a_closed_ledger_ends_where_it_ends() -> None:
    """No question is asked."""
    forecast = RecoveryForecast(ledger().closed(4, 50), 3, lambda _: True)
    assert forecast.begin() == []
    assert forecast.outcome == WouldClose(4, 50)


# -- against recoveries ----------------------------------------------------------------------------


def recovered(bookies: Bookies, sizes: tuple[int, int, int], dice: random.Random) -> int | None:
    """The end of a recovery that hears the answers in any order; None if it fails."""
    machine = LedgerRecovery(ledger(sizes), 0, RecoveryLimits(attempts_max=1))
    events: list[RecoveryEvent] = [Start()]
    while True:
        event = events.pop(dice.randrange(len(events)))
        for effect in machine.step(event):
            match effect:
                case SendFence() | SendRecoveryRead() | ChooseNewcomers():
                    events.append(bookies.answer(effect))
                case SendAdd(round_, slot, _, batch):
                    status = Status.IO_ERROR if slot in bookies.silent else Status.OK
                    if status is Status.OK:
                        bookies.held[slot].update(batch.entry_ids().tolist())
                    events.append(RecoveryAddAnswered(round_, slot, status))
                case WriteMetadata(_, version):
                    events.append(MetadataWritten(version + 1))
                case StartTimer(timer):
                    events.append(TimerFired(timer))
                case Recovered(metadata):
                    assert metadata.state is LedgerState.CLOSED
                    return metadata.last_entry_id
                case RecoveryFailed():
                    return None
                case _:
                    raise AssertionError(effect)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 1)])
def test_recoveries_end_where_the_forecast_says(sizes: tuple[int, int, int]) -> None:
    """Random bookies: a recovery ends within the extremes, and succeeds if all orders do."""
    dice = random.Random(str(sizes))
    quorum = Quorum(*sizes)
    orders: list[Order] = [lowest_first, highest_first]
    if quorum.is_striped:
        orders += [lambda _: (True, dice.random())] * RANDOM_ORDERS
    decided = ranges = outside = 0
    for _ in range(ROUNDS):
        lac = dice.randrange(-1, 3)
        held: list[set[int]] = [set() for _ in range(sizes[0])]
        for entry_id in range(6):
            members = quorum.write_set(entry_id)
            least = quorum.ack_quorum_size if entry_id <= lac else 0
            for slot in dice.sample(members, dice.randrange(least, len(members) + 1)):
                held[slot].add(entry_id)
        slots = range(sizes[0])
        silent = {slot for slot in slots if dice.random() < 0.15}
        limbo = {slot for slot in slots if dice.random() < 0.1}
        bookies = Bookies(held, lac, silent, limbo)
        outcomes = [outcome_of(bookies, sizes, order) for order in orders]
        end = recovered(bookies, sizes, dice)
        ends = [one.last_entry_id for one in outcomes if isinstance(one, WouldClose)]
        if len(ends) == len(outcomes):
            assert end is not None
            assert lac <= min(ends)
            assert lac <= end
            is_within = min(ends) <= end <= max(ends)
            assert is_within or quorum.is_striped
            outside += not is_within
            decided += 1
            ranges += min(ends) < max(ends)
        elif not ends:
            assert end is None
    assert decided > ROUNDS / 3
    assert outside <= ROUNDS / 50, "striped, not every order is tried"
    assert bool(ranges) == (sizes[2] > 1), "with Qa = 1 any copy is kept"
