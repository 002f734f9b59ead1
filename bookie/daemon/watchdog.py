"""The event loop watched by itself: how late it wakes, and a sign of life for the manager.

One slice of Python that runs too long delays every request of the bookie; the lag of a plain timer
shows it. The same loop sends the watchdog's sign of life, so that a stuck loop is restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

LAG_INTERVAL_SECONDS = 0.1


async def observe_loop_lag(
    observe: Callable[[float], None], *, interval_seconds: float = LAG_INTERVAL_SECONDS
) -> NoReturn:
    """Call `observe` with the seconds by which each timer fired late, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        observe(max(0.0, loop.time() - due))


async def beat(send: Callable[[], None], *, interval_seconds: float) -> NoReturn:
    """Call `send` every `interval_seconds`, at once first, until cancelled."""
    while True:
        send()
        await asyncio.sleep(interval_seconds)
