"""`Outcome`: a future that runs its callbacks immediately when its result is set.

A future of asyncio runs its callbacks in the next turn of the event loop, and wakes a waiting task
one turn later. Between the sync of a journal block and the answers to clients, these extra turns
took a fifth of the loop's time. A task can await an `Outcome` like a future, but a cancelled task
does not cancel the `Outcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result that is set once, in one event loop; an `Outcome` never holds an exception."""

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
        """Call `callback` with the result: inside `settle`, or now if the result is known already.

        The callback must not raise. If the callback settles another outcome, the callbacks of that
        outcome run at once, too.
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
