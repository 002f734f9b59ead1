"""The ranges of a head, completed by what is known of their ledgers, and read in runs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bookie.log.catalog.log_metadata import LogHead, LogRange
from bookie.log.head.chain import LedgerEnd, with_closed, with_ledger
from bookie.log.head.log_ranges import LedgerRun, completed, runs_from


def head_of(counts: list[int], open_ranges: int) -> LogHead:
    """Ledgers 0, 1, … with these numbers of entries; the last ones are open."""
    head = LogHead("id")
    for ledger_id, count in enumerate(counts):
        head = with_closed(
            with_ledger(head, ledger_id), LedgerEnd(ledger_id, count - 1, 0 if count else None, 0)
        )
    for ledger_id in range(len(counts), len(counts) + open_ranges):
        head = with_ledger(head, ledger_id)
    return head


@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(0, 2),
)
def test_what_is_known_early_is_what_the_head_says_later(
    closed: list[int], still_open: list[int], known: int
) -> None:
    """Completing a head equals closing its ranges in order, except for times and sizes."""
    before = head_of(closed, len(still_open))
    ends, after = {}, before
    for at, count in enumerate(still_open[:known]):
        ledger_id = len(closed) + at
        ends[ledger_id] = count - 1
        after = with_closed(after, LedgerEnd(ledger_id, count - 1, 0 if count else None, 0))

    def places(ranges: tuple[LogRange, ...]) -> list[tuple[int, int | None, int | None]]:
        return [(one.ledger_id, one.last_entry_id, one.base_offset) for one in ranges]

    assert places(completed(before.ranges, ends)) == places(after.ranges)


def test_the_end_of_the_second_ledger_says_nothing_without_the_first() -> None:
    """Its offsets are not known, so it stays as it is."""
    head = head_of([2], 2)
    assert completed(head.ranges, {2: 5}) == head.ranges


ranges_of_ledgers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=6
)


@given(ranges_of_ledgers, st.integers(0, 25), st.none() | st.integers(0, 25), st.booleans())
def test_runs_hold_each_entry_once(
    parts: list[tuple[int, int, bool]],
    offset: int,
    before: int | None,
    last_is_open: bool,
) -> None:
    """The entries of the runs are those of the ranges between the two offsets, in order."""
    ranges: list[LogRange] = []
    next_entry = [0, 0, 0]
    base = 0
    for ledger_id, count, gap in parts:
        first = next_entry[ledger_id] + gap
        next_entry[ledger_id] = first + count
        ranges.append(LogRange(ledger_id, first, first + count - 1, base, 0, 7))
        base += count
    expected = [
        (one.ledger_id, one.first_entry_id + at, (one.base_offset or 0) + at)
        for one in ranges
        for at in range(one.count or 0)
        if offset <= (one.base_offset or 0) + at
        and (before is None or one.base_offset + at < before)  # type: ignore[operator]
    ]
    if last_is_open:
        ranges.append(LogRange(9, 0, None, base))
    runs = runs_from(ranges, offset, before)
    if last_is_open and (before is None or base < before):
        skipped = max(0, offset - base)
        assert runs.pop() == LedgerRun(9, skipped, None, base + skipped, None)
    found = []
    for run in runs:
        assert run.last_entry_id is not None
        found += [
            (run.ledger_id, entry_id, run.offset + entry_id - run.first_entry_id)
            for entry_id in range(run.first_entry_id, run.last_entry_id + 1)
        ]
    assert found == expected
    for one, following in pairwise(runs):
        assert (one.ledger_id, (one.last_entry_id or 0) + 1) != (
            following.ledger_id,
            following.first_entry_id,
        )


def test_neighbours_are_joined() -> None:
    """Their sizes add up; what continues in an open range is one run with it."""
    ranges = [
        LogRange(1, 0, 2, 0, 0, 30),
        LogRange(1, 3, 4, 3, 0, 20),
        LogRange(2, 0, 0, 5, 0, 1),
        LogRange(1, 5, 5, 6, 0, 1),
    ]
    assert runs_from(ranges, 1) == [
        LedgerRun(1, 1, 4, 1, 50),
        LedgerRun(2, 0, 0, 5, 1),
        LedgerRun(1, 5, 5, 6, 1),
    ]
    assert runs_from([*ranges, LogRange(3, 0, None, None)], 6) == [LedgerRun(1, 5, 5, 6, 1)]
