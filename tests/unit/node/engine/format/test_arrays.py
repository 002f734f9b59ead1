"""The distinct values of an array, beside Python's own sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bookie.node.engine.format.arrays import distinct


@given(st.lists(st.integers(-4, 4) | st.integers(-(2**63), 2**63 - 1)))
def test_each_value_once_and_ascending(values: list[int]) -> None:
    """The given array stays as it is."""
    given_array = np.array(values, np.int64)
    assert distinct(given_array).tolist() == sorted(set(values))
    assert given_array.tolist() == values


def test_the_type_stays() -> None:
    """Also of none."""
    assert distinct(np.zeros(0, np.uint32)).dtype == np.uint32
