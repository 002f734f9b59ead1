"""Runs coroutines concurrently; `gather` returns their results, `beside` runs them in a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run `calls` concurrently; return their results in the order of the calls.

    If a call fails, the other calls are cancelled, and the first error is raised without an
    exception group.

    If the caller is cancelled while the calls run, only the cancellation is raised, even if a call
    fails. A task group would raise the error and lose the cancellation.
    """
    begun = list(calls)
    errors: list[Exception] = []

    async def outcome(call: Coroutine[Any, Any, T]) -> list[T]:
        try:
            return [await call]
        except Exception as error:  # noqa: BLE001  (raised below)
            errors.append(error)
            for task in running:
                task.cancel()
            return []

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(outcome(call)) for call in begun]
    finally:
        for call in begun:
            call.close()  # else Python would warn of calls that were cancelled before they began
    if errors:
        raise errors[0] from None
    return [result for task in running for result in task.result()]


@asynccontextmanager
async def beside(work: Iterable[Coroutine[object, object, object]]) -> AsyncIterator[None]:
    """Run the calls of `work` beside the ``async with`` block; cancel them when the block ends.

    If one call fails, the block is cancelled and the error is raised in an exception group.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
