"""Logs errors that callbacks of an event loop raise."""

from __future__ import annotations

import asyncio
from typing import Any


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a callback, except for one error that gRPC causes.

    All event loops of a process share one event queue of gRPC, and `asyncio.run` closes its loop
    when it ends. If another loop takes an event for the closed loop from the queue, gRPC raises
    "Event loop is closed". No other event is lost, because each event wakes a loop again.
    """
    error = context.get("exception")
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        loop.default_exception_handler(context)
