"""A bound on the bytes per second of background work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pace:
    """Lets background work take so many bytes per second; all its users share the rate.

    Args:
        bytes_per_second: gives the rate now; 0 is no bound.
    """

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def spend(self, size: int) -> None:
        """Wait until earlier bytes fit into the rate, then take `size` bytes of it."""
        rate = self._bytes_per_second()
        if not rate:
            return
        now = asyncio.get_running_loop().time()
        begin = max(now, self._free_at)
        self._free_at = begin + size / rate
        if begin > now:
            await asyncio.sleep(begin - now)
