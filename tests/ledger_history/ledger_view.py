"""One ledger's part of a history, indexed for the rules; and where the rules put what they find."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from tests.ledger_history.ledger_events import (
    AppendEvent,
    BookieEvent,
    CloseEvent,
    DeleteEvent,
    EntryCopy,
    EventOutcome,
    FinalLedger,
    FinalLedgerState,
    ForceEvent,
    LedgerEvent,
    LedgerHistory,
    OpenEvent,
    PayloadDigest,
    ReadEvent,
    TailEvent,
    UnconfirmedReadEvent,
)

E = TypeVar("E", bound=LedgerEvent)

WITNESS_EVENTS_MAX = 10
VIOLATIONS_OF_A_RULE_MAX = 20
"""For each rule and ledger: one fault often shows at each entry."""

Witness: TypeAlias = LedgerEvent | BookieEvent | FinalLedger


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that the history breaks."""

    rule: str
    """C1 to C16."""
    ledger_id: int
    message: str
    witness: tuple[Witness, ...] = ()
    """At most ten events that show it."""


@dataclass(slots=True)
class Findings:
    """What the rules found: violations, and reasons why nothing can be said."""

    violations: list[Violation] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    _counts: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, rule: str, ledger_id: int, message: str, *witness: Witness) -> None:
        """Record a violation."""
        self._counts[rule, ledger_id] += 1
        if self._counts[rule, ledger_id] <= VIOLATIONS_OF_A_RULE_MAX:
            events = witness[:WITNESS_EVENTS_MAX]
            self.violations.append(Violation(rule, ledger_id, message, events))


@dataclass(frozen=True, slots=True)
class Ending:
    """Somebody was told where the ledger ends."""

    event: CloseEvent | OpenEvent
    last_entry_id: int
    length: int


class LedgerView:
    """One ledger of a history."""

    def __init__(
        self,
        ledger_id: int,
        events: list[LedgerEvent],
        final: FinalLedger | None,
        history: LedgerHistory,
    ) -> None:
        self.ledger_id = ledger_id
        self.events = events
        self.history = history
        self.state = history.final
        self.final = final

    def of(self, kind: type[E]) -> list[E]:
        """The operations of one kind, in the order of their calls."""
        return [event for event in self.events if isinstance(event, kind)]

    @cached_property
    def appends(self) -> list[AppendEvent]:
        """All appends, in the order of their calls."""
        return self.of(AppendEvent)

    @cached_property
    def writers(self) -> dict[str, list[AppendEvent]]:
        """The appends of each writer that may have had an effect, in the order of their calls."""
        writers: defaultdict[str, list[AppendEvent]] = defaultdict(list)
        for append in self.appends:
            if append.outcome is not EventOutcome.FAIL:
                writers[append.handle].append(append)
        return writers

    @cached_property
    def attempts(self) -> dict[PayloadDigest, tuple[AppendEvent, int]]:
        """The append of each payload, and the payload's position in it."""
        return {
            digest: (append, position)
            for append in self.appends
            for position, digest in enumerate(append.digests)
        }

    @cached_property
    def acknowledged(self) -> dict[int, tuple[PayloadDigest, AppendEvent]]:
        """What was acknowledged under each id."""
        return {
            entry_id: (digest, append)
            for append in self.appends
            if append.is_ok
            for entry_id, digest in zip(append.entry_ids, append.digests, strict=False)
        }

    @cached_property
    def _forced_until(self) -> dict[str, int]:
        """By writer: the call of its last force or close that succeeded."""
        return {
            event.handle: event.index
            for event in self.events
            if event.is_ok and isinstance(event, ForceEvent | CloseEvent)
        }

    def is_durable(self, append: AppendEvent) -> bool:
        """Whether its acknowledgement promised that no entry gets lost.

        With deferred sync only a force or close that was called later promises it.
        """
        return not append.is_deferred or append.ended < self._forced_until.get(append.handle, -1)

    @cached_property
    def endings(self) -> list[Ending]:
        """Closes, recoveries, and opens of the closed ledger, in the order of their calls."""
        return [
            Ending(event, event.last_entry_id, event.length)
            for event in self.events
            if event.is_ok
            and (
                isinstance(event, CloseEvent)
                or (isinstance(event, OpenEvent) and (event.is_closed or event.is_recovery))
            )
        ]

    @cached_property
    def deletions(self) -> list[DeleteEvent]:
        """All deletions, whatever came of them."""
        return [event for event in self.of(DeleteEvent) if event.outcome is not EventOutcome.FAIL]

    @property
    def closed(self) -> FinalLedger | None:
        """The ledger at the end, if it is closed."""
        if self.final is not None and self.final.state is FinalLedgerState.CLOSED:
            return self.final
        return None

    @property
    def last_entry_id(self) -> int | None:
        """Where it ends. None: nobody closed it."""
        if self.closed is not None:
            return self.closed.last_entry_id
        return self.endings[0].last_entry_id if self.endings else None

    def confirmed_copies(self) -> Iterator[tuple[ReadEvent | TailEvent, EntryCopy]]:
        """All that confirmed reads and tails returned."""
        for event in self.events:
            if isinstance(event, ReadEvent | TailEvent):
                for copy in event.entries:
                    yield event, copy

    def client_copies(self) -> Iterator[tuple[LedgerEvent, EntryCopy]]:
        """All that any client read before the end."""
        yield from self.confirmed_copies()
        for event in self.of(UnconfirmedReadEvent):
            for copy in event.entries:
                yield event, copy

    def final_copies(self) -> Iterator[tuple[str, EntryCopy]]:
        """All copies at the end, and who has them: the last reader, or a bookie."""
        if self.final is None:
            return
        for copy in self.final.entries or ():
            yield "the last reader", copy
        for bookie_id, copies in (self.final.copies or {}).items():
            for entry_id, digest in copies.items():
                yield bookie_id, EntryCopy(entry_id, digest)

    @cached_property
    def _fragment_starts(self) -> list[int]:
        return [one.first_entry_id for one in self.final.fragments] if self.final else []

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that the metadata names for one entry at the end."""
        final = self.final
        if final is None or not final.fragments:
            return ()
        place = bisect.bisect_right(self._fragment_starts, entry_id) - 1
        fragment = final.fragments[max(place, 0)]
        size = len(fragment.bookies)
        return tuple(
            fragment.bookies[(entry_id + copy) % size] for copy in range(final.write_quorum_size)
        )

    def destroyed_holders(self, entry_id: int) -> int:
        """How many bookies of the write set lost data."""
        return len(self.state.destroyed & set(self.write_set(entry_id)))

    def may_be_lost(self, entry_id: int) -> bool:
        """True if so much data was destroyed that an acknowledged entry may be gone."""
        quorum = 1 if self.final is None else self.final.ack_quorum_size
        return self.destroyed_holders(entry_id) >= quorum


def views_of(history: LedgerHistory) -> list[LedgerView]:
    """One view for each ledger that any part of the history names."""
    by_ledger: defaultdict[int, list[LedgerEvent]] = defaultdict(list)
    for event in history.events:
        by_ledger[event.ledger_id].append(event)
    finals = {final.ledger_id: final for final in history.final.ledgers}
    return [
        LedgerView(ledger_id, by_ledger[ledger_id], finals.get(ledger_id), history)
        for ledger_id in sorted({*by_ledger, *finals})
    ]
