"""Values below a key prefix, kept in memory and updated by a watch of the metadata store.

A value is loaded at its first request, and dropped when the watch reports a change of its record.
The absence of a record is cached, too. All values are dropped when changes may have been missed
(`Resync`), and when a new session begins. While the store does not answer, the cache returns the
old values.

The next `get` after a write through the cache returns the written value, even before the watch
reports the write. If a record changes while it is loaded, the loaded value is not cached. Callers
share the cached values, so do not change a value that `get` returned. `read_modify_update` passes a
copy of the value to its function, which may change the copy.

Source: the metadata cache of Apache Pulsar.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from bookie.coordination.participant import Participant
from bookie.env.checked import checked
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    FormatError,
    KeyExistsError,
    MetadataClosedError,
    NoSuchKeyError,
    OperationTimeoutError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    Change,
    ChangeKind,
    Record,
    Resync,
    Stat,
    WatchEvent,
    check_prefix,
    is_under,
)
from bookie.metadata.session import SessionEvent
from bookie.telemetry import event_log

T = TypeVar("T")
R = TypeVar("R")

ENTRIES_MAX = 10_000
"""The most values that a cache keeps. The least recently used value is dropped first."""

UPDATE_SECONDS_MAX = 30.0
"""The longest time, in seconds, for which an update that loses to other writers is repeated."""

_log = event_log(__name__)


class Codec(Protocol[T]):
    """Converts values to bytes and back."""

    def encode(self, key: str, value: T) -> bytes:
        """Return the bytes of `value`, to be stored under `key`."""

    def decode(self, key: str, data: bytes, stat: Stat) -> T:
        """Decode `data` as a new value.

        Raises:
            FormatError: the bytes are damaged.
        """


class JsonCodec:
    """A codec that stores JSON values as compact text with sorted keys."""

    def encode(self, key: str, value: Any) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    def decode(self, key: str, data: bytes, stat: Stat) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"the record {key} is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    """A cached value, with the version and times of its record."""

    value: T
    stat: Stat


@dataclass(eq=False, slots=True)
class _Write:
    """A write through the cache that has not ended yet."""

    key: str
    newest: float = -1
    """The greatest revision of the key in the events and answers since the write began.

    If it is greater than this write's own revision, a later write may have changed the key. An
    unknown revision counts as infinite.
    """


class MetadataCache(Generic[T]):
    """A cache of the values at and below `prefix`: an async context manager.

    Enter the context before the first read, because a watch updates the cache only in the context.

    Args:
        participant: the participant whose store has the values; the store must stay open until the
            cache is closed.
        prefix: the key at and below which values are cached; the methods raise BadRequestError for
            any other key.
        codec: converts values to bytes and back.
        on_change: called with each change of a key, after the cache has dropped the old value.
            `on_change` is also called with `Resync`, after the cache has dropped all values.
        on_reload: if given, the cache loads a cached value again as soon as its record has changed.
            After the load, `on_reload` is called with the key and the new value.
        entries_max: the most values that are cached.
    """

    def __init__(
        self,
        participant: Participant,
        prefix: str,
        codec: Codec[T],
        *,
        on_change: Callable[[WatchEvent | Resync], object] | None = None,
        on_reload: Callable[[str, Cached[T] | None], object] | None = None,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self._participant = participant
        self._store = participant.store
        self._prefix = check_prefix(prefix)
        self._codec = codec
        self._on_change = on_change
        self._on_reload = on_reload
        self._entries_max = entries_max
        self._entries: OrderedDict[str, Cached[T] | None] = OrderedDict()
        self._loads: dict[str, asyncio.Future[Cached[T] | None]] = {}
        """The running loads whose results are still current, so that they can be cached."""
        self._writes: set[_Write] = set()
        self._watch = AsyncExitStack()
        self._follower: asyncio.Task[None] | None = None

    # ---- reading

    async def get(self, key: str) -> T | None:
        """Return the value of `key`, or None if there is no record; see `get_with_stat`."""
        found = await self.get_with_stat(key)
        return None if found is None else found.value

    async def get_with_stat(self, key: str) -> Cached[T] | None:
        """Return the value of `key` with its record's `Stat`, or None if there is no record.

        Concurrent calls for the same key wait for one common read of the store.

        Raises:
            FormatError: the record cannot be decoded; the cache does not change.
            MetadataUnavailableError: the value is not cached, and the store does not answer.
        """
        self._check(key)
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = asyncio.get_running_loop().create_future()
            self._participant.spawn(self._load(key, load))
        return await asyncio.shield(load)

    def get_if_cached(self, key: str) -> T | None:
        found = self._entries.get(self._check(key))
        return None if found is None else found.value

    async def exists(self, key: str) -> bool:
        """Ask the store if `key` has a record or children; the answer is not cached."""
        return await self._store.exists(self._check(key))

    async def get_children(self, key: str) -> list[str]:
        """Read the names of the children of `key` from the store; the answer is not cached."""
        return await self._store.get_children(self._check(key))

    # ---- writing

    @checked
    async def create(self, key: str, value: T, *, ephemeral: bool = False) -> Stat:
        """Create a record.

        Raises:
            KeyExistsError: the record exists.
        """
        return await self._write(key, value, NOT_EXISTS, ephemeral=ephemeral)

    @checked
    async def put(self, key: str, value: T, *, ephemeral: bool = False) -> Stat:
        """Create or replace a record. With `ephemeral`, the record ends with the store's session.

        Raises:
            KeyExistsError: `ephemeral` is True, and the existing record is persistent.
            OperationTimeoutError: `ephemeral` is True, and other writers changed the record
                repeatedly for `UPDATE_SECONDS_MAX`.
        """
        if not ephemeral:
            return await self._write(key, value, None, ephemeral=False)

        record = await self._store.get(self._check(key))
        if record is not None and not record.ephemeral:
            raise KeyExistsError(f"{key} exists and is not ephemeral")

        async def attempt() -> Stat:
            record = await self._store.get(key)
            version = NOT_EXISTS if record is None else record.version
            return await self._write(key, value, version, ephemeral=True)

        return await self._until_first(key, attempt)

    @checked
    async def delete(self, key: str) -> None:
        """Delete a record.

        Raises:
            NoSuchKeyError: there is no record.
        """
        self._check(key)
        try:
            await self._store.delete(key)
        finally:
            self._supersede(key, None)
            self.invalidate(key)

    @checked
    async def read_modify_update(self, key: str, modify: Callable[[T], T]) -> T:
        """Call `modify` with a copy of the value; write the result as the new value, and return it.

        If another writer changes the record first, `modify` is called again with the newer value.

        Raises:
            NoSuchKeyError: there is no record.
            OperationTimeoutError: other writers changed the record repeatedly for
                `UPDATE_SECONDS_MAX`.
        """

        def refuse() -> T:
            raise NoSuchKeyError(f"{key} does not exist")

        return await self._read_modify_update(key, modify, refuse)

    @checked
    async def read_modify_update_or_create(self, key: str, modify: Callable[[T | None], T]) -> T:
        """Like `read_modify_update`, but create a missing record with the value `modify(None)`."""
        return await self._read_modify_update(key, modify, lambda: modify(None))

    async def _read_modify_update(
        self, key: str, modify: Callable[[T], T], create: Callable[[], T]
    ) -> T:
        async def attempt() -> T:
            found = await self.get_with_stat(key)
            if found is None:
                value = create()
                await self._write(key, value, NOT_EXISTS)
            else:
                data = self._codec.encode(key, found.value)
                value = modify(self._codec.decode(key, data, found.stat))
                await self._write(key, value, found.stat.version)
            return value

        return await self._until_first(key, attempt)

    # ---- dropping

    def invalidate(self, key: str) -> None:
        """Drop the cached value of `key`; if `key` is being loaded now, do not cache the result."""
        self._check(key)
        self._entries.pop(key, None)
        self._loads.pop(key, None)

    def invalidate_all(self) -> None:
        for write in self._writes:
            write.newest = math.inf
        self._entries.clear()
        self._loads.clear()

    @checked
    async def refresh(self, key: str) -> None:
        """Load the value of `key` again if it is cached."""
        if key in self._entries:
            self.invalidate(key)
            await self.get_with_stat(key)

    # ---- life

    async def __aenter__(self) -> Self:
        changes = await self._watch.enter_async_context(self._store.watch(self._prefix))
        self._participant.on_session(self._on_session)
        self._follower = self._participant.spawn(self._follow(changes))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._participant.forget(self._on_session)
        if self._follower is not None:
            self._follower.cancel()
        await self._watch.aclose()
        self.invalidate_all()

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            self.invalidate_all()

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        try:
            async for change in changes:
                if isinstance(change, Resync):
                    reload = list(self._entries)
                    self.invalidate_all()
                    self._tell(change)
                else:
                    reload = [event.key for event in change.events if self._take(event)]
                    for event in change.events:
                        self._tell(event)
                if self._on_reload is not None:
                    for key in reload:
                        await self._reload(key)
        except MetadataClosedError:
            self.invalidate_all()

    def _take(self, event: WatchEvent) -> bool:
        """Drop the value that `event` replaces; return True if the key must be loaded again."""
        self._supersede(event.key, event.revision)
        if event.key not in self._entries:
            # A load may be under way, and the value that it returns may be older than the event.
            was_loading = self._loads.pop(event.key, None) is not None
            return was_loading and self._on_reload is not None
        found = self._entries[event.key]
        known = None if found is None else found.stat.revision
        if event.revision is not None and known is not None and known >= event.revision:
            return False  # the cached value already includes this change
        self.invalidate(event.key)
        return event.kind is not ChangeKind.DELETED or self._on_reload is not None

    def _supersede(self, key: str, revision: int | None) -> None:
        """Prevent running writes of `key` from caching a value older than `revision`."""
        newest = math.inf if revision is None else revision
        for write in self._writes:
            if write.key == key:
                write.newest = max(write.newest, newest)

    def _tell(self, change: WatchEvent | Resync) -> None:
        if self._on_change is not None:
            self._on_change(change)

    async def _reload(self, key: str) -> None:
        assert self._on_reload is not None
        try:
            found = await self.get_with_stat(key)
        except MetadataClosedError:
            raise
        except BookieError as error:
            _log.warning("value_not_reloaded", key=key, reason=str(error))
        else:
            self._on_reload(key, found)

    # ---- the store

    def _check(self, key: str) -> str:
        if not isinstance(key, str):
            raise BadRequestError(f"a key must be a string, not {type(key).__name__}")
        if not is_under(self._prefix, key):
            raise BadRequestError(f"{key} is not below {self._prefix}, which is cached here")
        return key

    async def _load(self, key: str, load: asyncio.Future[Cached[T] | None]) -> None:
        try:
            record = await self._store.get(key)
            found = None if record is None else self._decode(record)
        except BookieError as error:
            if self._loads.get(key) is load:
                del self._loads[key]
            load.set_exception(error)
            load.exception()  # asyncio logs no error, even if all callers of `get` were cancelled
            return
        except asyncio.CancelledError:
            load.cancel()
            raise
        if self._loads.get(key) is load:
            del self._loads[key]
            self._supersede(key, None if found is None else found.stat.revision)
            self._keep(key, found)
        load.set_result(found)

    def _decode(self, record: Record) -> Cached[T]:
        return Cached(self._codec.decode(record.key, record.value, record.stat), record.stat)

    def _keep(self, key: str, found: Cached[T] | None) -> None:
        self._entries[key] = found
        self._entries.move_to_end(key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    async def _write(
        self, key: str, value: T, version: int | None, *, ephemeral: bool = False
    ) -> Stat:
        self._check(key)
        data = self._codec.encode(key, value)
        write = _Write(key)
        self._writes.add(write)
        try:
            stat = await self._store.put(key, data, version=version, ephemeral=ephemeral)
        finally:
            self._writes.discard(write)
            # Drop the value even after an error, because the write may have happened all the same.
            self.invalidate(key)
        self._supersede(key, stat.revision)
        if stat.revision is not None and stat.revision >= write.newest:
            # The cache gets a copy, because the caller may change `value` later.
            self._keep(key, Cached(self._codec.decode(key, data, stat), stat))
        return stat

    async def _until_first(self, key: str, attempt: Callable[[], Awaitable[R]]) -> R:
        loop = asyncio.get_running_loop()
        until = loop.time() + UPDATE_SECONDS_MAX
        tries = 0
        while True:
            try:
                return await attempt()
            except BadVersionError as error:
                self.invalidate(key)
                if loop.time() >= until:
                    raise OperationTimeoutError(
                        f"others kept changing {key} for {UPDATE_SECONDS_MAX:g} seconds"
                    ) from error
            if tries:
                await self._participant.pause(min(tries - 1, 3))
            tries += 1
