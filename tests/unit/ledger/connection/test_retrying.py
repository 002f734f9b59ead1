"""Repeated calls: which errors, how often, and for how long, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from bookie import retry
from bookie.errors import BadRequestError, BookieUnreachableError, LedgerFencedError
from bookie.testing.simulation.loop import simulated_loop

T = TypeVar("T")


class Call:
    """Fails so many times with an error, then returns; notes when it was called."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or BookieUnreachableError("away")
        self.moments: list[float] = []

    async def __call__(self) -> str:
        self.moments.append(asyncio.get_running_loop().time())
        if len(self.moments) <= self.failures:
            raise self.error
        return "done"

    @property
    def pauses(self) -> list[float]:
        """Virtual seconds between the calls."""
        pairs = zip(self.moments, self.moments[1:], strict=False)
        return [after - before for before, after in pairs]


def run(work: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Run in virtual time."""
    loop = simulated_loop(seed)
    try:
        return loop.run(work)
    finally:
        loop.close()


def test_the_first_success_is_the_result() -> None:
    """Nothing is called after it."""
    call = Call(3)
    assert run(retry(call)) == "done"
    assert len(call.moments) == 4


def test_the_last_error_is_raised() -> None:
    """After so many attempts."""
    call = Call(9)
    with pytest.raises(BookieUnreachableError, match="away"):
        run(retry(call, attempts=3))
    assert len(call.moments) == 3


@pytest.mark.parametrize("error", [LedgerFencedError("taken"), ValueError("a bug")])
def test_other_errors_are_not_repeated(error: Exception) -> None:
    """Errors that are not retryable, or not of this library."""
    call = Call(9, error)
    with pytest.raises(type(error)):
        run(retry(call))
    assert len(call.moments) == 1


def test_an_error_of_an_ended_writer_is_not_repeated() -> None:
    """`retryable` of the error itself decides, and not that of its class."""
    error = BookieUnreachableError("the writer has ended")
    error.retryable = False
    call = Call(9, error)
    with pytest.raises(BookieUnreachableError):
        run(retry(call))
    assert len(call.moments) == 1


def test_pauses_double_up_to_their_bound_and_are_random() -> None:
    """Full jitter: anything between nothing and the bound."""
    bounds = [1.0, 2.0, 4.0, 5.0, 5.0]
    longest = [0.0] * len(bounds)
    for _ in range(60):
        call = Call(5)
        run(retry(call, attempts=6, first_pause_seconds=1, pause_seconds_max=5))
        assert all(0 <= pause <= most for pause, most in zip(call.pauses, bounds, strict=True))
        longest = [max(pair) for pair in zip(longest, call.pauses, strict=True)]
    assert all(pause > most / 2 for pause, most in zip(longest, bounds, strict=True))


def test_no_attempt_begins_after_the_deadline() -> None:
    """The error of the last one before it is raised at once, without a pause."""
    for _ in range(20):
        call = Call(10**6)
        with pytest.raises(BookieUnreachableError):
            run(
                retry(call, attempts=10**6, first_pause_seconds=1, deadline_seconds=10),
            )
        assert len(call.moments) >= 2
        assert call.moments[-1] - call.moments[0] <= 10


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first_pause_seconds": -1.0}, {"pause_seconds_max": -1.0}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is called."""
    call = Call(0)
    with pytest.raises(BadRequestError):
        run(retry(call, **wrong))
    assert not call.moments
