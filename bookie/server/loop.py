"""The event loop of a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run `main` on a new event loop until it ends, then close the loop."""
    with asyncio.Runner() as runner:
        return runner.run(main)
