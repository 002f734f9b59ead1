"""A store between a test and a backend: it counts, loses replies, and holds writes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Self

from bookie.errors import MetadataUnavailableError
from bookie.metadata.model import Change, Operation, Record, Stat
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore


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
        """So many of the next writes are lost before they happen; their callers hear no answer."""
        self.loses_request: Callable[[Sequence[Operation]], bool] = lambda _: False
        """True if a write is one of these."""
        self.lost: list[Sequence[Operation]] = []
        """The writes of the lost requests, for a test that wants them to happen late."""
        self.latency_seconds = 0.0
        """Reads and writes of records take so long."""
        self.is_down = False
        """True: calls fail without effect."""
        self.lost_listings = 0
        """So many of the next scans are not answered."""
        self.lost_watches = 0
        """So many of the next watches do not begin."""
        self.before_write: Callable[[], object] = lambda: None
        self.after_write: Callable[[Sequence[Operation]], object] = lambda _: None
        """Called when a write happened, before it is answered."""
        self.hold_writes = asyncio.Event()
        self.hold_writes.set()
        """Cleared: writes wait before they happen."""
        self.hold_reply: asyncio.Event | None = None
        """The next write happens, and its answer waits for this; others are answered."""
        self.hold_changes = asyncio.Event()
        self.hold_changes.set()
        """Cleared: what watches saw waits."""
        self._past: dict[str, Record] | None = None
        """The state that reads show meanwhile; see `fall_behind`."""

    async def fall_behind(self) -> None:
        """Reads show what is there now until a sync or a write, as of a server that is late."""
        past: dict[str, Record] = {}
        await _copy_below(self._store, "/", past)
        self._past = past

    @property
    def reads(self) -> int:
        """Number of reads."""
        return sum(self.counts[name] for name in ("get", "exists", "get_children", "scan_children"))

    @property
    def is_session_certain(self) -> bool:
        return self._store.is_session_certain

    def _ask(self, name: str) -> None:
        self.counts[name] += 1
        if self.is_down:
            raise MetadataUnavailableError("the test took the store away")

    async def get(self, key: str) -> Record | None:
        self._ask("get")
        await asyncio.sleep(self.latency_seconds)
        if self._past is not None:
            return self._past.get(key)
        return await self._store.get(key)

    async def exists(self, key: str) -> bool:
        self._ask("exists")
        if self._past is not None:
            return any(one == key or one.startswith(key + "/") for one in self._past)
        return await self._store.exists(key)

    async def get_children(self, key: str) -> list[str]:
        self._ask("get_children")
        if self._past is not None:
            below = [one.removeprefix(key + "/") for one in self._past if one.startswith(key + "/")]
            return sorted({one.partition("/")[0] for one in below})
        return await self._store.get_children(key)

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        self._ask("scan_children")
        if self.lost_listings:
            self.lost_listings -= 1
            raise MetadataUnavailableError("the test lost the listing")
        if self._past is not None:
            for record in sorted(self._past.values(), key=lambda one: one.name):
                if record.key == f"{key}/{record.name}" and record.name > after:
                    yield record
            return
        async for record in self._store.scan_children(key, after=after):
            yield record

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        self._ask("transaction")
        self.before_write()
        await asyncio.sleep(self.latency_seconds)
        hold_reply, self.hold_reply = self.hold_reply, None
        await self.hold_writes.wait()
        if self.lost_requests or self.loses_request(operations):
            self.lost_requests = max(0, self.lost_requests - 1)
            self.lost.append(operations)
            raise MetadataUnavailableError("the test lost the request")
        answer = await self._store.transaction(operations)
        self.after_write(operations)
        if hold_reply is not None:
            await hold_reply.wait()
        if self.lost_replies:
            self.lost_replies -= 1
            raise MetadataUnavailableError("the test lost the reply")
        self._past = None
        return answer

    async def enclosing_scopes(self, names: Collection[str]) -> list[str]:
        self._ask("enclosing_scopes")
        return await self._store.enclosing_scopes(names)

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        self._ask("watch")
        if self.lost_watches:
            self.lost_watches -= 1
            raise MetadataUnavailableError("the test lost the watch")
        async with self._store.watch(prefix) as changes:
            yield _HeldChanges(changes, self.hold_changes)

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        async with self._store.session_events() as events:
            yield events

    async def sync(self) -> None:
        self._ask("sync")
        await self._store.sync()
        self._past = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def _copy_below(store: MetadataStore, key: str, to: dict[str, Record]) -> None:
    for name in await store.get_children(key):
        child = f"{key.rstrip('/')}/{name}"
        if (record := await store.get(child)) is not None:
            to[child] = record
        await _copy_below(store, child, to)


class _HeldChanges:
    """The changes of a watch, which wait for `hold`."""

    def __init__(self, changes: AsyncIterator[Change], hold: asyncio.Event) -> None:
        self._changes = changes
        self._hold = hold

    def __aiter__(self) -> _HeldChanges:
        return self

    async def __anext__(self) -> Change:
        change = await anext(self._changes)
        await self._hold.wait()
        return change
