"""Corruptions of what readers saw, of copies and of deletions. See `ledger_corruptions`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.ledger_history.ledger_corruptions import (
    INVENTED,
    LATE,
    LEDGER_CORRUPTIONS,
    closed_views,
    events_of,
    must_break,
    one_of,
    plus_event,
    swapped,
    with_event,
    with_final,
)
from tests.ledger_history.ledger_events import (
    NO_ENTRY,
    AppendEvent,
    DeleteEvent,
    EntryCopy,
    EventOutcome,
    FinalLedger,
    FinalLedgerState,
    LedgerHistory,
    OpenEvent,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
)
from tests.ledger_history.ledger_view import views_of

__all__ = ["LEDGER_CORRUPTIONS"]

# ---- C8 to C12: readers


@must_break("C8")
def a_lac_names_what_nobody_attempted(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    lac = one_of(rng, events_of(history, ReadLacEvent))
    return None if lac is None else with_event(history, lac, last_entry_id=10_000)


@must_break("C8")
def a_lac_is_beyond_the_end(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    for view in views_of(history):
        final = view.closed
        dropped = final and any(one.outcome is EventOutcome.INFO for one in view.appends)
        if final is not None and dropped:
            lac = ReadLacEvent(
                process="p", ledger_id=view.ledger_id, last_entry_id=final.last_entry_id + 1
            )
            return plus_event(history, lac)
    return None


@must_break("C8")
def a_lac_names_what_was_not_acknowledged_yet(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    for view in views_of(history):
        # An unknown append before it might have been confirmed.
        append = next((one for one in view.appends if one.outcome is not EventOutcome.FAIL), None)
        recoveries = [one.index for one in view.of(OpenEvent) if one.is_recovery]
        if append is None or not append.is_ok or append.end_index is None:
            continue
        if append.end_index > min(recoveries, default=LATE):
            continue
        lac = ReadLacEvent(
            process="p",
            ledger_id=append.ledger_id,
            index=append.end_index - 1,
            end_index=append.end_index - 1,
            last_entry_id=append.entry_ids[-1],
            outcome=EventOutcome.OK,
        )
        return replace(history, events=(*history.events, lac))
    return None


@must_break("C9")
def a_lac_falls(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    risen = (one for one in events_of(history, ReadLacEvent) if one.last_entry_id > NO_ENTRY)
    lac = one_of(rng, risen)
    if lac is None:
        return None
    return plus_event(history, replace(lac, last_entry_id=lac.last_entry_id - 1))


@must_break("C9")
def an_open_knew_more(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    opened = one_of(
        rng, (one for one in events_of(history, OpenEvent) if one.last_entry_id > NO_ENTRY)
    )
    if opened is None:
        return None
    lac = ReadLacEvent(process="p", ledger_id=opened.ledger_id, handle=opened.handle)
    return plus_event(history, lac)


@must_break("C10")
def a_known_entry_is_denied(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    views = {view.ledger_id: view for view in closed_views(history)}
    known = one_of(
        rng,
        (
            one
            for one in events_of(history, ReadLacEvent)
            if one.last_entry_id > NO_ENTRY
            and one.ledger_id in views
            and not views[one.ledger_id].may_be_lost(one.last_entry_id)
        ),
    )
    if known is None:
        return None
    last = known.last_entry_id
    read = ReadEvent(
        process=known.process,
        ledger_id=known.ledger_id,
        handle=known.handle,
        first=last,
        last=last,
        denied=last,
    )
    history = plus_event(history, read)
    return with_event(history, history.events[-1], outcome=EventOutcome.FAIL)


@must_break("C10")
def a_tail_is_denied_an_entry(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    safe = {view.ledger_id for view in closed_views(history) if not view.may_be_lost(0)}
    tail = one_of(
        rng, (one for one in events_of(history, TailEvent, ok=False) if one.ledger_id in safe)
    )
    if tail is None:
        return None
    return with_event(
        history, tail, outcome=EventOutcome.FAIL, end_index=tail.index, entries=(), denied=0
    )


@must_break("C11")
def a_tail_has_a_gap(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    return _with_tail(
        history, rng, lambda entries, place: (*entries[:place], *entries[place + 1 :])
    )


@must_break("C11")
def a_tail_repeats_an_entry(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    return _with_tail(
        history, rng, lambda entries, place: (*entries[: place + 1], *entries[place:])
    )


@must_break("C11")
def a_tail_is_out_of_order(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    return _with_tail(history, rng, swapped)


def _with_tail(
    history: LedgerHistory,
    rng: random.Random,
    change: Callable[[tuple[EntryCopy, ...], int], tuple[EntryCopy, ...]],
) -> LedgerHistory | None:
    tail = one_of(rng, (one for one in events_of(history, TailEvent) if len(one.entries) > 1))
    if tail is None:
        return None
    place = rng.randrange(len(tail.entries) - 1)
    return with_event(history, tail, entries=change(tail.entries, place))


@must_break("C11")
def a_tail_begins_late(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    begun = (one for one in events_of(history, TailEvent) if len(one.entries) > 1)
    tail = next((one for one in begun if one.entries[0].entry_id == one.start), None)
    if tail is None:
        return None
    return with_event(history, tail, entries=tail.entries[1:], start=tail.start - 1)


@must_break("C12")
def a_range_has_a_hole(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if len(one.entries) > 2))
    if read is None:
        return None
    return with_event(history, read, entries=(*read.entries[:1], *read.entries[2:]))


@must_break("C12")
def a_range_ends_early(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if one.entries))
    return None if read is None else with_event(history, read, entries=read.entries[:-1])


@must_break("C12")
def a_range_is_out_of_order(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if len(one.entries) > 1))
    return None if read is None else with_event(history, read, entries=swapped(read.entries, 0))


@must_break("C12")
def a_failed_read_skipped_an_entry(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    read = one_of(rng, (one for one in events_of(history, ReadEvent) if len(one.entries) > 1))
    if read is None:
        return None
    return with_event(history, read, outcome=EventOutcome.FAIL, entries=read.entries[1:])


# ---- C13, C14: copies, deletion


@must_break("C13")
def an_entry_has_too_few_copies(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    for view in closed_views(history):
        safe = [e for e in view.acknowledged if not view.may_be_lost(e)]
        if safe and view.final is not None:
            entry_id = rng.choice(safe)
            # Copies of bookies outside of the write set do not help.
            holders = view.write_set(entry_id)
            copies = _without(view.final, entry_id, holders)
            return with_final(history, view.ledger_id, copies=copies)
    return None


@must_break("C13")
def repair_left_one_copy_out(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    if not history.final.is_repaired:
        return None
    for view in closed_views(history):
        if view.final is not None and not view.may_be_lost(0):
            holder = rng.choice(view.write_set(0))
            copies = _without(view.final, 0, [holder])
            return with_final(history, view.ledger_id, copies=copies)
    return None


def _without(final: FinalLedger, entry_id: int, bookies: Iterable[str]) -> dict[str, Any]:
    copies = {name: dict(entries) for name, entries in (final.copies or {}).items()}
    for name in bookies:
        copies[name].pop(entry_id, None)
    return copies


@must_break("C14")
def a_deleted_ledger_is_opened(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    delete = one_of(rng, events_of(history, DeleteEvent))
    if delete is None:
        return None
    opened = OpenEvent(process="p", ledger_id=delete.ledger_id, handle="opened-late")
    return plus_event(history, opened)


@must_break("C14")
def an_append_succeeds_after_the_deletion(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    delete = one_of(rng, events_of(history, DeleteEvent))
    if delete is None:
        return None
    append = AppendEvent(
        process="p",
        ledger_id=delete.ledger_id,
        handle="writer-of-the-dead",
        digests=(INVENTED,),
        entry_ids=(0,),
    )
    return plus_event(history, append)


@must_break("C14")
def a_deleted_ledger_is_there_at_the_end(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    delete = one_of(rng, events_of(history, DeleteEvent))
    if delete is None:
        return None
    return with_final(history, delete.ledger_id, state=FinalLedgerState.OPEN)


@must_break("C14")
def data_of_a_deleted_ledger_stays(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    delete = one_of(rng, events_of(history, DeleteEvent))
    if delete is None or not history.final.is_repaired:
        return None
    return with_final(history, delete.ledger_id, copies={"b1": {0: INVENTED}})


@must_break("C14")
def a_ledger_vanishes(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    view = one_of(rng, (one for one in views_of(history) if not one.deletions))
    if view is None:
        return None
    return with_final(history, view.ledger_id, state=FinalLedgerState.DELETED)
