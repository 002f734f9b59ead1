"""What a caller waits for: a result that comes once, and is told at once.

A future of asyncio tells its callbacks in the next turn of the loop, and a task that waits for it
one turn later. Between a block's sync and the answers to its requests, that is a fifth of what the
loop does. So this one calls back as soon as it is settled. It may be awaited like a future; other
than a future it does not end when a caller that awaits it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result to come. It belongs to one event loop and never fails."""

    __slots__ = ("_callbacks", "_results")

    def __init__(self) -> None:
        self._results: tuple[T, ...] = ()
        """The result, once there is one."""
        self._callbacks: list[Callable[[T], None]] = []

    @classmethod
    def of(cls, result: T) -> Outcome[T]:
        """An outcome that is known already."""
        outcome: Outcome[T] = cls()
        outcome._results = (result,)
        return outcome

    def done(self) -> bool:
        """Whether there is a result."""
        return bool(self._results)

    def result(self) -> T:
        """The result; there is one."""
        return self._results[0]

    def settle(self, result: T) -> None:
        """Set the result, once, and tell everybody in the order in which they asked to be told."""
        assert not self._results, "an outcome is settled once"
        self._results = (result,)
        for callback in self._callbacks:
            callback(result)
        self._callbacks.clear()

    def then(self, callback: Callable[[T], None]) -> None:
        """Call `callback` with the result as soon as it is known, which may be now.

        The callback must not raise, nor do anything that could settle other outcomes before it
        returns: it runs in the middle of whoever settles this one.
        """
        if self._results:
            callback(self._results[0])
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[object, None, T]:
        """Wait for the result."""
        if not self._results:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: T) -> None:
                if not woken.done():
                    woken.set_result(None)

            self._callbacks.append(wake)
            yield from woken
        return self._results[0]
