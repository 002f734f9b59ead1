"""Corruptions of what is known of cursors, publications and owners; see `log_corruptions`."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_corruptions import (
    LOG_CORRUPTIONS,
    events_of,
    must_break,
    pick,
    with_changed,
    with_end,
    without_events,
)
from tests.log_history.log_events import (
    BatchPublished,
    CursorCommitted,
    CursorReset,
    CursorSeen,
    CursorTaken,
    FinalPartition,
    ReadingEnded,
    RecordedLogs,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
)

__all__ = ["LOG_CORRUPTIONS"]

# ---- L7


@must_break("L7")
def a_cursor_falls_back(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The next consumer begins before what was committed."""
    history = without_events(history, CursorReset, CursorSeen)
    commit = pick(rng, (c for c in events_of(history, CursorCommitted, ok=True) if c.offset))
    if commit is None:
        return None
    later = CursorTaken(
        partition=commit.partition,
        handle="late",
        cursor=commit.cursor,
        epoch=10**6,
        offset=commit.offset - 1,
        called=10**8,
        returned=10**8 + 1,
        outcome=EventOutcome.OK,
    )
    return replace(history, events=(*history.events, later))


@must_break("L7")
def two_consumers_have_one_epoch(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The token fences nobody."""
    taken = pick(rng, events_of(history, CursorTaken))
    if taken is None:
        return None
    return replace(history, events=(*history.events, replace(taken, handle="another")))


@must_break("L7")
def a_commit_is_late(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """It succeeds after another consumer has taken the cursor."""
    taken = events_of(history, CursorTaken)
    last = {
        one.partition: max(t.epoch for t in taken if t.partition == one.partition) for one in taken
    }
    commit = pick(
        rng,
        (
            one
            for one in events_of(history, CursorCommitted, ok=True)
            if one.epoch < last[one.partition]
        ),
    )
    return None if commit is None else with_changed(history, commit, called=10**8, returned=10**8)


@must_break("L7")
def a_commit_is_in_a_foreign_epoch(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """A consumer commits with another one's token."""
    commit = pick(rng, events_of(history, CursorCommitted, ok=True))
    return None if commit is None else with_changed(history, commit, handle="another")


@must_break("L7")
def a_commit_is_lost(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The record at the end is behind the last commit."""
    seen = events_of(history, CursorSeen)
    last = pick(rng, seen)
    if last is None:
        return None
    commit = CursorCommitted(
        partition=last.partition,
        cursor=last.cursor,
        epoch=max(one.epoch for one in seen) + 1,
        offset=10**6,
        outcome=EventOutcome.OK,
        called=10**8,
        returned=10**8,
    )
    end = replace(last, version=10**6, epoch=commit.epoch, called=10**8 + 1)
    return replace(history, events=(*history.events, commit, end))


@must_break("L7")
def epochs_mix(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The record goes back to a former epoch."""
    seen = pick(rng, (one for one in events_of(history, CursorSeen) if one.epoch > 1))
    if seen is None:
        return None
    after = replace(seen, version=10**6, epoch=1, offset=10**6)
    return replace(history, events=(*history.events, after))


# ---- L8


def _new(history: RecordedLogs, values: int = 1) -> list[BatchPublished]:
    """Publications of which all is there at the end."""
    there = {one.value for final in history.final for one in final.records}
    return [
        one
        for one in events_of(history, BatchPublished, ok=True)
        if one.was_new
        and any(len(found) >= values for _, found in one.values)
        and all(value in there for _, found in one.values for value in found)
    ]


def _end(history: RecordedLogs, partition: str) -> FinalPartition:
    return next(one for one in history.final if one.partition == partition)


@must_break("L8")
def a_batch_is_there_in_part(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The last record of a range is missing; others stand in its place."""
    history = without_events(history, RecordsRead, ReadingEnded)
    call = pick(rng, _new(history, 2))
    if call is None:
        return None
    partition, values = next(one for one in call.values if len(one[1]) > 1)
    final = _end(history, partition)
    kept = tuple(one for one in final.records if one.value != values[-1])
    return with_end(history, final, records=kept)


@must_break("L8")
def a_batch_misses_a_partition(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """One of two heads was not changed."""
    history = without_events(history, RecordsRead, ReadingEnded)
    call = pick(
        rng,
        (
            one
            for one in _new(history)
            if len(one.values) == 2
            and not any(_end(history, name).start_offset for name, _ in one.values)
        ),
    )
    if call is None:
        return None
    partition, values = call.values[0]
    final = _end(history, partition)
    kept = tuple(one for one in final.records if one.value not in values)
    return with_end(history, final, records=kept)


@must_break("L8")
def a_batch_is_published_twice(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Another attempt of the same batch is there, too."""
    call = pick(rng, _new(history))
    if call is None:
        return None
    partition = call.values[0][0]
    final = _end(history, partition)
    again = replace(
        call, values=((partition, ("again",)),), called=10**8, outcome=EventOutcome.INFO
    )
    record = SeenRecord(final.end_offset, "again", None, 10**6, 0)
    history = replace(history, events=(*history.events, again))
    end = final.end_offset + 1
    return with_end(history, final, records=(*final.records, record), end_offset=end)


@must_break("L8")
def something_unpublished_is_visible(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """A record of a publication that was refused."""
    call = pick(rng, _new(history))
    if call is None:
        return None
    events = tuple(
        replace(one, outcome=EventOutcome.FAIL)
        if isinstance(one, BatchPublished) and one.values == call.values
        else one
        for one in history.events
    )
    return replace(history, events=events)


@must_break("L8")
def batches_are_in_another_order(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """An older batch stands behind a newer one."""
    calls = _new(history)
    for one in calls:
        for other in calls:
            shared = {name for name, _ in one.values} & {name for name, _ in other.values}
            if one.batch < other.batch and shared:
                events = tuple(
                    replace(
                        event,
                        batch={one.batch: other.batch, other.batch: one.batch}.get(
                            event.batch, event.batch
                        ),
                    )
                    if isinstance(event, BatchPublished)
                    else event
                    for event in history.events
                )
                return replace(history, events=events)
    return None


@must_break("L8")
def a_batch_is_dropped_for_no_reason(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Its publisher is told that it was there before, and nobody published it."""
    last = max((one.batch for one in events_of(history, BatchPublished)), default=None)
    call = pick(rng, events_of(history, BatchPublished, ok=True))
    if last is None or call is None:
        return None
    late = replace(
        call, batch=last + 1, was_new=False, values=((call.values[0][0], ("unpublished",)),)
    )
    return replace(history, events=(*history.events, late))


# ---- L9


def _owners(history: RecordedLogs) -> list[tuple[RecordsAppended, RecordsAppended]]:
    """Acknowledged appends of a former owner and of a later one, of one partition."""
    found = [one for one in events_of(history, RecordsAppended, ok=True) if not one.producer]
    return [
        (one, other)
        for one in found
        for other in found
        if one.partition == other.partition and one.epoch < other.epoch
    ]


@must_break("L9")
def a_former_owner_is_acknowledged(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """It is called after the new owner's first acknowledgement."""
    pair = pick(rng, _owners(history))
    if pair is None:
        return None
    return with_changed(history, pair[0], called=10**8, returned=10**8 + 1)


@must_break("L9")
def a_former_owner_appends_behind(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Its records stand behind those of the new owner."""
    pair = pick(rng, _owners(history))
    if pair is None:
        return None
    one, other = pair
    return with_changed(history, one, offsets=tuple(o + other.offsets[-1] + 1 for o in one.offsets))


@must_break("L9")
def two_owners_have_one_epoch(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Both are acknowledged."""
    pair = pick(rng, _owners(history))
    return None if pair is None else with_changed(history, pair[0], epoch=pair[1].epoch)
