"""A limit on the bytes per second of background work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLEEP_SECONDS_MIN, SLEEP_SECONDS_MAX = 0.001, 1.0
"""The longest is the time after which a new rate counts for those that wait."""


class Pace:
    """Limits the bytes per second of background work; all users share the rate.

    The debt is kept in bytes. So another rate also counts for those that wait.

    Args:
        bytes_per_second: returns the current rate; 0 means no limit.
    """

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._taken = 0
        self._passed = 0.0
        """All bytes that were taken, and those of them whose time has passed."""
        self._at = 0.0

    async def spend(self, size: int) -> None:
        """Wait until earlier bytes fit into the rate, then take `size` bytes of it."""
        rate = self._let_pass()
        if not rate:
            return
        earlier = self._taken
        self._taken += size
        while rate and (left := earlier - self._passed) >= 1:
            await asyncio.sleep(min(max(left / rate, SLEEP_SECONDS_MIN), SLEEP_SECONDS_MAX))
            rate = self._let_pass()

    def _let_pass(self) -> int:
        """Count the bytes that fit into the time since the last call; returns the rate."""
        rate = self._bytes_per_second()
        now = asyncio.get_running_loop().time()
        # An idle time is no credit.
        passed = self._passed + (now - self._at) * rate if rate else self._taken
        self._passed = min(self._taken, passed)
        self._at = now
        return rate
