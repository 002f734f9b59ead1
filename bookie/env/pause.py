"""A wait between two rounds of work; its length may change during the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Pause:
    """A wait for one task at a time; other code may end the wait early or change its length.

    A component with dynamic settings has a public attribute `settings` and reads it in each round
    of work. When `settings` is replaced, the component calls `measure_again`, so that a current
    wait gets its new length at once.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End the current wait now; if no task waits, end the next wait at its start."""
        self._ended = True
        self._woken.set()

    def clear(self) -> None:
        """Cancel an earlier `end` that has not ended a wait yet."""
        self._ended = False

    def measure_again(self) -> None:
        """Compute the length of the current wait again, counted from the start of the wait."""
        self._woken.set()

    async def wait(self, seconds: Callable[[], float]) -> bool:
        """Wait for the time that `seconds` returns; return True if `end` was called.

        `seconds` is called at the start, and again after each `measure_again`.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._ended:
            self._woken.clear()
            left = began + seconds() - loop.time()
            if left <= 0:
                # Let other tasks run.
                await asyncio.sleep(0)
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        ended, self._ended = self._ended, False
        return ended
