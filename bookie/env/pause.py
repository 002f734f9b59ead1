"""A wait between two rounds of work whose length may change while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Pause:
    """Waits in the event loop, for one waiter at a time; may be cut short or measured anew.

    A component with dynamic settings has a public attribute `settings` and reads it in each round.
    When it is replaced, the component calls `measure_again`, so that the new setting takes effect
    at once.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End the wait now, or the next one if none is under way."""
        self._ended = True
        self._woken.set()

    def clear(self) -> None:
        """Forget an `end` that no wait has seen."""
        self._ended = False

    def measure_again(self) -> None:
        """Compute the length again; the wait still counts from its begin."""
        self._woken.set()

    async def wait(self, seconds: Callable[[], float]) -> bool:
        """Wait for `seconds()`, computed again after `measure_again`; True if `end` ended it."""
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
