"""What the tasks of this process wait for: the first thing to know when something hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`; the error says what all tasks were waiting for when time was up."""
    waiting: list[str] = []
    loop = asyncio.get_running_loop()
    # Before the timeout: it cancels, and then the tasks wait for something else.
    look = loop.call_later(seconds - 0.5, lambda: waiting.extend(waiting_tasks()))
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        error.add_note("\n".join(["waiting at the end:", *waiting]))
        raise
    finally:
        look.cancel()


def waiting_tasks() -> list[str]:
    """One line for each task: the functions that await each other, the innermost last."""
    return sorted(f"  {one.get_name()}: {' > '.join(_frames(one))}" for one in asyncio.all_tasks())


def _frames(task: asyncio.Task[Any]) -> list[str]:
    found: list[str] = []
    one: Any = task.get_coro()
    while one is not None:
        frame = _first(one, "cr_frame", "ag_frame", "gi_frame")
        if frame is None:
            found.append(type(one).__name__)
        else:
            file = frame.f_code.co_filename.rpartition("/")[2]
            found.append(f"{frame.f_code.co_name} ({file}:{frame.f_lineno})")
        one = _first(one, "cr_await", "ag_await", "gi_yieldfrom")
    return found


def _first(one: object, *names: str) -> Any:
    return next((getattr(one, name) for name in names if hasattr(one, name)), None)
