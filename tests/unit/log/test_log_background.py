"""Calls in the background of a log's client; their callers are cancelled at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, cast

import pytest

from bookie.ledger.connection.pool import BookiePool
from bookie.log.background import Background


class TaskPool:
    """The part of a client's connections that a call needs."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    def require_open(self) -> None:
        """It is open."""

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """A task of the client."""
        return self._tasks.create_task(work, name=name)


async def test_a_second_cancellation_does_not_leave_the_call_behind() -> None:
    """The caller closes what the call works on; so the call must have ended by then."""
    ends = asyncio.Event()
    begun = asyncio.Event()

    async def slow_to_end() -> AsyncGenerator[int, None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            await ends.wait()

    async def read(pool: BookiePool) -> None:
        async with aclosing(slow_to_end()) as numbers:

            async def first() -> int:
                return await anext(numbers)

            call = Background(pool, first(), "a read")
            try:
                await asyncio.wait([call.task])
            finally:
                await call.close()

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cast("BookiePool", TaskPool(tasks))))
        await begun.wait()
        for _ in range(3):
            reading.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not reading.done()
        ends.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
