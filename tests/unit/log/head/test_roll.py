"""A partition continues in another ledger when the present one is large or old enough."""

from __future__ import annotations

import pytest

from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.head.roll import RollLimits


@pytest.mark.parametrize(
    ("policy", "size_bytes", "age_seconds", "is_due"),
    [
        (LogPolicy(roll_bytes=100, roll_seconds=0), 99, 1e9, False),
        (LogPolicy(roll_bytes=100, roll_seconds=0), 100, 0, True),
        (LogPolicy(roll_bytes=0, roll_seconds=60), 2**62, 59.9, False),
        (LogPolicy(roll_bytes=0, roll_seconds=60), 0, 60, True),
        (LogPolicy(roll_bytes=0, roll_seconds=0), 2**62, 1e9, False),
    ],
)
def test_size_and_age(policy: LogPolicy, size_bytes: int, age_seconds: float, is_due: bool) -> None:
    assert RollLimits.of(policy).is_due(size_bytes, age_seconds) is is_due


def test_a_publisher_has_an_age_of_its_own() -> None:
    never = LogPolicy(roll_bytes=0, roll_seconds=0)
    assert RollLimits.of(never, seconds_max=10).is_due(0, 10)
    assert not RollLimits.of(never, seconds_max=10).is_due(0, 9)
    assert RollLimits.of(LogPolicy(roll_seconds=5), seconds_max=10).is_due(0, 5)
    assert RollLimits.of(LogPolicy(roll_seconds=50), seconds_max=10).is_due(0, 10)
