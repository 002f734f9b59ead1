"""A compaction joins runs of small closed pieces, within its limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.compact import plan as compaction
from bookie.log.compact.plan import CompactionLimits, runs_to_join

LIMITS = CompactionLimits(small_bytes=10, target_bytes=25)


def ranges_of(
    sizes: Sequence[int], ledgers: Sequence[int] | None = None, *, opened: int = 0
) -> list[LogRange]:
    """Ranges of one entry; each ends one second after the one before."""
    found: list[LogRange] = []
    entries: dict[int, int] = {}
    for at, size in enumerate(sizes):
        ledger_id = at if ledgers is None else ledgers[at]
        entry_id = entries.get(ledger_id, 0)
        entries[ledger_id] = entry_id + 1
        found.append(LogRange(ledger_id, entry_id, entry_id, at, 1000 * at, size))
    count = len(found)
    opens = [LogRange(900 + at, 0, None, count if at == 0 else None) for at in range(opened)]
    return found + opens


def joined(
    ranges: Sequence[LogRange], limits: CompactionLimits = LIMITS, start_offset: int = 0
) -> list[list[int | None]]:
    """The offsets of the ranges of each run."""
    runs = runs_to_join(ranges, start_offset, limits)
    return [[one.base_offset for one in run] for run in runs]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_the_newest_closed_one_and_open_ones_stay(opened: int) -> None:
    assert joined(ranges_of([1, 1, 1, 1], opened=opened)) == [[0, 1, 2]]
    assert joined(ranges_of([1, 1], opened=opened)) == []
    assert joined(ranges_of([1], opened=opened)) == []
    assert joined(ranges_of([], opened=opened)) == []


def test_only_small_neighbours_are_joined() -> None:
    assert joined(ranges_of([9, 9, 10, 9, 10, 9, 9, 9, 1])) == [[0, 1], [5, 6]]
    assert joined(ranges_of([5, 5, 5, 5, 5, 5, 1])) == [[0, 1, 2, 3, 4]]
    assert joined(ranges_of([9] * 9)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_ranges_that_continue_a_ledger_are_one_piece() -> None:
    """They are large together, or have no other neighbour; the newest ledger stays as a whole."""
    assert joined(ranges_of([4, 4, 4, 1, 1, 9], [1, 1, 1, 2, 3, 4])) == [[3, 4]]
    assert joined(ranges_of([4, 4, 9], [1, 1, 2])) == []
    assert joined(ranges_of([4, 4, 1, 9], [1, 1, 2, 3])) == [[0, 1, 2]]
    assert joined(ranges_of([1, 1, 4, 4], [1, 2, 3, 3])) == [[0, 1]]
    # Two publishers that take turns: each range is a piece.
    assert joined(ranges_of([2, 2, 2, 2, 2], [1, 2, 1, 2, 1])) == [[0, 1, 2, 3]]


def test_what_was_truncated_is_not_copied() -> None:
    """A range that was truncated in part is."""
    ranges = ranges_of([1] * 5)
    assert joined(ranges, start_offset=1) == [[1, 2, 3]]
    assert joined(ranges, start_offset=3) == []
    both = [LogRange(1, 0, 9, 0, 1, 1), LogRange(2, 0, 9, 10, 2, 1), LogRange(3, 0, 9, 20, 3, 1)]
    assert joined(both, start_offset=9) == [[0, 10]]


def test_a_run_ends_with_its_time_and_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = ranges_of([1] * 8)
    limits = CompactionLimits(10, 25, span_ms_max=2000)
    assert joined(ranges, limits) == [[0, 1, 2], [3, 4, 5]]
    monkeypatch.setattr(compaction, "PIECES_MAX", 4)
    assert joined(ranges) == [[0, 1, 2, 3], [4, 5, 6]]


def test_limits_stay_within_the_retention() -> None:
    """A tenth of it; without a retention they are as they were."""
    limits = CompactionLimits(100, 1000)
    assert limits.within(LogPolicy()) == limits
    assert limits.within(LogPolicy(retention_seconds=0, retention_bytes=0)) == limits
    assert limits.within(LogPolicy(retention_seconds=60)).span_ms_max == 6000
    assert limits.within(LogPolicy(retention_bytes=5000)) == CompactionLimits(100, 500)
    assert limits.within(LogPolicy(retention_bytes=500)) == CompactionLimits(50, 50)
    assert limits.within(LogPolicy(retention_bytes=1)) == CompactionLimits(1, 1)
    assert limits.span_ms_max == MAX_ID


@pytest.mark.parametrize(("small", "target"), [(0, 1), (-1, 1), (2, 1), (0, 0)])
def test_absurd_limits_are_refused(small: int, target: int) -> None:
    with pytest.raises(BadRequestError, match="both are positive"):
        CompactionLimits(small, target).validate()


@given(
    sizes=st.lists(st.integers(1, 14), max_size=30),
    ledgers=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    start=st.integers(0, 30),
    opened=st.integers(0, 2),
)
def test_runs_are_parts_of_the_chain(
    sizes: list[int], ledgers: list[int], start: int, opened: int
) -> None:
    """In order, without overlap, live, closed, small enough, of two ledgers or more."""
    ranges = ranges_of(sizes, ledgers, opened=opened)
    runs = runs_to_join(ranges, start, LIMITS)
    offsets = [one.base_offset for run in runs for one in run]
    assert offsets == sorted(set(offsets), key=lambda one: one or 0)
    for run in runs:
        at = ranges.index(run[0])
        assert tuple(ranges[at : at + len(run)]) == run
        assert len({one.ledger_id for one in run}) > 1
        assert sum(one.size_bytes or 0 for one in run) <= LIMITS.target_bytes
        assert all((one.end_offset or 0) > start for one in run[-1:])
        assert not any(one.is_open for one in run)
        assert len(sizes) - 1 not in [one.base_offset for one in run]
