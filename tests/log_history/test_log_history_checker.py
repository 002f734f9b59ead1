"""The checker of logs is checked: it blames no valid history, and finds each corruption."""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    CursorTaken,
    FinalPartition,
    LogTruncated,
    ReadingBegan,
    RecordedLogs,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
    event_of,
    line_of,
)
from tests.log_history.log_history_checker import assert_logs_valid, check_logs
from tests.log_history.log_model import LogModel
from tests.log_history.owner_corruptions import LOG_CORRUPTIONS

SEEDS, SEEDS_OF_A_SOAK = 200, 5000
CORRUPTED_SEEDS = range(40)
APPLIED_MIN = 10
"""How many of the histories each corruption has to damage."""


@functools.cache
def modelled(seed: int) -> tuple[RecordedLogs, Counter[str]]:
    """A valid history, and what odd things it has."""
    model = LogModel(seed)
    return model.run(), model.counts


def test_no_valid_history_of_logs_is_blamed(*, is_soak: bool) -> None:
    """Whatever the rules leave open is accepted, and all of it happens."""
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_OF_A_SOAK if is_soak else SEEDS):
        model = LogModel(seed)
        history = model.run()
        verdict = check_logs(history)
        assert verdict.is_valid, f"seed {seed}: {verdict.describe()}"
        counts += model.counts
    for odd_thing in (
        "takeover",
        "recovered at a takeover",
        "unknown, written",
        "unknown, not written",
        "a part of a batch",
        "duplicate answered",
        "retry of what was written",
        "control record",
        "a reader was truncated",
        "truncation",
        "cursor taken over",
        "unknown commit that counts",
        "reset that goes back",
        "batch published by an unknown try",
        "batch written anew",
        "batch dropped",
    ):
        assert counts[odd_thing] >= 3, counts


@pytest.mark.parametrize("name", sorted(LOG_CORRUPTIONS))
def test_each_corruption_of_a_log_is_found(name: str) -> None:
    """By the rule that it breaks, in every history that it could damage."""
    corruption = LOG_CORRUPTIONS[name]
    applied = 0
    for seed in CORRUPTED_SEEDS:
        history, _ = modelled(seed)
        corrupted = corruption.apply(history, random.Random(seed))
        if corrupted is None:
            continue
        applied += 1
        assert corrupted != history
        verdict = check_logs(corrupted)
        assert corruption.rule in verdict.rules, f"seed {seed}: {verdict.describe()}"
    assert applied >= APPLIED_MIN


def test_each_rule_of_logs_has_three_corruptions() -> None:
    """At least."""
    counts = Counter(one.rule for one in LOG_CORRUPTIONS.values())
    assert sorted(counts) == [f"L{number}" for number in range(1, 10)]
    assert min(counts.values()) >= 3, counts


def test_events_travel_as_lines() -> None:
    """Every event of a history is the same after a pipe."""
    history, _ = modelled(3)
    assert [event_of(line_of(one)) for one in history.events] == list(history.events)


def test_the_same_seed_has_the_same_verdict() -> None:
    """Violations are sorted; a model replays its history."""
    history, _ = modelled(5)
    assert LogModel(5).run() == history
    name = "a_plain_record_is_there_twice"
    corrupted = LOG_CORRUPTIONS[name].apply(history, random.Random(5))
    assert corrupted is not None
    verdict = check_logs(corrupted)
    assert verdict == check_logs(corrupted)
    assert list(verdict.violations) == sorted(verdict.violations)
    with pytest.raises(AssertionError, match="L4 orders#"):
        assert_logs_valid(corrupted)


# ---- histories by hand


def appended(*values: str, offsets: tuple[int, ...] = (), called: int = 1) -> RecordsAppended:
    """An append by the only writer."""
    return RecordsAppended(
        partition="orders#0",
        handle="w",
        epoch=1,
        values=values,
        offsets=offsets,
        outcome=EventOutcome.OK if offsets else EventOutcome.INFO,
        called=called,
        returned=called + 1,
    )


def ending(*values: str, start: int = 0) -> FinalPartition:
    """A partition with these records."""
    records = tuple(SeenRecord(at, value, None, 1, at) for at, value in enumerate(values, start))
    return FinalPartition("orders#0", start, start + len(values), records)


def test_a_harness_that_repeats_a_value_is_no_proof() -> None:
    """Two appends of one value without a producer cannot be told apart."""
    history = RecordedLogs((appended("a"), appended("a", called=5)), (ending("a"),))
    assert any("not unique" in one for one in check_logs(history).troubles)


def test_a_partition_that_nobody_read_is_no_proof() -> None:
    """Its end is not known."""
    assert check_logs(RecordedLogs((appended("a"),))).troubles == (
        "the end of orders#0 is not known",
    )


def test_a_gap_by_truncation_needs_a_truncation_before() -> None:
    """A reader may skip what was truncated, and only while that was asked for."""
    append = appended("a", "b", "c", offsets=(0, 1, 2))
    truncated = LogTruncated(partition="orders#0", before=2, called=10, returned=11)
    begun = ReadingBegan(partition="orders#0", handle="r", offset=0, called=3)
    read = RecordsRead(
        partition="orders#0", handle="r", records=ending("c", start=2).records, called=12
    )
    read = replace(read, records=(read.records[0]._replace(entry_id=2),), returned=13)
    final = replace(ending("c", start=2), records=read.records)
    assert_logs_valid(RecordedLogs((append, truncated, begun, read), (final,)))
    early = replace(read, called=4, returned=5)
    verdict = check_logs(RecordedLogs((append, truncated, begun, early), (final,)))
    assert verdict.rules == {"L6"}


def test_an_append_that_never_returned_is_unknown() -> None:
    """It is there or not."""
    for values in ((), ("a",)):
        assert_logs_valid(
            RecordedLogs((replace(appended("a"), returned=2**62),), (ending(*values),))
        )


def test_a_cursor_that_nobody_moved_is_right() -> None:
    """Consumers that take it one after the other, without a commit."""
    taken = [
        CursorTaken(
            partition="orders#0",
            handle=f"c{n}",
            cursor="c",
            epoch=n,
            offset=0,
            called=n,
            returned=n,
        )
        for n in range(1, 4)
    ]
    assert_logs_valid(RecordedLogs(tuple(taken), (ending(),)))


def test_many_records_take_little_time() -> None:
    """Fifty thousand records, read twice: no rule compares each with each."""
    values = [f"v{number}" for number in range(50_000)]
    appends = [appended(value, offsets=(at,), called=2 * at) for at, value in enumerate(values)]
    final = ending(*values)
    readings = [
        event
        for handle in ("r1", "r2")
        for event in (
            ReadingBegan(partition="orders#0", handle=handle, offset=0, called=10**7),
            RecordsRead(
                partition="orders#0", handle=handle, records=final.records, called=10**7 + 1
            ),
        )
    ]
    assert_logs_valid(RecordedLogs((*appends, *readings), (final,)))
