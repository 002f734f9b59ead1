"""Offsets in one form, and batches that keep a limit."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import BadRequestError
from bookie.formats.log_metadata import LogDefinition
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
def test_a_limited_batch_is_within_its_bounds(
    found: dict[tuple[str, int], tuple[int, int]], rows: int
) -> None:
    """It goes forward, never over the limit but for one record, and never beyond the end."""
    start: LogOffsets = {key: min(pair) for key, pair in found.items()}
    end: LogOffsets = {key: max(pair) for key, pair in found.items()}
    waiting = sum(end[key] - start[key] for key in end)
    if waiting <= rows:
        return
    batch = limited(start, end, Fraction(rows, waiting))
    assert batch.keys() == end.keys()
    assert all(start[key] <= batch[key] <= end[key] for key in end)
    assert 1 <= sum(batch[key] - start[key] for key in end) <= rows
