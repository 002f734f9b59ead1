"""Handles errors of an event loop that no task awaits."""

from __future__ import annotations

import asyncio
from typing import Any


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a callback, except for one error that gRPC causes.

    All event loops of a process share gRPC's queue of events. If the owner of a loop has closed it,
    as `asyncio.run` does, an event for that loop raises an error. The error appears in another
    loop, which took the event. Each other event wakes a loop again.
    """
    error = context.get("exception")
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        loop.default_exception_handler(context)
