"""Forecasts the decision of a recovery, without a change of the ledger.

`RecoveryForecast` runs the recovery's own state machine, so forecast and recovery make the same
decisions. The forecast does not carry out the effects of the state machine: a write of metadata
counts as done, and an add is answered from what is known about its bookie. For the other effects,
the driver gets real answers by calls that change nothing. The driver reads the LAC instead of
fencing, and its reads do not fence.

Without fences, a bookie's denial of an entry holds only for the moment: a live writer may still
store the entry, and get it acknowledged.

A forecast simulates one attempt. The outcome may depend on the order of the answers, which the
driver chooses. For example, only some bookies have an entry beyond the LAC. The recovery keeps this
entry if one of these bookies answers before enough other bookies deny the entry. For a ledger that
is not striped, the orders `lowest_first` and `highest_first` give the extreme outcomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from bookie.errors import BookieError, LedgerRecoveryError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataWritten,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import mask_of, slots_of
from bookie.ledger.recover.recovery import LedgerRecovery, RecoveryLimits, RecoveryState
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    PublishNewcomers,
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

Question = SendFence | SendRecoveryRead | ChooseNewcomers
"""Effects that the driver answers by asking bookies, or by a choice of newcomers. It asks without a
fence, even if the effect demands a fence."""

ForecastAnswer = FenceAnswered | RecoveryReadAnswered | NewcomersChosen


@dataclass(frozen=True, slots=True)
class WouldClose:
    """A recovery would succeed."""

    last_entry_id: int
    length: int
    first_readded_id: int = NO_ENTRY
    """The first of the entries that would be re-added; -1 if there are none."""
    newcomers: tuple[str, ...] = ()
    """Bookies that would take over the slots of failed bookies."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One write set in which too few bookies gave a useful answer."""

    write_set: tuple[str, ...]
    missing: tuple[str, ...]
    """Bookies of the write set without a useful answer so far."""
    needed: int
    """The smallest number of `missing` bookies that must still give a useful answer."""


@dataclass(frozen=True, slots=True)
class WouldFail:
    """A recovery would fail now, because the answers allow no decision."""

    error: BookieError
    state: RecoveryState
    """The state in which the recovery would stop."""
    entry_id: int
    """The entry about which the recovery could not decide; meaningless in FENCING."""
    shortfalls: tuple[Shortfall, ...]
    """The write sets that lack answers; empty if more answers would not help."""


def lowest_first(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return a sort key: errors come first, then denials, then answers by their last entry."""
    return _end_of(answer)


def highest_first(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return a sort key: answers with the highest last entry come first, and errors come last.

    Denials (definite answers without entries) come directly before the errors.
    """
    is_answer, end = _end_of(answer)
    return not is_answer, -end


def _end_of(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return True if an answer is definite, else False; and the answer's last entry or LAC."""
    match answer:
        case FenceAnswered(status=status, last_add_confirmed=lac):
            return status is Status.OK or status.is_definite_negative, lac
        case RecoveryReadAnswered(status=status, batch=batch):
            end = NO_ENTRY if batch is None else batch.last_entry_id
            return status is Status.OK or status.is_definite_negative, end
        case NewcomersChosen():
            return True, NO_ENTRY


class RecoveryForecast:
    """One simulated recovery; `outcome` is None until the recovery has ended.

    Args:
        metadata: the ledger's metadata in the store.
        version: the version of this metadata.
        stores: returns True if a bookie of the last ensemble is expected to store entries.
            Newcomers are always expected to store entries.
    """

    def __init__(
        self, metadata: LedgerMetadata, version: int, stores: Callable[[str], bool]
    ) -> None:
        self.outcome: WouldClose | WouldFail | None = None
        self._machine = LedgerRecovery(metadata, version, RecoveryLimits(attempts_max=1))
        self._ensemble = frozenset(metadata.last_fragment.bookies)
        self._stores = stores
        self._first_id = NO_ENTRY
        """The first id that the recovery reads; every found entry from this id on would be
        re-added."""

    def begin(self) -> list[Question]:
        return self._feed(Start())

    def answer(self, answer: ForecastAnswer) -> list[Question]:
        """Process an answer, unless it is too late; return the next questions."""
        return self._feed(answer)

    def _feed(self, event: RecoveryEvent) -> list[Question]:
        machine = self._machine
        events, questions = deque([event]), list[Question]()
        while events and self.outcome is None:
            before = machine.state
            effects = machine.step(events.popleft())
            if before is RecoveryState.FENCING and machine.state is RecoveryState.READING:
                self._first_id = machine.next_entry_id
            for effect in effects:
                match effect:
                    case SendFence() | SendRecoveryRead() | ChooseNewcomers():
                        questions.append(effect)
                    case SendAdd():
                        events.append(self._stored(effect))
                    case WriteMetadata(_, version) if machine.state is RecoveryState.MARKING:
                        events.append(MetadataWritten(version))
                    case WriteMetadata(metadata) | PublishNewcomers(metadata):
                        self.outcome = self._closed(metadata)
                    case Recovered(metadata):
                        self.outcome = WouldClose(metadata.last_entry_id, metadata.length)
                    case RecoveryFailed(error):
                        self.outcome = self._failed(error, before)
                    case StartTimer() | ReadMetadata():
                        raise AssertionError("one attempt without conflicts needs no pause")
                    case _:
                        assert_never(effect)
        return questions

    def _stored(self, effect: SendAdd) -> RecoveryAddAnswered:
        name = effect.bookie_id
        if name not in self._ensemble or self._stores(name):
            return RecoveryAddAnswered(effect.round, effect.slot, Status.OK)
        return RecoveryAddAnswered(effect.round, effect.slot, Status.IO_ERROR, f"{name} is missing")

    def _closed(self, metadata: LedgerMetadata) -> WouldClose:
        last = metadata.last_entry_id
        first = self._first_id if last >= self._first_id else NO_ENTRY
        return WouldClose(last, metadata.length, first, self._machine.tail.newcomers)

    # -- what is missing ---------------------------------------------------------------------------

    def _failed(self, error: BookieError, state: RecoveryState) -> WouldFail:
        machine, quorum = self._machine, self._machine.quorum
        entry_id = machine.next_entry_id
        bookies = machine.metadata.last_fragment.bookies
        windows, write = quorum.windows, quorum.write_quorum_size
        missing = spared = 0
        if not isinstance(error, LedgerRecoveryError):
            return WouldFail(error, state, entry_id, ())  # a bookie refused the caller
        match state:
            case RecoveryState.FENCING:
                # As in `Quorum.covers`, up to Qa - 1 bookies of a write set may be silent.
                missing, spared = ~machine.fenced, quorum.ack_quorum_size - 1
            case RecoveryState.READING:
                windows = (quorum.write_mask(entry_id),)
                missing = ~machine.denied.get(entry_id, 0)
                spared = write - quorum.negatives_needed
            case RecoveryState.READDING:
                bookies, spared = machine.tail.bookies, write - quorum.ack_quorum_size
                missing = mask_of(
                    slot
                    for slot, name in enumerate(bookies)
                    if name in self._ensemble and not self._stores(name)
                )
            case RecoveryState.MEASURING:
                entry_id -= 1
                bookies = machine.metadata.fragment_of(entry_id).bookies
                windows, missing, spared = (quorum.write_mask(entry_id),), -1, write - 1
            case _:
                pass
        found = (_shortfall(bookies, window, window & missing, spared) for window in windows)
        return WouldFail(error, state, entry_id, tuple(one for one in found if one is not None))


def _shortfall(
    bookies: tuple[str, ...], window: int, missing: int, spared: int
) -> Shortfall | None:
    """Return the shortfall of a write set; None if at most `spared` bookies are missing."""
    needed = missing.bit_count() - spared
    if needed <= 0:
        return None
    return Shortfall(
        tuple(bookies[slot] for slot in slots_of(window)),
        tuple(bookies[slot] for slot in slots_of(missing)),
        needed,
    )
