"""`MemoryStore`: a session with the records of one name in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from bookie.errors import MetadataClosedError
from bookie.metadata.memory.tree import tree_of
from bookie.metadata.model import (
    Change,
    Commit,
    Operation,
    Record,
    Stat,
    check_key,
    check_listing,
    check_prefix,
    check_transaction,
)
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.watches import SessionWatches, Watches


class MemoryStore(MetadataStore):
    """A session with the memory store `name`; all sessions with one name share one store.

    No connection can break, so the session lasts as long as the context.
    """

    backend = "the metadata store in memory"

    def __init__(self, name: str, *, session_timeout_seconds: float = 30.0) -> None:
        self.session_timeout_seconds = session_timeout_seconds
        self._tree = tree_of(name)
        self._session = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = Watches()
        self._session_watches = SessionWatches()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        with self._tree.lock:
            self._session = self._tree.begin_session()
            self._tree.stores.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._tree.lock:
            self._tree.stores.remove(self)
            self._tree.end_session(self._session)
        self._loop = None
        self._watches.end()
        self._session_watches.end()

    @property
    def is_session_certain(self) -> bool:
        return self._loop is not None

    async def get(self, key: str) -> Record | None:
        check_key(key)
        await self._reach()
        with self._tree.lock:
            return self._record(key)

    async def exists(self, key: str) -> bool:
        check_prefix(key)
        await self._reach()
        with self._tree.lock:
            return key in self._tree.nodes or self._tree.has_children(key)

    async def get_children(self, key: str) -> list[str]:
        check_prefix(key)
        await self._reach()
        with self._tree.lock:
            return sorted(self._tree.children.get(key, ()))

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        check_listing(key, after)
        for name in await self.get_children(key):
            if name <= after:
                continue
            await self._reach()
            with self._tree.lock:
                record = self._record(f"{key.rstrip('/')}/{name}")
            if record is not None:
                yield record

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        check_transaction(operations)
        self._refuse_acl(operations)
        await self._reach()
        with self._tree.lock:
            return self._tree.transact(operations, self._session)

    async def sync(self) -> None:
        """Only check that the store is open, because reads always show the last commit."""
        await self._reach()

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        check_prefix(prefix)
        await self._reach()
        with self._tree.lock:
            version = self._tree.version
        with self._watches.open(prefix, version) as changes:
            yield changes

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        self._require_open()
        with self._session_watches.open() as events:
            yield events

    def deliver(self, commit: Commit) -> None:
        """Hand a commit to the watches; the tree calls this method, in any thread."""
        loop = self._loop
        if loop is None:
            return
        if _is_running_here(loop):
            self._watches.deliver(commit.revision, commit.events)
        else:
            loop.call_soon_threadsafe(self._watches.deliver, commit.revision, commit.events)

    def _record(self, key: str) -> Record | None:
        node = self._tree.nodes.get(key)
        return None if node is None else Record(node.value, node.stat(key, self._session))

    def _require_open(self) -> None:
        if self._loop is None:
            raise MetadataClosedError("the metadata store is closed")

    async def _reach(self) -> None:
        """Check that the store is open, and let other tasks run, like a call to a server."""
        self._require_open()
        await asyncio.sleep(0)
        self._require_open()


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
