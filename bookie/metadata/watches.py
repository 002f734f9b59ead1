"""Delivery of events to consumers, shared by all stores.

Each consumer has a bounded queue, so the store never waits for a consumer. When the queue is full,
one overflow item (`Resync` for watches) replaces all queued items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from bookie.errors import BookieError, MetadataClosedError
from bookie.metadata.model import Change, Commit, Resync, WatchEvent, is_under
from bookie.metadata.session import SessionEvent

T = TypeVar("T")

BACKLOG_MAX = 10_000
"""The most items that wait for a consumer; when one more arrives, an overflow item replaces all."""


class Subscription(Generic[T]):
    """An async iterator over pushed items; `push` and the consumer must use one event loop."""

    def __init__(self, overflow: T, backlog_max: int = BACKLOG_MAX) -> None:
        self._overflow = overflow
        self._backlog_max = backlog_max
        self._items: deque[T] = deque()
        self._arrived = asyncio.Event()
        self._end: BookieError | None = None

    def push(self, item: T) -> None:
        """Queue `item`; if the queue is full, one overflow item replaces the queue and `item`."""
        if len(self._items) >= self._backlog_max:
            self._items.clear()
            item = self._overflow
        self._items.append(item)
        self._arrived.set()

    def end(self, error: BookieError) -> None:
        """End the iterator: after all queued items were taken, `__anext__` raises `error`."""
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


class Watches:
    """The watches of one store, each on a prefix, for use in the store's event loop only."""

    def __init__(self) -> None:
        self._watches: dict[Subscription[Change], tuple[str, int]] = {}
        """Watch → its prefix, and the revision after which the watch gets commits."""

    def __bool__(self) -> bool:
        return bool(self._watches)

    @contextmanager
    def open(self, prefix: str, since: int = -1) -> Iterator[AsyncIterator[Change]]:
        """Yield an iterator of the changes at or below `prefix` after revision `since`."""
        subscription: Subscription[Change] = Subscription(overflow=Resync())
        self._watches[subscription] = (prefix, since)
        try:
            yield subscription
        finally:
            del self._watches[subscription]

    def deliver(self, revision: int | None, events: Sequence[WatchEvent]) -> None:
        """Give each watch those changes of a commit that are at or below the watch's prefix."""
        for subscription, (prefix, since) in self._watches.items():
            if revision is not None and revision <= since:
                continue
            concerned = tuple(event for event in events if is_under(prefix, event.key))
            if concerned:
                subscription.push(Commit(revision, concerned))

    def resync(self, revision: int | None = None) -> None:
        """Push `Resync` to all watches, because commits may be missing.

        If `revision` is given, commits after it are delivered from now on. This matters if the
        store went back to an older state than a watch began with.
        """
        for subscription, (prefix, since) in self._watches.items():
            if revision is not None:
                self._watches[subscription] = (prefix, min(since, revision))
            subscription.push(Resync())

    def end(self) -> None:
        for subscription in self._watches:
            subscription.end(MetadataClosedError("the metadata store is closed"))


class SessionWatches:
    """Delivers a session's events to all consumers."""

    def __init__(self) -> None:
        self._subscriptions: dict[Subscription[SessionEvent], None] = {}
        """The consumers, in the order in which they subscribed."""

    @contextmanager
    def open(self) -> Iterator[AsyncIterator[SessionEvent]]:
        """Yield an iterator of the session's events from now on."""
        subscription = Subscription(overflow=SessionEvent.SESSION_REESTABLISHED)
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]

    def announce(self, event: SessionEvent) -> None:
        for subscription in self._subscriptions:
            subscription.push(event)

    def end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end(MetadataClosedError("the metadata store is closed"))
