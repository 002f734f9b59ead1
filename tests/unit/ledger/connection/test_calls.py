"""Calls whose outcomes are taken as they end."""

from __future__ import annotations

import asyncio
import gc
import inspect

from bookie.ledger.connection.calls import Calls


async def test_a_call_that_is_left_before_its_first_step_is_closed() -> None:
    """Nobody has awaited it, and Python would complain whenever it is collected."""
    begun = []

    async def call() -> int:
        begun.append(1)
        return 1

    coroutine = call()
    async with Calls[int]() as calls:
        calls.start(coroutine, "a call")
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert not begun
    gc.collect()


async def test_outcomes_come_in_the_order_in_which_calls_end() -> None:
    """Not in that of their beginning; one that is put is an outcome like others."""
    late = asyncio.Event()

    async def slow() -> str:
        await late.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    async with Calls[str]() as calls:
        calls.start(slow(), "slow")
        calls.start(quick(), "quick")
        assert await calls.next() == "quick"
        calls.put("put")
        assert await calls.next() == "put"
        late.set()
        assert await calls.next() == "slow"
