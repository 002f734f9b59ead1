"""An outcome: a result that comes once, and is told at once."""

from __future__ import annotations

import asyncio

import pytest

from bookie.env import Outcome


def test_callbacks_hear_the_result_at_once_and_in_order() -> None:
    """Whoever asks after it is settled is told there and then; no loop is needed for that."""
    outcome: Outcome[int] = Outcome()
    heard: list[tuple[str, int]] = []
    outcome.then(lambda result: heard.append(("first", result)))
    outcome.then(lambda result: heard.append(("second", result)))
    assert not outcome.done()
    outcome.settle(7)
    outcome.then(lambda result: heard.append(("late", result)))
    assert heard == [("first", 7), ("second", 7), ("late", 7)]
    assert outcome.done()
    assert outcome.result() == 7


def test_a_second_result_is_a_fault() -> None:
    """An answer that was given cannot be taken back."""
    outcome = Outcome.of(1)
    with pytest.raises(AssertionError):
        outcome.settle(2)


async def test_everybody_may_await_it_before_and_after() -> None:
    """Also a result that is false in itself."""
    outcome: Outcome[int] = Outcome()
    results: list[int] = []

    async def wait() -> None:
        results.append(await outcome)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait())
        tasks.create_task(wait())
        await asyncio.sleep(0)
        outcome.settle(0)
    assert results == [0, 0]
    assert await outcome == 0


async def test_a_cancelled_waiter_leaves_it_to_the_others() -> None:
    """Not like a future, which ends with the task that awaits it."""
    outcome: Outcome[int] = Outcome()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await outcome
    outcome.settle(3)
    assert await outcome == 3
