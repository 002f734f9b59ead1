"""Waiting in tests for what is bound to come, and never for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

SECONDS_MAX = 120.0


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds; it is looked at again and again."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (tests watch parts that announce nothing)
            await asyncio.sleep(0.002)


async def until_found(condition: Callable[[], Awaitable[object]]) -> None:
    """The same for a condition that has to ask."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():  # noqa: ASYNC110  (likewise)
            await asyncio.sleep(0.01)


async def settle(turns: int = 50) -> None:
    """Give everybody their turns of the loop, as far as they need no time."""
    for _ in range(turns):
        await asyncio.sleep(0)


def cancel_in(turns: int, task: asyncio.Task[Any]) -> None:
    """Cancel `task` so many turns of the loop from now."""
    if turns:
        asyncio.get_running_loop().call_soon(cancel_in, turns - 1, task)
    else:
        task.cancel()
