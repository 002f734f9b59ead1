"""Who is alive: a watched view of all registered bookies, for clients.

The view is what the last complete listing and the changes since said. A listing that fails changes
nothing: a store that does not answer is no reason to believe that all bookies are gone. Addresses
are remembered beyond a registration, because a bookie that lost its session goes on serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType, TracebackType
from typing import Self

from bookie.cluster import keys
from bookie.env import jitter
from bookie.errors import (
    BookieUnreachableError,
    FormatError,
    MetadataUnavailableError,
)
from bookie.formats.registration import Endpoint, Registration, decode_registration
from bookie.metadata.keeping_up import keep_up
from bookie.metadata.store import Change, MetadataStore, Record, Resync
from bookie.telemetry import event_log

ENDPOINT = "bookie"
"""The name of the endpoint that serves entries."""

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 5.0

_log = event_log(__name__)


class BookieDirectory:
    """The registered bookies; an async context manager that keeps the view up to date.

    When the context is entered the view is complete. All methods answer from memory.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._tasks = asyncio.TaskGroup()
        self._follower: asyncio.Task[None] | None = None
        self._watch = AsyncExitStack()
        self._records: dict[str, Registration] = {}
        """By key: what the store holds."""
        self._writable: dict[str, Registration] = {}
        self._read_only: dict[str, Registration] = {}
        self._last_known: dict[str, Registration] = {}
        self._changed = asyncio.Event()

    def bookies(self) -> Mapping[str, Registration]:
        """The bookies that take new entries, by id. A snapshot."""
        return MappingProxyType(self._writable)

    def read_only(self) -> Mapping[str, Registration]:
        """The bookies that only serve reads, by id. A snapshot."""
        return MappingProxyType(self._read_only)

    def all(self) -> Mapping[str, Registration]:
        """All registered bookies, by id. A snapshot."""
        return MappingProxyType({**self._read_only, **self._writable})

    def resolve(self, bookie_id: str) -> Endpoint:
        """Where a bookie is, or was when it was last seen.

        Raises:
            BookieUnreachableError: it was never registered while this directory watched, or serves
                no entries.
        """
        registration = self._last_known.get(bookie_id)
        if registration is None:
            raise BookieUnreachableError(f"bookie {bookie_id} is not registered")
        endpoint = registration.endpoint(ENDPOINT)
        if endpoint is None:
            raise BookieUnreachableError(f"bookie {bookie_id} names no address for entries")
        return endpoint

    async def wait_for_change(self) -> None:
        """Return after the next change of the view: a bookie came, went or changed."""
        await self._changed.wait()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            changes = await stack.enter_async_context(self._store.watch(keys.AVAILABLE))
            await self._load()
            await self._tasks.__aenter__()
            self._follower = self._tasks.create_task(keep_up(changes, self._apply, _pause))
            self._watch = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._follower is not None
        self._follower.cancel()
        try:
            # The body's own error passes by the group, which would wrap it.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._watch.aclose()

    async def _apply(self, change: Change) -> bool:
        """Bring the view up to date; False if the store did not answer, and nothing changed."""
        try:
            if isinstance(change, Resync):
                await self._load()
                return True
            changed = {event.key: await self._store.get(event.key) for event in change.events}
        except MetadataUnavailableError:
            return False
        records = dict(self._records)
        for key, record in changed.items():
            if record is None:
                records.pop(key, None)
            else:
                self._keep(records, record)
        self._publish(records)
        return True

    async def _load(self) -> None:
        records: dict[str, Registration] = {}
        # Writable first: a bookie that turns read-only in between is seen twice, not never.
        for parent in (keys.WRITABLE, keys.READ_ONLY):
            async for record in self._store.scan_children(parent):
                self._keep(records, record)
        self._publish(records)

    def _keep(self, records: dict[str, Registration], record: Record) -> None:
        try:
            records[record.key] = decode_registration(record.value)
        except FormatError as error:
            # A bookie of a newer version; the ones that can be read go on working.
            _log.warning("registration_unreadable", key=record.key, reason=str(error))

    def _publish(self, records: dict[str, Registration]) -> None:
        if records == self._records:
            return
        self._records = records
        self._writable, self._read_only = {}, {}
        for key, registration in sorted(records.items()):
            side = self._writable if keys.is_writable(key) else self._read_only
            side[registration.bookie_id] = registration
        self._last_known |= self.all()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _pause(attempt: int) -> None:
    seconds = min(RETRY_SECONDS_MIN * 2.0 ** min(attempt, 20), RETRY_SECONDS_MAX)
    await asyncio.sleep(seconds * (0.5 + jitter()))
