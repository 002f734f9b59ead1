"""`Backoff`: its delays double up to a maximum, vary by its random source, and begin anew."""

from __future__ import annotations

import math
import random
from itertools import repeat

import pytest

from bookie.env.backoff import AROUND, FULL, UP_TO, Backoff


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5


def test_a_reset_begins_with_the_first_delay() -> None:
    backoff = Backoff(0.5, 3.0)
    for _ in range(3):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 0.5


def test_a_caller_may_count_by_itself() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.after(failures) for failures in (2, 0, 9)] == [2.0, 0.5, 3.0]
    assert backoff.next() == 0.5


def test_a_first_delay_beyond_the_maximum_is_the_maximum() -> None:
    assert Backoff(5.0, 3.0).next() == 3.0


def test_no_number_of_failures_overflows() -> None:
    assert Backoff(0.5, 3.0).after(10**6) == 3.0
    assert Backoff(0.0, 3.0).after(10**6) == 0.0
    assert math.isfinite(Backoff(1.0, math.inf).after(10**6))


@pytest.mark.parametrize("shares", [UP_TO, AROUND, FULL])
def test_jitter_takes_a_share_of_each_delay(shares: tuple[float, float]) -> None:
    low, high = shares
    for drawn in (0.0, 0.25, 1 - 2**-32):
        backoff = Backoff(1.0, 4.0, repeat(drawn).__next__, shares)
        expected = [bound * (low + (high - low) * drawn) for bound in (1.0, 2.0, 4.0, 4.0)]
        assert [backoff.next() for _ in expected] == expected


def test_each_delay_draws_once() -> None:
    """Seeded runs depend on the number of draws."""
    drawn, expected = random.Random(7), random.Random(7)
    backoff = Backoff(1.0, 1.0, drawn.random)
    assert [backoff.next() for _ in range(3)] == [expected.uniform(0.5, 1.0) for _ in range(3)]
