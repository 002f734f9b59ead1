"""Offsets in one form, and batches that keep a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.spark.stream_offsets import (
    LogOffsets,
    StreamOffset,
    as_json,
    begins_of,
    from_json,
    limited,
    parse_offsets,
)

KEYS = st.tuples(st.sampled_from(["a", "b/c", "z"]), st.integers(0, 12))


def test_trap_4_equal_offsets_are_equal_texts() -> None:
    """Whatever order they were found in; partitions go by number."""
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    turned = dict(reversed(offsets.items()))
    ids = {"b": "z", "a": "0"}
    text = json.dumps(as_json(StreamOffset(offsets, ids)))
    again = StreamOffset(turned, dict(reversed(ids.items())))
    assert text == json.dumps(as_json(again))
    assert text == '{"a": {"0": 3, "id": "0"}, "b": {"9": 2, "10": 1, "id": "z"}}'
    assert from_json(json.loads(text)) == again


def test_offsets_of_older_versions_have_no_ids() -> None:
    text = '{"a": {"0": 3}}'
    found = from_json(json.loads(text))
    assert found == StreamOffset({("a", 0): 3})
    assert json.dumps(as_json(found)) == text


def test_a_log_is_another_one_by_its_id_or_by_its_partitions() -> None:
    """A log keeps its partitions for as long as it lives."""
    at = StreamOffset({("a", 0): 1, ("a", 1): 1}, {"a": "x"})
    assert not at.is_other("a", LogDefinition("x", partitions=2))
    assert at.is_other("a", LogDefinition("y", partitions=2))
    former = StreamOffset(at.offsets)
    assert not former.is_other("a", LogDefinition("y", partitions=2))
    assert former.is_other("a", LogDefinition("y", partitions=1))


@pytest.mark.parametrize(
    ("start", "end", "begins"),
    [
        # The same log goes on; a partition that is new to the batch is not there.
        ({"a": {"0": 3, "id": "x"}}, {"a": {"0": 5, "1": 2, "id": "x"}}, {("a", 0): 3}),
        # Another log, however far it is.
        ({"a": {"0": 3, "id": "x"}}, {"a": {"0": 5, "id": "y"}}, {}),
        # The checkpoint of an older version gets the id of its log.
        ({"a": {"0": 3}}, {"a": {"0": 5, "id": "x"}}, {("a", 0): 3}),
        # It has read of another log, which was longer, or had more partitions.
        ({"a": {"0": 3, "1": 4}}, {"a": {"0": 5, "1": 3, "id": "x"}}, {}),
        ({"a": {"0": 3, "1": 4}}, {"a": {"0": 5, "id": "x"}}, {}),
        # A batch of an older version that is repeated; and a start that is behind its end.
        ({"a": {"0": 3}}, {"a": {"0": 5}}, {("a", 0): 3}),
        ({"a": {"0": 9, "id": "x"}}, {"a": {"0": 5, "id": "x"}}, {("a", 0): 9}),
        # Deleted, and left out.
        ({"a": {"0": 9, "id": "x"}, "b": {"0": 1, "id": "z"}}, {"b": {"0": 1, "id": "z"}}, None),
    ],
)
def test_where_a_batch_goes_on(
    start: Any, end: Any, begins: dict[tuple[str, int], int] | None
) -> None:
    wanted = {("b", 0): 1} if begins is None else begins
    assert begins_of(from_json(start), from_json(end)) == wanted


@pytest.mark.parametrize(
    "text", ["7", "[]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": -3}}', '{"a": {"id": 1}}', "{"]
)
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_offsets("startingOffsets", text)


@given(st.dictionaries(KEYS, st.tuples(st.integers(0, 99), st.integers(0, 99))), st.integers(1, 50))
def test_a_limited_batch_advances_every_partition(
    found: dict[tuple[str, int], tuple[int, int]], rows: int
) -> None:
    """It keeps the limit, but for one record of each partition, and never goes beyond the end."""
    start: LogOffsets = {key: min(pair) for key, pair in found.items()}
    end: LogOffsets = {key: max(pair) for key, pair in found.items()}
    waiting = {key: end[key] - start[key] for key in end}
    batch = limited(start, end, rows)
    assert batch.keys() == end.keys()
    taken = {key: batch[key] - start[key] for key in end}
    assert all(0 <= taken[key] <= waiting[key] for key in end)
    assert all(taken[key] for key in end if waiting[key])
    busy = sum(1 for count in waiting.values() if count)
    assert sum(taken.values()) <= max(rows, busy)
    if sum(waiting.values()) <= rows:
        assert batch == end
    # Rounding down costs less than one record of each partition.
    assert sum(taken.values()) > min(rows, sum(waiting.values())) - max(1, busy)
    assert sorted(end, key=lambda key: (waiting[key], taken[key])) == sorted(
        end, key=lambda key: (taken[key], waiting[key])
    )


def test_a_long_backlog_starves_no_short_partition() -> None:
    """Three short partitions end within as many batches as they have records."""
    start: LogOffsets = {("a", number): 0 for number in range(4)}
    end: LogOffsets = {("a", 0): 1_000_000, ("a", 1): 3, ("a", 2): 1, ("a", 3): 2}
    batches = []
    for _ in range(3):
        later = limited(start, end, 1000)
        batches.append([later[key] - start[key] for key in sorted(end)])
        start = later
    assert [shorts for _, *shorts in batches] == [[1, 1, 1], [1, 0, 1], [1, 0, 0]]
    assert all(990 <= sum(batch) <= 1000 for batch in batches)


def test_a_limit_below_the_number_of_partitions_gives_each_one_record() -> None:
    end: LogOffsets = {("a", number): 100 for number in range(40)}
    assert limited({}, end, 30) == dict.fromkeys(end, 1)
