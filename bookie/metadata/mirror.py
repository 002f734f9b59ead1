"""Views that follow a part of a store: after a change, `Mirror` reads only the changed records.

After a change, `follow` calls a function that reads everything again.

A view is the result of the last complete listing and of the changes since that listing. If a
listing fails, the view stays as it is, because a store that does not answer may still have the
records. After the store is closed, the view keeps its last state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from bookie.env import Backoff, jitter
from bookie.env.backoff import AROUND
from bookie.errors import BookieError, FormatError, MetadataClosedError, MetadataError, RequestError
from bookie.metadata.model import Change, Record, Resync, parent_of
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 5.0

_log = event_log(__name__)


def backoff() -> Backoff:
    """Return pauses with jitter, so that processes do not all retry together after an outage."""
    return Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)


class Mirror(Generic[T]):
    """The decoded records directly below some keys, updated by a watch in the async context.

    Args:
        store: the store, which must stay open until the mirror is closed.
        prefix: a key at or above all of `parents`, which the mirror watches.
        parents: the keys whose children are mirrored; they are listed in this order. If a record
            moves to a later parent during the listing, `values` may contain it under both parents.
        decode: decodes a record's value. A record that raises `FormatError` is logged and left out.
        on_change: called with all values, by key, after each change.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        parents: Sequence[str],
        decode: Callable[[Record], T],
        on_change: Callable[[Mapping[str, T]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._parents = parents
        self._decode = decode
        self._on_change = on_change
        self._values: dict[str, T] = {}
        self._unreadable: frozenset[str] = frozenset()
        """The keys of the records that `decode` refused, which `values` does not contain."""
        self._changed = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._follower: asyncio.Task[None] | None = None
        self._watch = AsyncExitStack()

    @property
    def values(self) -> Mapping[str, T]:
        """The current values by key, complete from the moment when the context is entered."""
        return MappingProxyType(self._values)

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            changes = await stack.enter_async_context(self._store.watch(self._prefix))
            await self._apply(Resync())
            await self._tasks.__aenter__()
            self._follower = self._tasks.create_task(self._follow(changes))
            self._watch = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._follower is not None
        self._follower.cancel()
        try:
            # The group does not get the body's error, because the group would wrap the error.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._watch.aclose()

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        try:
            async for change in changes:
                due, pauses = change, backoff()
                while not await self._try_apply(due):
                    await asyncio.sleep(pauses.next())
                    due = Resync()  # changes may have come meanwhile, so list all
        except MetadataClosedError:
            return

    async def _try_apply(self, change: Change) -> bool:
        """Apply a change and return True; if a read fails, change nothing and return False."""
        try:
            await self._apply(change)
        except MetadataClosedError:
            raise
        except BookieError:
            return False
        return True

    async def _apply(self, change: Change) -> None:
        values: dict[str, T] = {}
        unreadable: set[str] = set()
        if isinstance(change, Resync):
            for parent in self._parents:
                async for record in self._store.scan_children(parent):
                    self._keep(values, unreadable, record)
        else:
            values.update(self._values)
            unreadable.update(self._unreadable)
            for event in change.events:
                if parent_of(event.key) in self._parents:
                    found = await self._store.get(event.key)
                    unreadable.discard(event.key)
                    if found is None:
                        values.pop(event.key, None)
                    else:
                        self._keep(values, unreadable, found)
        self._unreadable = frozenset(unreadable)
        if values != self._values:
            self._values = values
            self._on_change(values)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _keep(self, values: dict[str, T], unreadable: set[str], record: Record) -> None:
        try:
            values[record.key] = self._decode(record)
        except FormatError as error:
            # A newer version of bookie may have written the record. All other records stay usable.
            unreadable.add(record.key)
            _log.warning("record_unreadable", key=record.key, reason=str(error))


async def follow(
    store: MetadataStore, prefix: str, read: Callable[[], Awaitable[T]], take: Callable[[T], None]
) -> None:
    """Call `take` with the result of `read`, now and after each change below `prefix`.

    One call of `take` may cover several changes. If the store does not answer or refuses this
    process, or if `read` raises a `MetadataError` or `RequestError`, `follow` tries again after a
    pause. If `read` raises `FormatError`, the error is logged, and `take` is not called. `follow`
    returns when the store is closed.
    """
    pauses = backoff()
    while True:
        try:
            async with store.watch(prefix) as changes:
                while True:
                    try:
                        take(await read())
                    except FormatError as error:
                        _log.warning("metadata_not_understood", reason=str(error))
                    pauses.reset()
                    await anext(changes)
        except MetadataClosedError:
            return
        except (MetadataError, RequestError):
            # No change is missed during the pause, because `read` is called at the start of the
            # next watch.
            await asyncio.sleep(pauses.next())
