"""A bounded queue from a store to one consumer: the end of every watch.

The store pushes, never waits and never loses silently: when the consumer is too far behind, the
whole backlog is replaced by one overflow item (`Resync` for watches).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from bookie.errors import BookieError

T = TypeVar("T")

BACKLOG_MAX = 10_000
"""Items that wait for a consumer before they collapse."""


class Subscription(Generic[T]):
    """An async iterator over what is pushed; one consumer, in the event loop that pushes."""

    def __init__(self, overflow: T, backlog_max: int = BACKLOG_MAX) -> None:
        self._overflow = overflow
        self._backlog_max = backlog_max
        self._items: deque[T] = deque()
        self._arrived = asyncio.Event()
        self._end: BookieError | None = None

    def push(self, item: T) -> None:
        """Queue `item`; a full queue collapses into the overflow item, `item` included."""
        if len(self._items) >= self._backlog_max:
            self._items.clear()
            item = self._overflow
        self._items.append(item)
        self._arrived.set()

    def end(self, error: BookieError) -> None:
        """Let the consumer take what is queued, then raise `error` for good."""
        self._end = error
        self._arrived.set()

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()
