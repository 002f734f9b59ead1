"""Retention lets whole ranges go, from the first one on, if they are beyond all limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.ids import MAX_ID
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.catalog.log_policy import DEFAULTS, LogPolicy
from bookie.log.tidy.retention import RetentionLimits, expired_count, limits_of

_RANGES = tuple(LogRange(n, 0, 9, 10 * n, 1000 * (n + 1), 100) for n in range(4))
"""Four ranges of ten entries and 100 bytes, which end at 1 to 4 seconds."""

_OPEN = LogRange(4, 0, None, 40)


def _count(limits: RetentionLimits, ranges: Sequence[LogRange] = _RANGES) -> int:
    return expired_count(ranges, sum(one.size_bytes or 0 for one in ranges), limits)


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (RetentionLimits(), 4),
        (RetentionLimits(keep_bytes=1), 3),
        (RetentionLimits(keep_bytes=100), 3),
        (RetentionLimits(keep_bytes=101), 2),
        (RetentionLimits(keep_bytes=401), 0),
        (RetentionLimits(keep_from_ms=4001), 4),
        (RetentionLimits(keep_from_ms=4000), 3),
        (RetentionLimits(keep_from_ms=2500), 2),
        (RetentionLimits(keep_from_ms=1000), 0),
        (RetentionLimits(keep_from_offset=40), 4),
        (RetentionLimits(keep_from_offset=39), 3),
        (RetentionLimits(keep_from_offset=10), 1),
        (RetentionLimits(keep_from_offset=9), 0),
        # Beyond both, and needed by no cursor.
        (RetentionLimits(keep_bytes=300, keep_from_ms=4000), 1),
        (RetentionLimits(keep_bytes=100, keep_from_ms=2000), 1),
        (RetentionLimits(keep_bytes=100, keep_from_ms=4000, keep_from_offset=25), 2),
    ],
)
def test_each_limit_keeps_what_it_says(limits: RetentionLimits, count: int) -> None:
    assert _count(limits) == count


def test_an_open_range_stays() -> None:
    assert _count(RetentionLimits(), (*_RANGES, _OPEN)) == 4
    assert _count(RetentionLimits(), (_OPEN,)) == 0


def test_what_follows_counts_as_kept() -> None:
    """A chunk at the beginning goes as a whole if the chunks behind it are enough."""
    assert expired_count(_RANGES, 1000, RetentionLimits(keep_bytes=600)) == 4
    assert expired_count(_RANGES, 1000, RetentionLimits(keep_bytes=601)) == 3


def test_limits_come_from_policy_and_cursors() -> None:
    cursors = [LogCursor(30), LogCursor(20), LogCursor(10, is_protected=False)]
    assert limits_of(DEFAULTS, 10_000, cursors) is None
    hour = LogPolicy(retention_seconds=3).over(DEFAULTS)
    assert limits_of(hour, 10_000, cursors) == RetentionLimits(0, 7000, 20)
    size = LogPolicy(retention_bytes=5).over(DEFAULTS)
    assert limits_of(size, 10_000, []) == RetentionLimits(5, MAX_ID, MAX_ID)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12),
    keep_bytes=st.integers(0, 300),
    keep_from_ms=st.integers(0, 12),
    offset=st.integers(0, 40),
)
def test_as_much_as_the_limits_allow_goes_and_no_more(
    sizes: list[int], keep_bytes: int, keep_from_ms: int, offset: int
) -> None:
    ranges = [LogRange(n, 0, 2, 3 * n, n, size) for n, size in enumerate(sizes)]
    count = _count(RetentionLimits(keep_bytes, keep_from_ms, offset), ranges)

    def may_go(going: int) -> bool:
        return sum(sizes[going:]) >= keep_bytes and going - 1 < keep_from_ms and 3 * going <= offset

    assert count == 0 or may_go(count)
    assert count == len(sizes) or not may_go(count + 1)
