"""Handles errors of an event loop that no task awaits."""

from __future__ import annotations

import asyncio
from typing import Any


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a callback, except for one error that gRPC causes.

    gRPC has one queue of events for all event loops of a process. `asyncio.run` closes its loop at
    its end. Another loop that takes an event for the closed loop from the queue raises "Event loop
    is closed". Other events are not lost, because each event wakes a loop again.
    """
    error = context.get("exception")
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        loop.default_exception_handler(context)
