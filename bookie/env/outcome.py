"""A result that is set once, and then calls its callbacks immediately.

A future of asyncio runs its callbacks in the next turn of the event loop, and wakes a waiting task
one turn later. These turns took a fifth of the loop's time between the sync of a journal block and
the answers. An `Outcome` runs its callbacks as soon as it is settled. A task can await an `Outcome`
like a future; a cancelled task does not cancel the `Outcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result that will be set later; it belongs to one event loop and is never an error."""

    __slots__ = ("_callbacks", "_results")

    def __init__(self) -> None:
        self._results: tuple[T, ...] = ()
        """A tuple with the result; empty until the result is known."""
        self._callbacks: list[Callable[[T], None]] = []

    @classmethod
    def of(cls, result: T) -> Outcome[T]:
        """Return an outcome whose result is already known."""
        outcome: Outcome[T] = cls()
        outcome._results = (result,)
        return outcome

    def done(self) -> bool:
        return bool(self._results)

    def result(self) -> T:
        return self._results[0]

    def settle(self, result: T) -> None:
        """Set the result, once, and run the callbacks in the order they were added."""
        assert not self._results, "an outcome is settled once"
        self._results = (result,)
        for callback in self._callbacks:
            callback(result)
        self._callbacks.clear()

    def then(self, callback: Callable[[T], None]) -> None:
        """Call `callback` with the result as soon as it is known, perhaps immediately.

        The callback runs inside `settle`, or at once if the result is known. The callback must not
        raise. The callback must not settle another outcome before it returns.
        """
        if self._results:
            callback(self._results[0])
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[object, None, T]:
        if not self._results:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: T) -> None:
                if not woken.done():
                    woken.set_result(None)

            self._callbacks.append(wake)
            yield from woken
        return self._results[0]
