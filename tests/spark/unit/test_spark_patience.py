"""Errors that may pass are waited out, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie.errors import BadRequestError, BookieError, MetadataUnavailableError
from bookie.spark.patience import OUTAGE_SECONDS_MAX, PAUSE_SECONDS, patiently


class Clock:
    """Time that passes in sleeps only."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Later."""
        self.now += seconds


def run(clock: Clock, look: Callable[[], int]) -> int:
    """With this clock."""
    return patiently(look, sleep=clock.sleep, now=lambda: clock.now)


def failing(times: int, error: BookieError) -> Callable[[], int]:
    """Fails some times, then returns 7."""
    left = [error] * times

    def look() -> int:
        if left:
            raise left.pop()
        return 7

    return look


def test_an_outage_is_waited_out() -> None:
    clock = Clock()
    assert run(clock, failing(20, MetadataUnavailableError("away"))) == 7
    assert clock.now == 20 * PAUSE_SECONDS


def test_not_for_ever() -> None:
    clock = Clock()
    with pytest.raises(MetadataUnavailableError):
        run(clock, failing(10_000, MetadataUnavailableError("away")))
    assert clock.now == OUTAGE_SECONDS_MAX


def test_what_is_wrong_stays_wrong() -> None:
    clock = Clock()
    with pytest.raises(BadRequestError):
        run(clock, failing(1, BadRequestError("wrong")))
    assert clock.now == 0
