"""The same table by hypothesis, which makes a failing input small.

It draws any bytes, and changes of seeds. It costs many times as much for each input as the loop of
`test_fuzz.py`, so it waits for the night (`tests/gate.py`).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.edits import EDIT_BYTES, EDITS_MAX, edited, edits_of
from tests.fuzz.table import TARGETS
from tests.fuzz.target import Target, bounded_growth, watched

EDITS = st.binary(min_size=1, max_size=EDIT_BYTES * EDITS_MAX)


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Mostly seeds with a few changes; sometimes any bytes."""
    seeds = st.sampled_from(list(target.seeds))

    def change(seed: bytes, octets: bytes) -> bytes:
        return edited(seed, edits_of(octets), target.seeds)

    changed = st.builds(change, seeds, EDITS)
    return st.one_of(changed, changed, st.binary(max_size=200))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    """Two thousand inputs for each cheap parser, and more in a soak."""
    target = TARGETS[name]
    examples = max(target.examples, settings().max_examples if target.examples == 2000 else 0)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(inputs(target))
    def check(data: bytes) -> None:
        target.check(data)

    with watched(target), bounded_growth(name):
        check()
