"""Calls at once: results in the order of the calls, and one error for all."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from bookie.env import gather


async def test_results_come_in_the_order_of_the_calls() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def wait_for_second() -> str:
        first.set()
        await second.wait()
        return "first"

    async def go_on() -> str:
        await first.wait()
        second.set()
        return "second"

    assert await gather([wait_for_second(), go_on()]) == ["first", "second"]
    assert await gather(()) == []


async def test_one_failure_is_raised_as_it_is_and_ends_the_others() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        await begun.wait()
        raise KeyError("one")

    with pytest.raises(KeyError, match="one"):
        await gather([wait(), fail()])
    assert ended.is_set()


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_that_is_cancelled_while_calls_fail_is_cancelled(turns: int) -> None:
    """Else it would go on, and whoever cancelled it would wait for its end for ever."""
    failing = asyncio.Event()

    async def fail() -> None:
        failing.set()
        raise KeyError("one")

    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(4):
                await asyncio.sleep(0)

    async def follow() -> None:
        while True:
            with suppress(KeyError):
                await gather([end_slowly(), fail()])
            await asyncio.Event().wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(follow())
        await failing.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        follower.cancel()


async def test_a_call_that_did_not_begin_is_not_left_behind() -> None:
    """The first fails before the second has taken its first step."""

    async def fail() -> None:
        raise KeyError("one")

    async def never() -> None:
        raise AssertionError("it was cancelled before")

    with pytest.raises(KeyError, match="one"):
        await gather([fail(), never()])
