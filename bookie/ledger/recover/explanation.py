"""The result of `explain_ledger`: each bookie's answer, the tail, and the verdict as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bookie.ids import NO_ENTRY
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover.recovery import RecoveryState
from bookie.ledger.recover.recovery_forecast import WouldClose, WouldFail

Outcome = WouldClose | WouldFail


@dataclass(frozen=True, slots=True)
class SlotFindings:
    """One slot of the last ensemble, with its bookie's answers to requests that do not fence."""

    slot: int
    bookie_id: str
    registration: str
    """The bookie's registration: ``writable``, ``read-only`` or ``none``."""
    answer: str
    """``ok``, or the reason why the answer does not count, like ``no answer`` or ``in limbo``."""
    is_definite: bool
    """True if a recovery would count this answer."""
    fenced: bool | None = None
    """True if the bookie reports that it has fenced the ledger; None without a report."""
    last_add_confirmed: int | None = None
    """The highest LAC that the bookie knows; None if the bookie reports no LAC."""
    last_entry_id: int | None = None
    """The last entry that the bookie proved with a packet; None if it proved no entry."""
    incarnation: str = ""
    """Incarnation of the bookie's running process; empty if unknown."""
    registered_incarnation: str = ""
    cookie_incarnation: str = ""
    """The incarnation in the cookie, which a recovery accepts; empty without a cookie."""

    @property
    def is_current(self) -> bool | None:
        """True if the bookie has the incarnation that a recovery accepts; None if unknown."""
        known = self.incarnation or self.registered_incarnation
        if not known or not self.cookie_incarnation:
            return None
        return known == self.cookie_incarnation


@dataclass(frozen=True, slots=True)
class TailRange:
    """Consecutive entries beyond the LAC that the same bookies store."""

    first_entry_id: int
    last_entry_id: int
    holders: tuple[str, ...]


def tail_of(held: Mapping[str, Sequence[tuple[int, int]]]) -> tuple[TailRange, ...]:
    """Divide the listed ids into ranges of entries that the same bookies store."""
    begins: dict[int, set[str]] = {}
    ends: dict[int, set[str]] = {}
    for name, ranges in held.items():
        for first, last in ranges:
            begins.setdefault(first, set()).add(name)
            ends.setdefault(last + 1, set()).add(name)
    tail: list[TailRange] = []
    present: set[str] = set()
    for edge, following in pairwise(sorted(begins.keys() | ends.keys())):
        present = (present - ends.get(edge, set())) | begins.get(edge, set())
        holders = tuple(name for name in held if name in present)
        before = tail[-1] if tail else None
        if before is not None and before.holders == holders and before.last_entry_id == edge - 1:
            tail[-1] = TailRange(before.first_entry_id, following - 1, holders)
        elif holders:
            tail.append(TailRange(edge, following - 1, holders))
    return tuple(tail)


@dataclass(frozen=True, slots=True)
class LedgerExplanation:
    """The state of a ledger, and how a recovery would end now. The object is read-only."""

    metadata: LedgerMetadata
    version: int
    outcomes: tuple[Outcome, ...]
    """The outcomes of simulated recoveries, which get the answers in different orders; at least
    one.

    For a striped ledger, not every order of answers is tried. So a real recovery of a striped
    ledger may end at an entry that is not in `outcomes`, but never below the LAC.
    """
    slots: tuple[SlotFindings, ...] = ()
    """The slots of the last ensemble; empty for a closed ledger, because no bookie is asked."""
    last_add_confirmed: int = NO_ENTRY
    """The highest proven LAC, or, if higher, the entry before the last fragment."""
    tail: tuple[TailRange, ...] = ()
    """The ranges of entries beyond the LAC that bookies list as stored."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Maps a bookie to the reason why its last answer did not help."""

    @property
    def is_decidable(self) -> bool:
        """True if a recovery would succeed now with any order of answers, or has nothing to do."""
        return not any(isinstance(outcome, WouldFail) for outcome in self.outcomes)

    @property
    def fenced(self) -> tuple[str, ...]:
        """Return the bookies that report that they have fenced the ledger."""
        return tuple(slot.bookie_id for slot in self.slots if slot.fenced)

    def verdict(self) -> list[str]:
        """Describe the expected outcome of a recovery, as a list of sentences."""
        found = self.metadata
        if found.is_closed:
            end = "without an entry"
            if found.last_entry_id != NO_ENTRY:
                end = f"at entry {found.last_entry_id}, after {found.length} bytes"
            return [f"the ledger is closed {end}: there is nothing to decide"]
        failure = next((one for one in self.outcomes if isinstance(one, WouldFail)), None)
        if failure is not None:
            return [*self._failure(failure), *self._state()]
        ends = [one for one in self.outcomes if isinstance(one, WouldClose)]
        return [*_close(ends), *self._state()]

    def _state(self) -> Iterator[str]:
        if self.metadata.state is LedgerState.OPEN:
            yield (
                "the ledger is open: a live writer may still append, and this verdict is about "
                "this moment"
            )
        else:
            yield "a recovery has begun and has not ended: it runs, or it failed"
        if self.fenced:
            yield f"fenced on {', '.join(self.fenced)}: these bookies refuse the writer"
        elif self.slots:
            yield "no bookie that answered says that it is fenced"

    def _failure(self, failure: WouldFail) -> Iterator[str]:
        match failure.state:
            case RecoveryState.FENCING:
                yield "a recovery could not decide now: too few bookies can be fenced"
            case RecoveryState.READING:
                yield f"a recovery could not decide now whether entry {failure.entry_id} exists"
            case RecoveryState.READDING:
                yield f"a recovery could not store entry {failure.entry_id} again"
            case RecoveryState.MEASURING:
                yield f"a recovery could not read entry {failure.entry_id} for the length"
            case _:
                yield f"a recovery would fail: {failure.error}"
        if not failure.shortfalls:
            yield f"the reason: {failure.error}"
        for lack in failure.shortfalls:
            missing = ", ".join(
                f"{name} ({self.reasons.get(name, 'no helpful answer')})" for name in lack.missing
            )
            bookies = "bookie" if lack.needed == 1 else "bookies"
            yield (
                f"a recovery would need answers of at least {lack.needed} more {bookies} of write "
                f"set {{{', '.join(lack.write_set)}}}: {missing}"
            )


def _close(outcomes: Sequence[WouldClose]) -> Iterator[str]:
    lowest = min(one.last_entry_id for one in outcomes)
    highest = max(one.last_entry_id for one in outcomes)
    if lowest < highest:
        yield (
            f"a recovery would close it at an entry from {lowest} to {highest}: "
            "the bookies that answer first decide"
        )
    elif highest == NO_ENTRY:
        yield "a recovery would close it without an entry"
    else:
        yield f"a recovery would close it at entry {highest}"
    readded = {one.first_readded_id for one in outcomes}
    at_most = "" if lowest == highest and len(readded) == 1 else "at most "
    if first_ids := readded - {NO_ENTRY}:
        first = min(first_ids)
        which = f"entry {first}" if first == highest else f"entries {first} to {highest}"
        yield f"it would store {at_most}{which} again"
    if newcomers := sorted({name for one in outcomes for name in one.newcomers}):
        yield (
            f"{', '.join(newcomers)} would take over slots of bookies that fail, if they store "
            "the entries"
        )
