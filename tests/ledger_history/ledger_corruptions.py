"""Ways to make a valid history of ledgers an invalid one, each with the rule that must find it.

Those of readers, copies and deletions are in `reading_corruptions`, those of bookies in
`bookie_corruptions`. Both register them here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.ledger_history.ledger_events import (
    NO_ENTRY,
    AppendEvent,
    CloseEvent,
    EntryCopy,
    EventOutcome,
    FinalLedgerState,
    LedgerEvent,
    LedgerHistory,
    ReadEvent,
    TailEvent,
    digest_of,
)
from tests.ledger_history.ledger_view import LedgerView, views_of

E = TypeVar("E", bound=LedgerEvent)
T = TypeVar("T")

LATE = 10**9
"""A number after everything in a history."""
INVENTED = digest_of(b"nobody appended this")

Corrupting = Callable[[LedgerHistory, random.Random], LedgerHistory | None]


@dataclass(frozen=True, slots=True)
class LedgerCorruption:
    """`apply` returns None if it finds nothing to damage."""

    rule: str
    apply: Corrupting


LEDGER_CORRUPTIONS: dict[str, LedgerCorruption] = {}


def must_break(rule: str) -> Callable[[Corrupting], Corrupting]:
    """Register a corruption."""

    def register(apply: Corrupting) -> Corrupting:
        LEDGER_CORRUPTIONS[apply.__name__] = LedgerCorruption(rule, apply)
        return apply

    return register


# ---- finding and replacing


def one_of(rng: random.Random, candidates: Iterable[T]) -> T | None:
    """One of them, or None."""
    found = list(candidates)
    return rng.choice(found) if found else None


def events_of(history: LedgerHistory, kind: type[E], *, ok: bool = True) -> list[E]:
    """The operations of a kind that succeeded; all of them if not `ok`."""
    return [
        event for event in history.events if isinstance(event, kind) and (event.is_ok or not ok)
    ]


def with_event(history: LedgerHistory, event: LedgerEvent, **changes: Any) -> LedgerHistory:
    """The history with one operation changed."""
    events = tuple(
        replace(one, **changes) if one.index == event.index else one for one in history.events
    )
    return replace(history, events=events)


def plus_event(history: LedgerHistory, event: LedgerEvent) -> LedgerHistory:
    """The history with one more operation that succeeded, after all others."""
    late = replace(event, index=LATE, end_index=LATE + 1, outcome=EventOutcome.OK)
    return replace(history, events=(*history.events, late))


def with_final(history: LedgerHistory, ledger_id: int, **changes: Any) -> LedgerHistory:
    """The history with the end of one ledger changed."""
    ledgers = tuple(
        replace(one, **changes) if one.ledger_id == ledger_id else one
        for one in history.final.ledgers
    )
    return replace(history, final=replace(history.final, ledgers=ledgers))


def closed_views(history: LedgerHistory) -> list[LedgerView]:
    """The ledgers that are closed at the end, and not empty."""
    return [
        view
        for view in views_of(history)
        if view.closed is not None and view.closed.last_entry_id != NO_ENTRY
    ]


def shortened(history: LedgerHistory, view: LedgerView, last: int) -> LedgerHistory:
    """The ledger ends earlier, and everybody says so: only its entries tell."""
    final = view.closed
    assert final is not None
    entries = tuple(copy for copy in final.entries or () if copy.entry_id <= last)
    length = sum(copy.digest.size for copy in entries)
    for ending in view.endings:
        history = with_event(history, ending.event, last_entry_id=last, length=length)
    return with_final(history, view.ledger_id, last_entry_id=last, length=length, entries=entries)


def replaced_digest(entries: tuple[EntryCopy, ...], place: int) -> tuple[EntryCopy, ...]:
    """One entry has a payload that nobody appended."""
    wrong = entries[place]._replace(digest=INVENTED)
    return (*entries[:place], wrong, *entries[place + 1 :])


def swapped(entries: tuple[T, ...], place: int) -> tuple[T, ...]:
    """An element and its successor have changed places."""
    return (*entries[:place], entries[place + 1], entries[place], *entries[place + 2 :])


# ---- C1, C2: payloads


@must_break("C1")
def a_read_returns_an_invented_payload(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if one.entries))
    if read is None:
        return None
    place = rng.randrange(len(read.entries))
    return with_event(history, read, entries=replaced_digest(read.entries, place))


@must_break("C1")
def a_tail_swaps_two_payloads(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    tail = one_of(rng, (one for one in events_of(history, TailEvent) if len(one.entries) > 1))
    if tail is None:
        return None
    first, second, *rest = tail.entries
    entries = (EntryCopy(first[0], second[1]), EntryCopy(second[0], first[1]), *rest)
    return with_event(history, tail, entries=entries)


@must_break("C1")
def an_entry_is_read_before_its_append(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if one.entries))
    return None if read is None else with_event(history, read, index=-2, end_index=-1)


@must_break("C1")
def the_append_of_a_read_entry_failed(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    read = {copy.digest for view in views_of(history) for _, copy in view.confirmed_copies()}
    append = one_of(
        rng, (one for one in events_of(history, AppendEvent) if set(one.digests) & read)
    )
    if append is None:
        return None
    return with_event(history, append, outcome=EventOutcome.FAIL, entry_ids=())


@must_break("C1")
def a_bookie_holds_rubbish_at_the_end(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    return _with_wrong_copy(history, rng)


@must_break("C2")
def a_bookie_differs_from_the_readers(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    return _with_wrong_copy(history, rng)


def _with_wrong_copy(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    view = one_of(rng, (one for one in closed_views(history) if one.final and one.final.entries))
    if view is None:
        return None
    final = view.final
    assert final is not None
    assert final.entries is not None
    entry_id = rng.choice(final.entries).entry_id
    copies = {name: dict(entries) for name, entries in (final.copies or {}).items()}
    holder = one_of(rng, (name for name in copies if entry_id in copies[name]))
    if holder is None:
        return None
    copies[holder][entry_id] = INVENTED
    return with_final(history, view.ledger_id, copies=copies)


@must_break("C2")
def two_reads_of_an_entry_differ(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    seen: set[tuple[int, int]] = set()
    again: list[tuple[ReadEvent, int]] = []
    for read in events_of(history, ReadEvent):
        for place, copy in enumerate(read.entries):
            if (read.ledger_id, copy.entry_id) in seen:
                again.append((read, place))
            seen.add((read.ledger_id, copy.entry_id))
    found = one_of(rng, again)
    if found is None:
        return None
    read, place = found
    return with_event(history, read, entries=replaced_digest(read.entries, place))


# ---- C3: ids


@must_break("C3")
def an_id_is_skipped(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    # The last append of its ledger, so that the gap cannot be one of an unknown append.
    view = one_of(rng, (one for one in views_of(history) if one.acknowledged))
    if view is None:
        return None
    append = view.acknowledged[max(view.acknowledged)][1]
    ids = tuple(entry_id + 100 for entry_id in append.entry_ids)
    return with_event(history, append, entry_ids=ids)


@must_break("C3")
def an_id_is_acknowledged_twice(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    append = one_of(rng, events_of(history, AppendEvent))
    if append is None:
        return None
    other = replace(append, digests=(INVENTED,), entry_ids=append.entry_ids[:1], index=LATE)
    return plus_event(history, replace(other, handle="writer-of-somebody-else"))


@must_break("C3")
def acks_are_out_of_order(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    for view in views_of(history):
        for appends in view.writers.values():
            done = [one for one in appends if one.is_ok]
            if len(done) > 1:
                one, other = done[:2]
                history = with_event(history, one, end_index=other.end_index)
                return with_event(history, other, end_index=one.end_index)
    return None


@must_break("C3")
def a_batch_has_a_gap(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    batches = (one for one in events_of(history, AppendEvent) if len(one.entry_ids) > 1)
    append = one_of(rng, batches)
    if append is None:
        return None
    ids = (*append.entry_ids[:-1], append.entry_ids[-1] + 1)
    return with_event(history, append, entry_ids=ids)


@must_break("C3")
def an_unknown_append_overtook_another(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    view = one_of(rng, (one for one in views_of(history) if len(one.acknowledged) > 2))
    if view is None:
        return None
    first, last = min(view.acknowledged), max(view.acknowledged)
    one, other = view.acknowledged[first][1], view.acknowledged[last][1]
    if one.index == other.index or view.closed is None or not view.closed.entries:
        return None
    unknown = {"outcome": EventOutcome.INFO, "entry_ids": ()}
    history = with_event(history, one, **unknown, index=other.index)
    return with_event(history, other, **unknown, index=one.index)


# ---- C4 to C7: the end


@must_break("C4")
def an_acknowledged_entry_is_gone(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    view = one_of(rng, _with_safe_entries(history))
    if view is None:
        return None
    final = view.closed
    assert final is not None
    gone = rng.choice([e for e in view.acknowledged if not view.may_be_lost(e)])
    entries = tuple(copy for copy in final.entries or () if copy.entry_id != gone)
    return with_final(history, view.ledger_id, entries=entries)


def _with_safe_entries(history: LedgerHistory) -> list[LedgerView]:
    return [
        view
        for view in closed_views(history)
        if any(not view.may_be_lost(entry_id) for entry_id in view.acknowledged)
    ]


@must_break("C4")
def two_payloads_are_swapped_at_the_end(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in closed_views(history):
        entries = () if view.closed is None else view.closed.entries or ()
        if len(entries) > 1 and entries[0].entry_id in view.acknowledged:
            first, second, *rest = entries
            wrong = (EntryCopy(first[0], second[1]), EntryCopy(second[0], first[1]), *rest)
            return with_final(history, view.ledger_id, entries=wrong)
    return None


@must_break("C4")
def the_ledger_ends_before_an_acknowledged_entry(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    view = one_of(rng, _with_safe_entries(history))
    if view is None:
        return None
    safe = [entry_id for entry_id in view.acknowledged if not view.may_be_lost(entry_id)]
    return shortened(history, view, rng.choice(safe) - 1)


@must_break("C4")
def the_last_read_is_out_of_order(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in closed_views(history):
        entries = () if view.closed is None else view.closed.entries or ()
        if len(entries) > 1:
            return with_final(history, view.ledger_id, entries=swapped(entries, 0))
    return None


@must_break("C5")
def the_ledger_ends_before_an_entry_that_was_read(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in closed_views(history):
        read = {copy.entry_id for _, copy in view.confirmed_copies()}
        if read:
            return shortened(history, view, max(read) - 1)
    return None


@must_break("C5")
def a_tail_returns_a_dropped_entry(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in views_of(history):
        final = view.closed
        dropped = [one for one in view.appends if one.outcome is EventOutcome.INFO]
        if final is None or not dropped:
            continue
        copy = EntryCopy(final.last_entry_id + 1, dropped[-1].digests[0])
        tail = TailEvent(
            process="tailer",
            ledger_id=view.ledger_id,
            handle="phantom",
            start=copy.entry_id,
            entries=(copy,),
        )
        return plus_event(history, tail)
    return None


@must_break("C6")
def an_append_succeeds_after_the_end(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ended = (one for one in closed_views(history) if one.endings and one.acknowledged)
    view = one_of(rng, ended)
    if view is None:
        return None
    last = max(view.acknowledged)
    digest, append = view.acknowledged[last]
    return plus_event(history, replace(append, digests=(digest,), entry_ids=(last,)))


@must_break("C6")
def a_dropped_append_was_acknowledged(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in views_of(history):
        dropped = [one for one in view.appends if one.outcome is EventOutcome.INFO]
        if view.closed is not None and dropped:
            append, following = dropped[-1], view.closed.last_entry_id + 1
            return with_event(
                history,
                append,
                outcome=EventOutcome.OK,
                end_index=append.index,
                entry_ids=tuple(range(following, following + len(append.digests))),
            )
    return None


@must_break("C7")
def two_recoveries_disagree(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    view = one_of(rng, (one for one in views_of(history) if one.endings))
    if view is None:
        return None
    ending = rng.choice(view.endings)
    other = replace(ending.event, last_entry_id=ending.last_entry_id + 1)
    return plus_event(history, other)


@must_break("C7")
def a_reader_is_told_another_length(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    view = one_of(rng, (one for one in views_of(history) if one.endings))
    if view is None:
        return None
    ending = rng.choice(view.endings)
    return plus_event(history, replace(ending.event, length=ending.length + 1))


@must_break("C7")
def the_length_is_wrong(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    for view in closed_views(history):
        final = view.closed
        assert final is not None
        if len(final.entries or ()) == final.last_entry_id + 1:
            for ending in view.endings:
                history = with_event(history, ending.event, length=final.length + 7)
            return with_final(history, view.ledger_id, length=final.length + 7)
    return None


@must_break("C7")
def a_closed_ledger_is_open_again(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    view = one_of(rng, (one for one in views_of(history) if one.closed and one.endings))
    if view is None:
        return None
    return with_final(history, view.ledger_id, state=FinalLedgerState.OPEN, entries=None)


@must_break("C7")
def the_writer_closed_elsewhere(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    close = one_of(rng, events_of(history, CloseEvent))
    if close is None:
        return None
    return with_event(history, close, last_entry_id=close.last_entry_id - 1)
