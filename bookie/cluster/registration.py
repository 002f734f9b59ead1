"""A bookie's registration: a leased record with its addresses and state.

The record of a writable bookie is below ``available/readwrite``, and the record of a read-only
bookie is below ``available/readonly``. If a bookie changes between writable and read-only, one
transaction moves its record, so a registered bookie always has exactly one record.

If the session ends or the record is deleted, a task writes the record again. The bookie serves
requests even while it has no record. If the store does not answer, refuses access or holds another
cluster, the task repeats the write later.

Another session may own the record, for example the session of this bookie's previous process. The
registration waits until the other session ends and its record is deleted. If the record is not
deleted in time, another process uses the same bookie id, and this process fails with IdentityError.

Source: BookKeeper's bookie registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Self

from bookie.cluster import keys
from bookie.cluster.instance import require_instance
from bookie.cluster.registration_record import Registration, encode_registration
from bookie.coordination.takeover import take_over
from bookie.errors import (
    BadVersionError,
    BookieError,
    IdentityError,
    MetadataClosedError,
    MetadataError,
    NoSuchKeyError,
    RequestError,
)
from bookie.metadata.mirror import backoff
from bookie.metadata.model import (
    NOT_EXISTS,
    Change,
    Check,
    Delete,
    Operation,
    Put,
    Record,
    Resync,
    WatchEvent,
)
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

WAIT_TIMEOUTS = 1.5
"""The longest wait for the end of another session, as a multiple of the session timeout."""

_log = event_log(__name__)


class BookieRegistration:
    """One bookie's registration; an async context manager that deletes the record at its end.

    If another session has a record of the same id, entering the context waits until this record is
    deleted. The wait lasts up to 1.5 session timeouts, plus the response times of the store. If
    another process takes the id later, the body of the context is cancelled, and the context raises
    IdentityError.

    Args:
        store: the metadata store, which must stay open until the context ends.
        registration: the state to register.
        instance_id: the id of the cluster that the store must hold at each write; empty allows any
            cluster.

    Raises:
        IdentityError: (on entering) another process is registered with this id.
        MetadataUnavailableError: (on entering) the store does not answer.
        WrongClusterError: (on entering) the store does not hold the cluster `instance_id`.
    """

    def __init__(
        self, store: MetadataStore, registration: Registration, *, instance_id: str = ""
    ) -> None:
        self._store = store
        self._wanted = registration
        self._instance_id = instance_id
        self._obstacle: BookieError | None = None
        self._tasks = asyncio.TaskGroup()
        self._followers: list[asyncio.Task[None]] = []
        self._watches = AsyncExitStack()
        self._writing = asyncio.Lock()
        self._doubt = asyncio.Event()
        self._written: tuple[str, int, int | None] | None = None
        """The key, version and revision of this process's last write, to recognize its own
        record."""
        self._is_registered = False

    @property
    def registration(self) -> Registration:
        """The state that is registered, or that will be registered when the store answers."""
        return self._wanted

    @property
    def is_registered(self) -> bool:
        """True if the bookie's record exists, as far as this process knows."""
        return self._is_registered

    @property
    def obstacle(self) -> str:
        """The error of the last attempt to register again; empty while the bookie is registered."""
        return "" if self._is_registered or self._obstacle is None else str(self._obstacle)

    async def update(self, registration: Registration) -> None:
        """Replace the registered state of the bookie.

        At every moment, other processes see either the old record or the new record. After an
        error, a background task repeats the write of the new state.

        Raises:
            MetadataUnavailableError: the store did not answer.
            SessionLostError: the session ended.
            WrongClusterError: the store does not hold the bookie's cluster.
            IdentityError: another process registered the same id.
        """
        assert registration.bookie_id == self._wanted.bookie_id
        self._wanted = registration
        try:
            registered = await self._try_write()
        except (MetadataError, RequestError):
            self._doubt.set()
            raise
        if not registered:
            self._doubt.set()
            raise self._usurped()

    # ---- the life of a registration

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(self._store.session_events())
            changes = await stack.enter_async_context(self._store.watch(keys.AVAILABLE))
            await self._occupy()
            await self._tasks.__aenter__()
            self._followers = [
                self._tasks.create_task(self._follow_session(events)),
                self._tasks.create_task(self._follow_records(changes)),
                self._tasks.create_task(self._repair()),
            ]
            self._watches = stack.pop_all()
        _log.info("registered", bookie=self._wanted.bookie_id, read_only=self._wanted.read_only)
        return self

    async def __aexit__(self, *_: object) -> None:
        for follower in self._followers:
            follower.cancel()
        try:
            # Pass no error to the task group, because the group would wrap the body's error in an
            # exception group.
            await self._tasks.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._watches.aclose()
            await self._withdraw()

    async def _occupy(self) -> None:
        """Write the record; first wait until no other session has a record of the same id.

        Raises:
            IdentityError: another session's record was not deleted in time.
            MetadataUnavailableError: the store does not answer.
        """
        wait_seconds = self._store.session_timeout_seconds * WAIT_TIMEOUTS
        async with self._store.watch(keys.AVAILABLE) as changes:
            if not await take_over(self._try_write, changes, wait_seconds):
                raise self._usurped()

    async def _repair(self) -> None:
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            try:
                if await self._is_intact():
                    continue  # already repaired: several events can report the same loss
            except MetadataClosedError:
                return
            self._is_registered = False
            _log.warning("registration_lost", bookie=self._wanted.bookie_id)
            pauses, self._obstacle = backoff(), None
            while not self._is_registered:
                try:
                    await self._occupy()
                except MetadataClosedError:
                    return
                except (MetadataError, RequestError) as error:
                    self._note_obstacle(error)
                    await self._wait_for_doubt(pauses.next())
            _log.info("registered_again", bookie=self._wanted.bookie_id)

    def _note_obstacle(self, error: BookieError) -> None:
        """Keep the error of an attempt to register; log the error if its type is new."""
        if type(error) is not type(self._obstacle):
            _log.warning("registration_waits", reason=str(error))
        self._obstacle = error

    async def _wait_for_doubt(self, seconds_max: float) -> None:
        """Wait up to `seconds_max` before the next attempt, or until `_doubt` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._doubt.wait()
        self._doubt.clear()

    async def _follow_session(self, events: AsyncIterator[SessionEvent]) -> None:
        try:
            async for event in events:
                if event is SessionEvent.SESSION_LOST:
                    self._is_registered = False
                elif event is SessionEvent.SESSION_REESTABLISHED:
                    self._doubt.set()
        except MetadataClosedError:
            self._is_registered = False

    async def _follow_records(self, changes: AsyncIterator[Change]) -> None:
        """Check this bookie's record after each event that another process may have caused."""
        try:
            async for change in changes:
                if isinstance(change, Resync) or any(map(self._is_suspect, change.events)):
                    await self._look()
        except MetadataClosedError:
            self._is_registered = False

    def _is_suspect(self, event: WatchEvent) -> bool:
        if event.key != self._key(self._wanted):
            return False
        own = self._written
        # If the revision is unknown, another process may have written the record.
        return own is None or event.revision is None or (event.key, event.revision) != own[::2]

    async def _look(self) -> None:
        if not await self._is_intact():
            self._doubt.set()

    async def _is_intact(self) -> bool:
        """True if the store holds exactly the wanted record, and the current session owns it."""
        # Without the lock, this process's update would look like a write of another process.
        async with self._writing:
            wanted = self._wanted
            other = keys.registration(wanted.bookie_id, read_only=not wanted.read_only)
            try:
                record = await self._store.get(self._key(wanted))
                intact = (
                    record is not None
                    and record.created_by_self
                    and record.value == encode_registration(wanted)
                    and await self._store.get(other) is None
                )
            except MetadataClosedError:
                raise
            except (MetadataError, RequestError):
                return False
            self._is_registered = self._is_registered or intact
            return intact

    async def _withdraw(self) -> None:
        """Delete the bookie's record; otherwise the record would exist until the session ends."""
        async with self._writing:
            self._is_registered = False
            for read_only in (False, True):
                key = keys.registration(self._wanted.bookie_id, read_only=read_only)
                try:
                    record = await self._store.get(key)
                    if record is not None and self._is_ours(record):
                        await self._store.delete(key, version=record.version)
                except MetadataError:
                    continue  # the store deletes the record when the session ends

    # ---- writing

    async def _try_write(self) -> bool:
        """Write the wanted record; return False if another process has a record of this bookie."""
        async with self._writing:
            while True:
                operations = await self._plan(self._wanted)
                if operations is None:
                    return False
                try:
                    stat, *_ = await self._store.transaction(operations)
                except (BadVersionError, NoSuchKeyError):
                    continue  # another write came first; read the records again
                assert stat is not None
                self._written = (stat.key, stat.version, stat.revision)
                self._is_registered = True
                return True

    async def _plan(self, wanted: Registration) -> list[Operation] | None:
        condition = []
        if self._instance_id:
            # Check the instance first: records of another cluster say nothing about this bookie.
            condition = [await require_instance(self._store, self._instance_id)]
        target = self._key(wanted)
        other = keys.registration(wanted.bookie_id, read_only=not wanted.read_only)
        at_target, at_other = await self._store.get(target), await self._store.get(other)
        for record in (at_target, at_other):
            if record is not None and not self._is_ours(record):
                return None
        version = NOT_EXISTS if at_target is None else at_target.version
        return [
            Put(target, encode_registration(wanted), version, ephemeral=True),
            Check(other, NOT_EXISTS) if at_other is None else Delete(other, at_other.version),
            *condition,
        ]

    def _is_ours(self, record: Record) -> bool:
        stat = record.stat
        return stat.created_by_self or (stat.key, stat.version, stat.revision) == self._written

    def _key(self, registration: Registration) -> str:
        return keys.registration(registration.bookie_id, read_only=registration.read_only)

    def _usurped(self) -> IdentityError:
        return IdentityError(
            f"another process is registered as bookie {self._wanted.bookie_id}; stop it, or give "
            "this one another id"
        )
