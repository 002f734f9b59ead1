"""Offsets in one form, and batches that keep a limit."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import BadRequestError
from bookie.spark.stream_offsets import LogOffsets, as_json, from_json, limited, parse_offsets

KEYS = st.tuples(st.sampled_from(["a", "b/c", "z"]), st.integers(0, 12))


def test_trap_4_equal_offsets_are_equal_texts() -> None:
    """Whatever order they were found in; partitions go by number."""
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    turned = dict(reversed(offsets.items()))
    text = json.dumps(as_json(offsets))
    assert text == json.dumps(as_json(turned)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert from_json(json.loads(text)) == offsets


@pytest.mark.parametrize(
    "text", ["7", "[]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": -3}}', "{"]
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
