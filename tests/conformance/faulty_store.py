"""A store between a test and a backend: it counts, loses replies, and holds writes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from bookie.errors import MetadataUnavailableError
from bookie.metadata.store import (
    Change,
    MetadataStore,
    Operation,
    Record,
    SessionEvent,
    Stat,
)


class FaultyStore(MetadataStore):
    """`store`, with what a test wants to happen to its requests. It does not open or close it."""

    backend = "a store with faults"

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.session_timeout_seconds = store.session_timeout_seconds
        self.counts: Counter[str] = Counter()
        """By the name of the method."""
        self.lost_replies = 0
        """So many of the next writes happen, and are not answered."""
        self.lost_requests = 0
        """So many of the next writes neither happen nor are answered."""
        self.is_down = False
        """Nothing is answered, and nothing happens."""
        self.before_write: Callable[[], object] = lambda: None
        self.hold_writes = asyncio.Event()
        self.hold_writes.set()
        """Cleared: writes wait before they happen."""

    @property
    def reads(self) -> int:
        """How many reads were asked for."""
        return sum(self.counts[name] for name in ("get", "exists", "get_children", "scan_children"))

    def _ask(self, name: str) -> None:
        self.counts[name] += 1
        if self.is_down:
            raise MetadataUnavailableError("the test took the store away")

    async def get(self, key: str) -> Record | None:
        self._ask("get")
        return await self._store.get(key)

    async def exists(self, key: str) -> bool:
        self._ask("exists")
        return await self._store.exists(key)

    async def get_children(self, key: str) -> list[str]:
        self._ask("get_children")
        return await self._store.get_children(key)

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        self._ask("scan_children")
        async for record in self._store.scan_children(key, after=after):
            yield record

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        self._ask("transaction")
        self.before_write()
        await self.hold_writes.wait()
        if self.lost_requests:
            self.lost_requests -= 1
            raise MetadataUnavailableError("the test lost the request")
        answer = await self._store.transaction(operations)
        if self.lost_replies:
            self.lost_replies -= 1
            raise MetadataUnavailableError("the test lost the reply")
        return answer

    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._store.watch(prefix)

    def session_events(self) -> AbstractAsyncContextManager[AsyncIterator[SessionEvent]]:
        return self._store.session_events()

    async def sync(self) -> None:
        self._ask("sync")
        await self._store.sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
