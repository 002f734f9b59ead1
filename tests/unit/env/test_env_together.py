"""Calls at once: results in the order of the calls, and one error for all."""

from __future__ import annotations

import asyncio

import pytest

from bookie.env import together


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

    assert await together([wait_for_second(), go_on()]) == ["first", "second"]
    assert await together(()) == []


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
        await together([wait(), fail()])
    assert ended.is_set()
