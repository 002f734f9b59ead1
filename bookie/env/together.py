"""Several calls at once, as if they were one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of `calls`, which run at the same time, in their order.

    If one fails the others are cancelled, and its own error is raised, not a group: as a rule they
    fail together, and callers know the error of one. If several have failed it is the first.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(call) for call in calls]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
