"""A wait between two rounds of work that goes by settings which may change while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Pause:
    """Waits in the event loop, for one waiter at a time; may be cut short or measured anew.

    This is how a component follows its settings: it has a public attribute `settings`, reads it
    anew in each round, and calls `measure_again` when it is replaced, so that a pause of an hour
    does not outlast the setting that made it so long.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End the wait now; the next one, if nobody waits."""
        self._ended = True
        self._woken.set()

    def clear(self) -> None:
        """Forget an `end` that no wait has seen."""
        self._ended = False

    def measure_again(self) -> None:
        """The length may be another one now; the wait goes on from when it began."""
        self._woken.set()

    async def wait(self, seconds: Callable[[], float]) -> bool:
        """Wait for as long as `seconds` says, asked anew after `measure_again`; True if ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._ended:
            self._woken.clear()
            left = began + seconds() - loop.time()
            if left <= 0:
                # As a sleep of nothing: others have their turn.
                await asyncio.sleep(0)
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        ended, self._ended = self._ended, False
        return ended
