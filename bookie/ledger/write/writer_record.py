"""The ephemeral record of a client that writes; it exists as long as the client's session.

A ledger names its writer (`LedgerMetadata.writer_id`). While the writer's record exists, no auditor
recovers the ledger automatically. The metadata store deletes the record when the client's session
ends. A client that lost its session writes the record again, with the same id, in its new session.

A client writes its record before it creates or claims its first ledger. So a client that only reads
ledgers needs no right to write to the metadata store.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress

from bookie.cluster import keys
from bookie.cluster.instance import require_instance
from bookie.env import SystemClock, beside
from bookie.errors import (
    BadVersionError,
    BookieError,
    ClientClosedError,
    MetadataClosedError,
    NoSuchKeyError,
    UnauthorizedError,
)
from bookie.metadata.mirror import backoff
from bookie.metadata.model import NOT_EXISTS, Change, ChangeKind, Put, Resync
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

CLOSE_SECONDS_MAX = 2.0
"""The longest time to wait for the record's deletion. If the deletion fails, the store deletes the
record when the session ends."""

Spawn = Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]

_log = event_log(__name__)


class WriterRecord:
    """Writes a client's record when the record is first needed, and keeps the record until `close`.

    Args:
        store: the metadata store, whose session owns the record; must stay open until `close`
            returns.
        instance_id: the record is written only while the store holds this cluster.
        spawn: starts a task that lives as long as the client.
    """

    def __init__(self, store: MetadataStore, instance_id: str, spawn: Spawn) -> None:
        self._store = store
        self._instance_id = instance_id
        self._spawn = spawn
        self._writer_id = ""
        self._following: asyncio.Future[None] | None = None
        """A future, done when session and record are watched; None before the first `ensure`."""
        self._task: asyncio.Task[None] | None = None
        self._doubt = asyncio.Event()
        """Set while the record may be missing."""
        self._serial = asyncio.Lock()
        self._is_closed = False

    async def ensure(self) -> str:
        """Return the writer's id once its record exists for the current session.

        Raises:
            ClientClosedError: the client was closed.
            MetadataUnavailableError, SessionLostError: it is unknown whether the record exists.
            UnauthorizedError: the metadata store does not let this client write.
            WrongClusterError: the store does not hold the client's cluster.
        """
        if self._is_closed:
            raise ClientClosedError("the client was closed")
        if self._following is None:
            self._writer_id = self._writer_id or SystemClock().nonce().hex()
            self._doubt.set()
            self._following = begun = asyncio.get_running_loop().create_future()
            # Use a separate task, because the first caller may be cancelled while other callers
            # wait.
            self._task = self._spawn(self._keep(begun), "record of a writer")
        await asyncio.shield(self._following)
        is_being_written = self._serial.locked()
        if self._doubt.is_set() or is_being_written or not self._store.is_session_certain:
            await self._write()
        return self._writer_id

    async def close(self) -> None:
        """Delete the record; if the store does not answer, the record ends with the session."""
        self._is_closed = True
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._following is not None and not self._following.done():
            self._following.set_exception(ClientClosedError("the client was closed"))
            self._following.exception()  # mark it as retrieved: all callers may be cancelled
        with suppress(BookieError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX), self._serial:
                record = await self._store.get(self._key)
                if record is not None and record.created_by_self:
                    await self._store.delete(self._key, version=record.version)

    @property
    def _key(self) -> str:
        return keys.writer(self._writer_id)

    async def _keep(self, begun: asyncio.Future[None]) -> None:
        """Write the record whenever it may be missing."""
        try:
            async with (
                self._store.session_events() as events,
                self._store.watch(self._key) as changes,
                beside([self._follow_session(events), self._follow_record(changes)]),
            ):
                begun.set_result(None)
                pauses, is_new = backoff(), True
                while True:
                    await self._doubt.wait()
                    try:
                        await self._write()
                        pauses.reset()
                        is_new = False
                    except MetadataClosedError:
                        return
                    except BookieError as error:
                        if is_new and isinstance(error, UnauthorizedError):
                            # `ensure` raises this error to a client that may not write. End this
                            # task; the next `ensure` starts another task.
                            self._following = None
                            return
                        await asyncio.sleep(pauses.next())
        except BookieError as error:
            if not begun.done():
                begun.set_exception(error)
                begun.exception()  # mark it as retrieved: all callers may be cancelled
                self._following = None  # so the next caller tries again

    async def _follow_session(self, events: AsyncIterator[SessionEvent]) -> None:
        with suppress(MetadataClosedError):
            async for event in events:
                if event is SessionEvent.SESSION_LOST:
                    _log.warning("writer_session_lost", writer=self._writer_id)
                if event in (SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED):
                    self._doubt.set()

    async def _follow_record(self, changes: AsyncIterator[Change]) -> None:
        with suppress(MetadataClosedError):
            async for change in changes:
                if isinstance(change, Resync) or any(
                    event.kind is ChangeKind.DELETED for event in change.events
                ):
                    self._doubt.set()

    async def _write(self) -> None:
        """Write the record unless the current session owns it."""
        async with self._serial:
            if self._is_closed:
                raise ClientClosedError("the client was closed")
            self._doubt.clear()
            try:
                while not await self._is_written():
                    pass  # the record changed between the read and the write
            except BaseException:
                self._doubt.set()
                raise

    async def _is_written(self) -> bool:
        """Try once to write the record; return False if its version in the store has changed."""
        condition = await require_instance(self._store, self._instance_id)
        record = await self._store.get(self._key)
        if record is not None and record.created_by_self:
            return True
        version = NOT_EXISTS if record is None else record.version
        value = f"{socket.gethostname()}:{os.getpid()}".encode()
        try:
            await self._store.transaction(
                [Put(self._key, value, version, ephemeral=True), condition]
            )
        except (BadVersionError, NoSuchKeyError):
            return False
        return True
