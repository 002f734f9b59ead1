"""C8 to C12: LACs are true and rise, known entries are there, tails and ranges are whole."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable

from tests.ledger_history.ledger_events import (
    NO_ENTRY,
    AppendEvent,
    EventOutcome,
    LedgerEvent,
    OpenEvent,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
    UnconfirmedReadEvent,
)
from tests.ledger_history.ledger_view import Findings, LedgerView


def check_lac_truth(view: LedgerView, findings: Findings) -> None:
    """C8: each LAC names an entry that was attempted, and that the ledger has at its end.

    Until a recovery begins, the entry is also an acknowledged one. An append counts as a whole once
    it returned. Before that its last entry cannot be confirmed.
    """
    last = view.last_entry_id
    attempted = _Attempted(view)
    recovering = min((one.index for one in view.of(OpenEvent) if one.is_recovery), default=math.inf)
    confirmed = _Confirmed(view)
    told = sorted(_told_lacs(view), key=lambda one: one[0].ended)
    for event, lac in told:
        known = attempted.until(event.ended)
        if lac > known:
            message = f"the LAC is {lac}, and only {known} was attempted"
            findings.add("C8", view.ledger_id, message, event)
        elif last is not None and lac > last:
            message = f"the LAC is {lac}, and the ledger ends at {last}"
            findings.add("C8", view.ledger_id, message, event)
        elif event.ended < recovering and lac > (possible := confirmed.until(event.ended)):
            message = f"the LAC is {lac}, and at most {possible} may have been acknowledged"
            findings.add("C8", view.ledger_id, message, event)


def _told_lacs(view: LedgerView) -> Iterable[tuple[LedgerEvent, int]]:
    for event in view.events:
        if isinstance(event, ReadLacEvent | OpenEvent) and event.is_ok:
            yield event, event.last_entry_id


class _Attempted:
    """The highest id that may have been attempted, as the history goes on."""

    def __init__(self, view: LedgerView) -> None:
        self._calls: list[int] = []
        self._highest: list[int] = []
        nexts: dict[str, int] = {}
        highest = NO_ENTRY
        for append in view.appends:
            if append.outcome is EventOutcome.FAIL:
                continue
            following = nexts.get(append.handle, 0) + len(append.digests)
            if append.is_ok and append.entry_ids:
                following = append.entry_ids[-1] + 1
            nexts[append.handle] = following
            highest = max(highest, following - 1)
            self._calls.append(append.index)
            self._highest.append(highest)

    def until(self, moment: float) -> int:
        """What was attempted by appends that were called before `moment`."""
        place = bisect.bisect_left(self._calls, moment)
        return self._highest[place - 1] if place else NO_ENTRY


class _Confirmed:
    """The highest id that a writer may have confirmed, asked at moments that rise."""

    def __init__(self, view: LedgerView) -> None:
        self._writers = list(view.writers.values())
        self._places = [0] * len(self._writers)
        self._nexts = [0] * len(self._writers)

    def until(self, moment: float) -> int:
        """What may have been confirmed before `moment`."""
        highest = NO_ENTRY
        for number, appends in enumerate(self._writers):
            highest = max(highest, self._of_writer(number, appends, moment))
        return highest

    def _of_writer(self, number: int, appends: list[AppendEvent], moment: float) -> int:
        while (place := self._places[number]) < len(appends):
            append = appends[place]
            if append.index > moment:
                return self._nexts[number] - 1
            if append.is_ok and append.ended > moment:
                # Its last entry is not confirmed. Later appends follow it.
                return self._nexts[number] - 1 + len(append.digests) - 1
            is_known = append.is_ok and append.entry_ids
            following = self._nexts[number] + len(append.digests)
            self._nexts[number] = append.entry_ids[-1] + 1 if is_known else following
            self._places[number] += 1
        return self._nexts[number] - 1


def check_lac_order(view: LedgerView, findings: Findings) -> None:
    """C9: the LACs of one reader never fall. Those of two readers may differ."""
    told: defaultdict[str, list[tuple[LedgerEvent, int]]] = defaultdict(list)
    for event, lac in _told_lacs(view):
        if event.handle:
            told[event.handle].append((event, lac))
    for lacs in told.values():
        known = _Known(lacs)
        for event, lac in lacs:
            before = known.before(event.index)
            if before is not None and lac < before[1]:
                message = f"reader {event.handle} got the LAC {lac} after {before[1]}"
                findings.add("C9", view.ledger_id, message, before[0], event)


class _Known:
    """The highest entry that was known to be confirmed, at any moment."""

    def __init__(self, told: Iterable[tuple[LedgerEvent, int]]) -> None:
        self._ends: list[float] = []
        self._best: list[tuple[LedgerEvent, int]] = []
        for event, lac in sorted(told, key=lambda one: one[0].ended):
            best = (event, lac)
            if self._best and self._best[-1][1] >= lac:
                best = self._best[-1]
            self._ends.append(event.ended)
            self._best.append(best)

    def before(self, moment: float) -> tuple[LedgerEvent, int] | None:
        """The highest of what was told before `moment`, and by which event."""
        place = bisect.bisect_left(self._ends, moment)
        return self._best[place - 1] if place else None


def check_denials(view: LedgerView, findings: Findings) -> None:
    """C10: a reader that knows a LAC never hears "no such entry" up to it.

    Entries it has read count likewise. A tail asks for nothing else. Deletion excuses a denial,
    and so does the loss of an ack quorum.
    """
    told: defaultdict[str, list[tuple[LedgerEvent, int]]] = defaultdict(list)
    for event, lac in _told_lacs(view):
        told[event.handle].append((event, lac))
    for read, copy in view.confirmed_copies():
        told[read.handle].append((read, copy.entry_id))
    known = {handle: _Known(lacs) for handle, lacs in told.items() if handle}
    deleting = min((event.index for event in view.deletions), default=math.inf)
    for tail in view.of(TailEvent):
        is_excused = tail.ended > deleting or view.may_be_lost(max(tail.denied or 0, 0))
        if tail.denied is not None and not is_excused:
            findings.add("C10", view.ledger_id, f"a tail was denied entry {tail.denied}", tail)
    for read in view.of(ReadEvent):
        if read.denied is None or read.handle not in known or read.ended > deleting:
            continue
        before = known[read.handle].before(read.index)
        if before is None or read.denied > before[1] or view.may_be_lost(read.denied):
            continue
        message = f"entry {read.denied} was denied to a reader that knew of {before[1]}"
        findings.add("C10", view.ledger_id, message, before[0], read)


def check_tails(view: LedgerView, findings: Findings) -> None:
    """C11: a tail delivers each entry from its start on, once and in order."""
    following: dict[str, tuple[int, TailEvent | None]] = {}
    for event in view.of(TailEvent):
        wanted, before = following.get(event.handle, (event.start, None))
        for copy in event.entries:
            if copy.entry_id != wanted:
                message = f"tail {event.handle} got entry {copy.entry_id} where {wanted} was due"
                witness = (event,) if before is None else (before, event)
                findings.add("C11", view.ledger_id, message, *witness)
            wanted = copy.entry_id + 1
        following[event.handle] = wanted, event


def check_ranges(view: LedgerView, findings: Findings) -> None:
    """C12: a read that succeeds returns each id of its range, in order.

    A read that failed may have returned a beginning of the range, and so may an unconfirmed read.
    """
    for event in view.events:
        if not isinstance(event, ReadEvent | UnconfirmedReadEvent):
            continue
        ids = [copy.entry_id for copy in event.entries]
        wanted = list(range(event.first, event.last + 1))
        is_whole = event.is_ok and isinstance(event, ReadEvent)
        if ids != (wanted if is_whole else wanted[: len(ids)]):
            message = f"a read of {event.first} to {event.last} returned {_shortened(ids)}"
            findings.add("C12", view.ledger_id, message, event)


def _shortened(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 12 else f"{ids[:6]} … {ids[-6:]}"
