"""An event loop that is held up when a test says so, as by a call that blocks it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock a test moves; waiting for the next timer takes no time.

    `hold_up` acts like a call that blocks or a process that is stopped. Time passes, and timers run
    out before other work goes on.
    """

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def hold_up(self, seconds: float) -> None:
        self.now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing ever arrives from outside: what is waited for is the clock."""
        assert timeout is not None, "nothing is left to wait for"
        self._loop.now += timeout
        return []


def in_virtual_time(test: Callable[[Loop], Coroutine[object, object, None]]) -> None:
    """Run a test on a loop whose clock it may move."""
    loop = Loop()
    try:
        loop.run_until_complete(test(loop))
    finally:
        loop.close()
