"""A limit on the bytes per second of background work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLEEP_SECONDS_MIN, SLEEP_SECONDS_MAX = 0.001, 1.0
"""The shortest and the longest sleep; after each sleep, a waiting task reads the rate again."""


class Pace:
    """Limits the bytes per second of background work; all tasks share the rate.

    When the rate changes, a waiting task uses the new rate within `SLEEP_SECONDS_MAX`.

    Args:
        bytes_per_second: returns the current rate; 0 means no limit.
    """

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._taken = 0
        self._passed = 0.0
        """`_taken` counts the bytes of all calls; `_passed` counts the bytes permitted so far."""
        self._at = 0.0

    async def spend(self, size: int) -> None:
        """Count `size` bytes, then wait until the rate permits the bytes of all earlier calls."""
        rate = self._let_pass()
        if not rate:
            return
        earlier = self._taken
        self._taken += size
        while rate and (left := earlier - self._passed) >= 1:
            await asyncio.sleep(min(max(left / rate, SLEEP_SECONDS_MIN), SLEEP_SECONDS_MAX))
            rate = self._let_pass()

    def _let_pass(self) -> int:
        """Count the bytes that the rate permitted since the last call; return the current rate."""
        rate = self._bytes_per_second()
        now = asyncio.get_running_loop().time()
        # Time without work does not permit more bytes later.
        passed = self._passed + (now - self._at) * rate if rate else self._taken
        self._passed = min(self._taken, passed)
        self._at = now
        return rate
