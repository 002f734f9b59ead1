"""The store in memory: ``memory://NAME``, shared by everybody in the process who uses the name.

It is the model of all stores: sessions are real (several on one name, each with its own ephemeral
records), commits are numbered, watches see them in order. A name's records live as long as the
process, so that a store can be closed and opened again. It is for tests and demonstrations: a
bookie that keeps its data on disk must not keep its metadata here.

Faults are simulated by methods of `MemoryStore`: `expire_session`, `disconnect`, `reconnect`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bookie.env import SystemClock
from bookie.errors import MetadataClosedError, MetadataUnavailableError, SessionLostError
from bookie.metadata.judge import Removal, Write, judge
from bookie.metadata.store import (
    EXPIRY_EVENTS,
    Change,
    ChangeKind,
    Commit,
    MetadataStore,
    Operation,
    Record,
    Resync,
    SessionEvent,
    Stat,
    WatchEvent,
    check_key,
    check_prefix,
    check_transaction,
    is_under,
    parent_of,
)
from bookie.metadata.subscription import Subscription

_trees: dict[str, _Tree] = {}
_trees_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Node:
    value: bytes
    version: int
    owner: bytes
    version_at_creation: int
    created_ms: int
    modified_ms: int

    def stat(self, key: str, session: bytes) -> Stat:
        return Stat(
            key=key,
            version=self.version,
            revision=self.version,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
            ephemeral=bool(self.owner),
            created_by_self=self.owner == session,
            first_version=self.version == self.version_at_creation,
        )


class _Tree:
    """The records of one name. Every method is called with `lock` held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self.nodes: dict[str, _Node] = {}
        self.children: dict[str, set[str]] = {}
        self.stores: list[MemoryStore] = []
        self._sessions_begun = 0
        self._alive: set[bytes] = set()

    def find(self, key: str) -> _Node | None:
        return self.nodes.get(key)

    def has_children(self, key: str) -> bool:
        return bool(self.children.get(key))

    def begin_session(self) -> bytes:
        self._sessions_begun += 1
        session = self._sessions_begun.to_bytes(8, "big")
        self._alive.add(session)
        return session

    def is_alive(self, session: bytes) -> bool:
        return session in self._alive

    def end_session(self, session: bytes) -> None:
        self._alive.discard(session)
        owned = sorted(key for key, node in self.nodes.items() if node.owner == session)
        if owned:
            self._commit(Removal(key, session) for key in owned)

    def transact(self, operations: Sequence[Operation], session: bytes) -> list[Stat | None]:
        if session not in self._alive:
            raise SessionLostError("the session with the metadata store ended")
        effects = judge(operations, self, session, self.version + 1)
        self._commit(effect for effect in effects if effect is not None)
        return [
            self.nodes[effect.key].stat(effect.key, session) if isinstance(effect, Write) else None
            for effect in effects
        ]

    def _commit(self, effects: Iterable[Write | Removal]) -> None:
        version = self.version + 1
        events = []
        for effect in effects:
            if isinstance(effect, Write):
                created = effect.owner_before is None
                self._write(effect, version)
                kind = ChangeKind.CREATED if created else ChangeKind.MODIFIED
            else:
                del self.nodes[effect.key]
                self._unlink(effect.key)
                kind = ChangeKind.DELETED
            events.append(WatchEvent(kind, effect.key, version))
        if events:
            self.version = version
            commit = Commit(version, tuple(events))
            for store in self.stores:
                store.deliver(commit)

    def _write(self, write: Write, version: int) -> None:
        now_ms = SystemClock().now_ms()
        before = self.nodes.get(write.key)
        # Changing hands begins a new life.
        is_same_life = before is not None and before.owner == write.owner
        self.nodes[write.key] = _Node(
            write.value,
            version,
            write.owner,
            before.version_at_creation if before is not None and is_same_life else version,
            before.created_ms if before is not None and is_same_life else now_ms,
            now_ms,
        )
        self._link(write.key)

    def _link(self, key: str) -> None:
        while key != "/":
            parent, name = parent_of(key), key.rpartition("/")[2]
            names = self.children.setdefault(parent, set())
            if name in names:
                return
            names.add(name)
            key = parent

    def _unlink(self, key: str) -> None:
        while key != "/" and key not in self.nodes and key not in self.children:
            parent, name = parent_of(key), key.rpartition("/")[2]
            names = self.children[parent]
            names.discard(name)
            if not names:
                del self.children[parent]
            key = parent


def _tree(name: str) -> _Tree:
    with _trees_lock:
        return _trees.setdefault(name, _Tree())


class MemoryStore(MetadataStore):
    """A session with the memory store `name`."""

    backend = "the metadata store in memory"

    def __init__(self, name: str, *, session_timeout_seconds: float = 30.0) -> None:
        self.session_timeout_seconds = session_timeout_seconds
        self._tree = _tree(name)
        self._session = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = True
        self._watches: dict[Subscription[Change], str] = {}
        self._session_watches: set[Subscription[SessionEvent]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        with self._tree.lock:
            self._session = self._tree.begin_session()
            self._tree.stores.append(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._tree.lock:
            self._tree.stores.remove(self)
            self._tree.end_session(self._session)
        self._loop = None
        closed = MetadataClosedError("the metadata store is closed")
        for watch in self._watches:
            watch.end(closed)
        for session_watch in self._session_watches:
            session_watch.end(closed)

    async def get(self, key: str) -> Record | None:
        """See `MetadataStore.get`."""
        check_key(key)
        await self._reach()
        with self._tree.lock:
            return self._record(key)

    async def exists(self, key: str) -> bool:
        """See `MetadataStore.exists`."""
        check_prefix(key)
        await self._reach()
        with self._tree.lock:
            return key in self._tree.nodes or self._tree.has_children(key)

    async def get_children(self, key: str) -> list[str]:
        """See `MetadataStore.get_children`."""
        check_prefix(key)
        await self._reach()
        with self._tree.lock:
            return sorted(self._tree.children.get(key, ()))

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """See `MetadataStore.scan_children`."""
        for name in await self.get_children(key):
            if name <= after:
                continue
            await self._reach()
            with self._tree.lock:
                record = self._record(f"{key.rstrip('/')}/{name}")
            if record is not None:
                yield record

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """See `MetadataStore.transaction`."""
        check_transaction(operations)
        self._refuse_acl(operations)
        await self._reach()
        with self._tree.lock:
            return self._tree.transact(operations, self._session)

    async def sync(self) -> None:
        """See `MetadataStore.sync`: reads are always up to date here."""
        await self._reach()

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        """See `MetadataStore.watch`."""
        check_prefix(prefix)
        await self._reach()
        subscription: Subscription[Change] = Subscription(overflow=Resync())
        with self._tree.lock:
            self._watches[subscription] = prefix
        try:
            yield subscription
        finally:
            with self._tree.lock:
                del self._watches[subscription]

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        """See `MetadataStore.session_events`."""
        self._require_open()
        subscription = Subscription(overflow=SessionEvent.SESSION_REESTABLISHED)
        self._session_watches.add(subscription)
        try:
            yield subscription
        finally:
            self._session_watches.discard(subscription)

    def expire_session(self) -> None:
        """End the session as a server would: ephemeral records vanish, a new session begins.

        While disconnected the new session begins at `reconnect`.
        """
        with self._tree.lock:
            self._tree.end_session(self._session)
            if self._connected:
                self._session = self._tree.begin_session()
        self._announce(EXPIRY_EVENTS if self._connected else (SessionEvent.SESSION_LOST,))

    def disconnect(self) -> None:
        """Cut the connection: operations fail and watches stay silent until `reconnect`."""
        self._connected = False
        self._announce((SessionEvent.CONNECTION_LOST,))

    def reconnect(self) -> None:
        """Restore the connection: watches resync, and an expired session is replaced."""
        self._connected = True
        with self._tree.lock:
            expired = not self._tree.is_alive(self._session)
            if expired:
                self._session = self._tree.begin_session()
            for watch in self._watches:
                watch.push(Resync())
        self._announce(EXPIRY_EVENTS[2:] if expired else (SessionEvent.RECONNECTED,))

    def deliver(self, commit: Commit) -> None:
        """Hand a commit to the watches it concerns; called by the tree, in any thread."""
        loop = self._loop
        if loop is None or not self._connected:
            return
        for watch, prefix in self._watches.items():
            events = tuple(event for event in commit.events if is_under(prefix, event.key))
            if not events:
                continue
            change = Commit(commit.revision, events)
            if _is_running_here(loop):
                watch.push(change)
            else:
                loop.call_soon_threadsafe(watch.push, change)

    def _announce(self, events: Sequence[SessionEvent]) -> None:
        for subscription in self._session_watches:
            for event in events:
                subscription.push(event)

    def _record(self, key: str) -> Record | None:
        node = self._tree.nodes.get(key)
        if node is None:
            return None
        return Record(node.value, node.stat(key, self._session))

    def _require_open(self) -> None:
        if self._loop is None:
            raise MetadataClosedError("the metadata store is closed")

    async def _reach(self) -> None:
        """Give others their turn, as a network would, then fail if the store is unreachable."""
        self._require_open()
        await asyncio.sleep(0)
        self._require_open()
        if not self._connected:
            raise MetadataUnavailableError("the metadata store does not answer")


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
