"""Work is cut by bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.log.read.survey import LogSpan
from bookie.spark.splits import LogSlice, cut, cut_ids, task_bytes

MB = 1 << 20


@pytest.mark.parametrize(
    ("total", "most", "tasks", "size"),
    [
        (10 * MB, 64 * MB, None, 10 * MB + 10 * MB // 64),  # a little is one task
        (100 * MB, 64 * MB, None, 50 * MB + 50 * MB // 64),  # two of the same size
        (128 * MB, 64 * MB, None, 64 * MB),
        (8 * MB, 64 * MB, 8, MB),  # as many as were asked for, however small
        (1000 * MB, 64 * MB, 8, 64 * MB),
        (0, 64 * MB, None, 1),
        (0, 64 * MB, 3, 1),
    ],
)
def test_how_much_a_task_reads(total: int, most: int, tasks: int | None, size: int) -> None:
    assert task_bytes(total, most, tasks) == size


@given(st.integers(1, 100_000), st.integers(100, 5000))
def test_tasks_of_one_partition_are_as_few_as_they_can_be(count: int, size: int) -> None:
    """Rounding makes no task of a few records."""
    total = count * size
    found = cut("a", 0, [LogSpan(0, count, total)], task_bytes(total, MB, None))
    assert len(found) <= -(-total // (MB - size))


spans_of_sizes = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5000)), max_size=8)


@given(spans_of_sizes, st.integers(1, 10_000), st.integers(0, 1 << 40))
def test_slices_cover_the_spans_once_and_in_order(
    sizes: list[tuple[int, int]], size_bytes: int, base: int
) -> None:
    spans, at = [], base
    for count, size in sizes:
        spans.append(LogSpan(at, at + count, size))
        at += count
    slices = cut("a", 3, spans, size_bytes)
    assert all((one.log, one.partition) == ("a", 3) and one.start < one.end for one in slices)
    assert all(one.end == other.start for one, other in pairwise(slices))
    assert [one.start for one in slices[:1]] == ([base] if spans else [])
    assert [one.end for one in slices[-1:]] == ([at] if spans else [])
    means = [size / count for count, size in sizes]
    for one in slices[:-1]:
        # None is over the bound, unless one record is.
        sliced_bytes = sum(
            (min(one.end, span.end_offset) - max(one.start, span.offset)) * mean
            for span, mean in zip(spans, means, strict=True)
            if span.offset < one.end and one.start < span.end_offset
        )
        assert sliced_bytes <= size_bytes + 1 or one.end - one.start == 1


def test_many_small_ranges_are_one_slice() -> None:
    spans = [LogSpan(n * 10, n * 10 + 10, 100) for n in range(100)]
    assert cut("a", 0, spans, 5000) == [LogSlice("a", 0, 0, 500), LogSlice("a", 0, 500, 1000)]


@given(st.integers(0, 100), st.integers(0, 500), st.integers(0, 10_000), st.integers(1, 10_000))
def test_parts_cover_the_entries_once_and_in_order(
    first: int, more: int, size_bytes: int, task_size_bytes: int
) -> None:
    parts = list(cut_ids(first, first + more, size_bytes, task_size_bytes))
    assert [n for part in parts for n in part] == list(range(first, first + more + 1))
    assert all(parts)


def test_entries_are_cut_evenly() -> None:
    assert list(cut_ids(0, 9, 100, 30)) == [range(3), range(3, 6), range(6, 9), range(9, 10)]
    assert list(cut_ids(4, 4, 10**9, 1)) == [range(4, 5)]
    assert list(cut_ids(0, 9, 0, 100)) == [range(10)]
