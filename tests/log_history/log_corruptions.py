"""Ways to make a valid history of logs an invalid one, each with the rule that must find it.

Those of cursors, publications and owners are in `owner_corruptions`, which registers them here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    AnyLogEvent,
    FinalPartition,
    LogEvent,
    LogTruncated,
    ReadingBegan,
    ReadingEnded,
    RecordedLogs,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
)

E = TypeVar("E", bound=LogEvent)
T = TypeVar("T")

Corrupting = Callable[[RecordedLogs, random.Random], RecordedLogs | None]


@dataclass(frozen=True, slots=True)
class LogCorruption:
    """`apply` returns None if it finds nothing to damage."""

    rule: str
    apply: Corrupting


LOG_CORRUPTIONS: dict[str, LogCorruption] = {}


def must_break(rule: str) -> Callable[[Corrupting], Corrupting]:
    """Register a corruption."""

    def register(apply: Corrupting) -> Corrupting:
        LOG_CORRUPTIONS[apply.__name__] = LogCorruption(rule, apply)
        return apply

    return register


# ---- finding and replacing


def pick(rng: random.Random, candidates: Iterable[T]) -> T | None:
    """One of them, or None."""
    found = list(candidates)
    return rng.choice(found) if found else None


def events_of(history: RecordedLogs, kind: type[E], *, ok: bool = False) -> list[E]:
    """The events of a kind, or those that succeeded."""
    return [one for one in history.events if isinstance(one, kind) and (one.is_ok or not ok)]


def with_changed(history: RecordedLogs, event: AnyLogEvent, **changes: Any) -> RecordedLogs:
    """The history with one event changed."""
    events = tuple(replace(one, **changes) if one is event else one for one in history.events)
    return replace(history, events=events)


def with_end(history: RecordedLogs, final: FinalPartition, **changes: Any) -> RecordedLogs:
    """The history with one partition's end changed."""
    ends = tuple(replace(one, **changes) if one is final else one for one in history.final)
    return replace(history, final=ends)


def without_events(history: RecordedLogs, *kinds: type[LogEvent]) -> RecordedLogs:
    """The history without the events of some kinds, which would show other violations first."""
    kept = tuple(one for one in history.events if not isinstance(one, kinds))
    return replace(history, events=kept)


def changed(records: Sequence[T], at: int, record: T) -> tuple[T, ...]:
    """The records with another one at a place."""
    return (*records[:at], record, *records[at + 1 :])


def ends_of(history: RecordedLogs, records: int = 1, *, published: bool = False) -> list[Any]:
    """The partitions that have so many records at the end."""
    return [
        one
        for one in history.final
        if len(one.records) >= records and one.is_transactional == published
    ]


def long_batches(history: RecordedLogs, records: int = 2) -> list[RecordsRead]:
    """The batches of so many records, of logs with writers."""
    return [
        one
        for one in events_of(history, RecordsRead)
        if len(one.records) >= records and one.partition.startswith("orders")
    ]


# ---- L1


@must_break("L1")
def an_invented_record_is_read(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """A value that nobody appended."""
    batch = pick(rng, long_batches(history, 1))
    if batch is None:
        return None
    wrong = batch.records[0]._replace(value="invented")
    return with_changed(history, batch, records=changed(batch.records, 0, wrong))


@must_break("L1")
def a_record_has_another_key(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The value is right, the key is not."""
    final = pick(rng, ends_of(history))
    if final is None:
        return None
    at = rng.randrange(len(final.records))
    wrong = final.records[at]._replace(key="another")
    return with_end(history, final, records=changed(final.records, at, wrong))


@must_break("L1")
def a_refused_append_is_there(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Its caller was told that nothing of it was appended."""
    final = pick(rng, ends_of(history))
    seen = {one.value for final in history.final for one in final.records}
    append = pick(
        rng,
        (
            one
            for one in events_of(history, RecordsAppended)
            if one.values[0] in seen and not one.producer
        ),
    )
    if append is None or final is None:
        return None
    return with_changed(history, append, outcome=EventOutcome.FAIL)


@must_break("L1")
def a_record_is_in_another_partition(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """It was appended to this log, and elsewhere."""
    one, other = history.final[0], history.final[1]
    if not one.records or not other.records:
        return None
    wrong = one.records[-1]._replace(value=other.records[-1].value)
    return with_end(history, one, records=changed(one.records, -1 % len(one.records), wrong))


# ---- L2


@must_break("L2")
def two_readers_differ(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """One of them got two records in the other order."""
    batch = pick(rng, long_batches(history))
    if batch is None:
        return None
    first, second, *rest = batch.records
    swapped = (
        second._replace(offset=first.offset),
        first._replace(offset=second.offset),
        *rest,
    )
    return with_changed(history, batch, records=swapped)


@must_break("L2")
def a_record_has_two_ledgers(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Readers found it at the same offset in different ledgers."""
    batch = pick(rng, long_batches(history, 1))
    if batch is None:
        return None
    wrong = batch.records[0]._replace(ledger_id=999)
    return with_changed(history, batch, records=changed(batch.records, 0, wrong))


@must_break("L2")
def an_entry_has_two_offsets(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The offsets of a ledger are counted twice."""
    final = pick(rng, ends_of(history, 2))
    if final is None:
        return None
    first, second = final.records[:2]
    wrong = second._replace(ledger_id=first.ledger_id, entry_id=first.entry_id)
    return with_end(history, final, records=changed(final.records, 1, wrong))


# ---- L3


@must_break("L3")
def an_acknowledged_record_is_lost(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Nobody but its writer knows of it."""
    history = without_events(history, RecordsRead, ReadingEnded)
    told = {value for one in events_of(history, RecordsAppended, ok=True) for value in one.values}
    final = pick(rng, (one for one in history.final if told & {r.value for r in one.records}))
    if final is None:
        return None
    lost = pick(rng, (one for one in final.records if one.value in told))
    assert lost is not None
    kept = tuple(one for one in final.records if one != lost)
    controls = final.controls | {lost.offset}
    return with_end(history, final, records=kept, controls=controls)


@must_break("L3")
def a_record_that_was_read_is_lost(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Its writer was not told that it is there, and a reader saw it."""
    history = without_events(history, RecordsAppended)
    batch = pick(rng, long_batches(history, 1))
    if batch is None:
        return None
    lost = batch.records[-1]
    final = next(one for one in history.final if one.partition == batch.partition)
    if lost.offset < final.start_offset:
        return None
    kept = tuple(one for one in final.records if one.offset != lost.offset)
    return with_end(history, final, records=kept)


@must_break("L3")
def an_acknowledgement_names_another_offset(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """The record is there, one further."""
    starts = {one.partition: one.start_offset for one in history.final}
    append = pick(
        rng,
        (
            one
            for one in events_of(history, RecordsAppended, ok=True)
            if one.offsets[0] >= starts[one.partition]
        ),
    )
    if append is None:
        return None
    return with_changed(history, append, offsets=tuple(one + 1 for one in append.offsets))


@must_break("L3")
def more_is_truncated_than_was_wanted(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """The log begins behind the last truncation."""
    final = pick(rng, ends_of(history, 5))
    if final is None:
        return None
    before = [one.before for one in events_of(history, LogTruncated)]
    start = max([*before, final.start_offset]) + 1
    if start >= final.end_offset:
        return None
    kept = tuple(one for one in final.records if one.offset >= start)
    return with_end(history, final, start_offset=start, records=kept)


@must_break("L3")
def an_acknowledgement_is_too_short(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Fewer offsets than records."""
    append = pick(rng, (one for one in events_of(history, RecordsAppended, ok=True)))
    if append is None:
        return None
    return with_changed(history, append, offsets=append.offsets[:-1])


# ---- L4


def _repeated(final: FinalPartition, record: SeenRecord) -> dict[str, Any]:
    end = final.end_offset
    again = record._replace(offset=end, ledger_id=10**6, entry_id=0)
    return {"records": (*final.records, again), "end_offset": end + 1}


@must_break("L4")
def a_numbered_record_is_there_twice(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """A retry was appended again."""
    numbered = {one.values[0] for one in events_of(history, RecordsAppended) if one.producer}
    final = pick(rng, (one for one in history.final if numbered & {r.value for r in one.records}))
    if final is None:
        return None
    record = next(one for one in final.records if one.value in numbered)
    return with_end(history, final, **_repeated(final, record))


@must_break("L4")
def a_plain_record_is_there_twice(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """A mended log appended again what was written."""
    final = pick(rng, ends_of(history))
    if final is None:
        return None
    return with_end(history, final, **_repeated(final, final.records[-1]))


@must_break("L4")
def a_duplicate_is_told_another_place(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """The answer to a repeat is not that of the first time."""
    append = pick(
        rng, (one for one in events_of(history, RecordsAppended, ok=True) if one.producer)
    )
    if append is None:
        return None
    again = replace(append, offsets=(append.offsets[0] + 1,), called=append.called + 1)
    return replace(history, events=(*history.events, again))


# ---- L5


def _swapped_end(history: RecordedLogs, final: FinalPartition, at: int, by: int) -> RecordedLogs:
    """Two records have changed places, for everybody; nobody was told where they are."""
    one, other = final.records[at], final.records[by]
    records = changed(final.records, at, one._replace(value=other.value, key=other.key))
    records = changed(records, by, other._replace(value=one.value, key=one.key))
    history = with_end(without_events(history, RecordsRead, ReadingEnded), final, records=records)
    events = tuple(
        replace(event, outcome=EventOutcome.INFO, offsets=())
        if isinstance(event, RecordsAppended) and event.is_ok
        else event
        for event in history.events
    )
    return replace(history, events=events)


def _swap_of(
    history: RecordedLogs, rng: random.Random, pairs: Iterable[tuple[str, str]]
) -> RecordedLogs | None:
    wanted = list(pairs)
    rng.shuffle(wanted)
    for final in history.final:
        places = {one.value: at for at, one in enumerate(final.records)}
        for before, after in wanted:
            if before in places and after in places:
                return _swapped_end(history, final, places[before], places[after])
    return None


@must_break("L5")
def a_batch_is_written_in_another_order(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Two records of one call."""
    appends = events_of(history, RecordsAppended)
    return _swap_of(history, rng, (one.values[:2] for one in appends if len(one.values) > 1))  # type: ignore[misc]


@must_break("L5")
def two_calls_are_written_in_another_order(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Records of two calls of one writer."""
    appends = [one for one in events_of(history, RecordsAppended) if not one.producer]
    appends.sort(key=lambda one: (one.handle, one.called))
    pairs = [
        (one.values[0], other.values[0])
        for one, other in pairwise(appends)
        if one.handle == other.handle
    ]
    return _swap_of(history, rng, pairs)


@must_break("L5")
def numbers_are_written_in_another_order(
    history: RecordedLogs, rng: random.Random
) -> RecordedLogs | None:
    """Two records of one producer, perhaps by two writers."""
    appends = [one for one in events_of(history, RecordsAppended) if one.producer]
    appends.sort(key=lambda one: (one.producer, one.sequence))
    pairs = [
        (one.values[0], other.values[0])
        for one, other in pairwise(appends)
        if one.producer == other.producer and one.sequence < other.sequence
    ]
    return _swap_of(history, rng, pairs)


@must_break("L5")
def a_key_is_in_two_partitions(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Both have records of it, and nobody asked for that."""
    one, other = history.final[:2]
    spread = {
        value
        for append in events_of(history, RecordsAppended)
        if append.is_spread
        for value in append.values
    }
    first = pick(rng, (r for r in one.records if r.value in spread))
    second = pick(rng, (r for r in other.records if r.value in spread))
    if first is None or second is None:
        return None
    at = other.records.index(second)
    wrong = second._replace(key=first.key)
    return with_end(history, other, records=changed(other.records, at, wrong))


# ---- L6


@must_break("L6")
def a_reader_leaves_out_a_record(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """In the middle of a batch; the others have it."""
    history = without_events(history, LogTruncated)
    batch = pick(rng, long_batches(history, 3))
    if batch is None:
        return None
    return with_changed(history, batch, records=(batch.records[0], *batch.records[2:]))


@must_break("L6")
def a_reader_loses_a_batch(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """The first of several, or the last before the end that the reader believes in."""
    history = without_events(history, LogTruncated)
    ended = {one.handle for one in events_of(history, ReadingEnded)}
    batch = pick(rng, (one for one in long_batches(history, 1) if one.handle in ended))
    if batch is None:
        return None
    return replace(history, events=tuple(one for one in history.events if one is not batch))


@must_break("L6")
def a_reader_gets_a_record_twice(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """Two batches overlap."""
    batch = pick(rng, long_batches(history, 1))
    if batch is None:
        return None
    records = (*batch.records, batch.records[-1])
    return with_changed(history, batch, records=records)


@must_break("L6")
def a_reader_begins_too_early(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """It got a record from before its start."""
    batch = pick(rng, long_batches(history, 1))
    if batch is None:
        return None
    events = tuple(
        replace(one, offset=batch.records[-1].offset + 1)
        if isinstance(one, ReadingBegan) and one.handle == batch.handle
        else one
        for one in history.events
    )
    return replace(history, events=events)


@must_break("L6")
def a_hole_is_left_in_the_log(history: RecordedLogs, rng: random.Random) -> RecordedLogs | None:
    """An offset without an entry, and nobody missed it."""
    final = pick(rng, ends_of(history))
    if final is None:
        return None
    return with_end(history, final, end_offset=final.end_offset + 1)
