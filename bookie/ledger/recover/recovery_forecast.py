"""Forecast the decision of a recovery, without a recovery.

`RecoveryForecast` runs the recovery's state machine itself, so it cannot decide otherwise than a
recovery. No effect of the machine is carried out: every write of metadata counts as done, and adds
are answered from what is known about the bookies. The driver answers the other questions of the
machine with calls that change nothing: a LAC read in place of a fence, a plain read in place of a
fencing read.

So a bookie's denial of an entry holds only for the moment: a live writer may still get the entry
acknowledged.

A forecast makes one attempt. The driver chooses the order of the answers, and this order may change
the outcome. Only some bookies may have an entry beyond the LAC. The recovery keeps an entry beyond
the LAC if a bookie that has it answers before enough others deny it. For a ledger that is not
striped, `lowest_first` and `highest_first` are the extreme orders.
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
"""What the driver must ask bookies, always without a fence, even if the effect has one."""

ForecastAnswer = FenceAnswered | RecoveryReadAnswered | NewcomersChosen


@dataclass(frozen=True, slots=True)
class WouldClose:
    """A recovery would succeed."""

    last_entry_id: int
    length: int
    first_readded_id: int = NO_ENTRY
    """The first entry that would be stored again, with all after it; -1 if there is none."""
    newcomers: tuple[str, ...] = ()
    """Bookies that would take over the slots of bookies that fail."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One write set of which too few bookies have given an answer that helps."""

    write_set: tuple[str, ...]
    missing: tuple[str, ...]
    """Bookies of the write set that have not helped yet."""
    needed: int
    """How many of the `missing` bookies would have to help, at least."""


@dataclass(frozen=True, slots=True)
class WouldFail:
    """A recovery could not decide now."""

    error: BookieError
    state: RecoveryState
    """The state in which the recovery would stop."""
    entry_id: int
    """The entry that the recovery could not decide about; without meaning for FENCING."""
    shortfalls: tuple[Shortfall, ...]
    """The write sets that lack answers; empty if more answers would not help."""


def lowest_first(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return a sort key that puts errors first, then denials, then the shortest runs of entries."""
    return _end_of(answer)


def highest_first(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return a sort key that puts the longest runs of entries first, then denials, then errors."""
    is_answer, end = _end_of(answer)
    return not is_answer, -end


def _end_of(answer: ForecastAnswer) -> tuple[bool, int]:
    """Return whether the answer is definite, and the last entry that it knows, as sort keys."""
    match answer:
        case FenceAnswered(status=status, last_add_confirmed=lac):
            return status is Status.OK or status.is_definite_negative, lac
        case RecoveryReadAnswered(status=status, batch=batch):
            end = NO_ENTRY if batch is None else batch.last_entry_id
            return status is Status.OK or status.is_definite_negative, end
        case NewcomersChosen():
            return True, NO_ENTRY


class RecoveryForecast:
    """One imagined recovery; `outcome` is None until the recovery has ended.

    Args:
        metadata: of the ledger, as the store has it.
        version: of the metadata.
        stores: whether a bookie of the last ensemble is expected to store entries. Newcomers are.
    """

    def __init__(
        self, metadata: LedgerMetadata, version: int, stores: Callable[[str], bool]
    ) -> None:
        self.outcome: WouldClose | WouldFail | None = None
        self._machine = LedgerRecovery(metadata, version, RecoveryLimits(attempts_max=1))
        self._ensemble = frozenset(metadata.last_fragment.bookies)
        self._stores = stores
        self._first_id = NO_ENTRY
        """The first id that the recovery reads; entries from here on would be stored again."""

    def begin(self) -> list[Question]:
        return self._feed(Start())

    def answer(self, answer: ForecastAnswer) -> list[Question]:
        """Process one answer, or ignore it if it comes too late; return the next questions."""
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
                # As in `Quorum.covers`: fewer than an ack quorum may be silent.
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
    """Return what a write set lacks if it can spare `spared` bookies; None if it lacks nothing."""
    needed = missing.bit_count() - spared
    if needed <= 0:
        return None
    return Shortfall(
        tuple(bookies[slot] for slot in slots_of(window)),
        tuple(bookies[slot] for slot in slots_of(missing)),
        needed,
    )
