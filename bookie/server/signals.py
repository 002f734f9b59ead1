"""SIGTERM and SIGINT as an event that the loop can wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@asynccontextmanager
async def until_signal() -> AsyncIterator[asyncio.Event]:
    """An event that is set by the first SIGTERM or SIGINT within the block.

    A second signal has its default effect: it ends the process without an orderly stop (SIGINT by
    KeyboardInterrupt).
    """
    loop = asyncio.get_running_loop()
    requested = asyncio.Event()

    def release() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    def request() -> None:
        requested.set()
        release()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, request)
    try:
        yield requested
    finally:
        release()
