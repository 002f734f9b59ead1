"""A bookie's registration: a leased record with its addresses and state.

A writable bookie is registered under ``available/readwrite``, a read-only one under
``available/readonly``. One transaction moves the bookie's record between the two keys, so a
registered bookie has exactly one record.

The registration is maintained while its context is open. If the session ends or the record is
deleted, the record is written again. The bookie serves even while it has no record. If the store
does not answer, refuses access or holds another cluster, the write is repeated later.

Another session may own the record, for example the session of this bookie's previous process. The
registration waits until that session ends. If the record stays, two processes use one bookie id.
This process then fails with IdentityError.

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
"""Session timeouts to wait for another session's record: a hanging session ends late."""

_log = event_log(__name__)


class BookieRegistration:
    """One bookie's registration; an async context manager that deletes the record at its end.

    Entering the context waits up to 1.5 session timeouts until another session's record of the same
    id is deleted. The store's response times are added to this wait. If another process takes over
    the id later, the body of the context is cancelled and the context raises IdentityError.

    Args:
        store: the metadata store, which must stay open until the context ends.
        registration: the state to register.
        instance_id: the cluster that the store must hold before each write; empty means any
            cluster.

    Raises:
        IdentityError: (on entering) another process is registered with this id.
        MetadataUnavailableError: (on entering) the store does not answer.
        WrongClusterError: (on entering) the store does not hold that cluster.
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
        """Key, version, revision of our last write, to recognize our record of a former session."""
        self._is_registered = False

    @property
    def registration(self) -> Registration:
        """The registered state, or the state to write as soon as the store answers."""
        return self._wanted

    @property
    def is_registered(self) -> bool:
        """True while the record exists, as far as this process knows."""
        return self._is_registered

    @property
    def obstacle(self) -> str:
        """The reason why the last attempt to register again failed; empty while registered."""
        return "" if self._is_registered or self._obstacle is None else str(self._obstacle)

    async def update(self, registration: Registration) -> None:
        """Register new figures (capacity, load), or a change between writable and read-only.

        At every moment, other processes see either the old record or the new one. After an error,
        a background task immediately begins to write the new state.

        Raises:
            MetadataUnavailableError: the store did not answer.
            SessionLostError: the session ended.
            WrongClusterError: the store does not hold this cluster.
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
            # Pass no error, because the group would wrap the body's error.
            await self._tasks.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._watches.aclose()
            await self._withdraw()

    async def _occupy(self) -> None:
        """Register; wait until another session's record of the same id is gone.

        Raises:
            IdentityError: the other record stayed.
            MetadataUnavailableError: the store does not answer, so the other record is unknown.
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
                    continue  # already repaired: several events report one loss
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
        """Log an obstacle only if its kind has changed, so that a long outage gives one line."""
        if type(error) is not type(self._obstacle):
            _log.warning("registration_waits", reason=str(error))
        self._obstacle = error

    async def _wait_for_doubt(self, seconds_max: float) -> None:
        """Pause between two attempts to register; a restored session ends the pause."""
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
        """Check the registration when another process has deleted or written its record."""
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
        # An unknown revision does not prove that this process wrote the record.
        return own is None or event.revision is None or (event.key, event.revision) != own[::2]

    async def _look(self) -> None:
        if not await self._is_intact():
            self._doubt.set()

    async def _is_intact(self) -> bool:
        """True if the store holds exactly the wanted record, for the current session."""
        # Without the lock, an own update would look like a foreign write.
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
        """Delete the record now, instead of at the end of the session."""
        async with self._writing:
            self._is_registered = False
            for read_only in (False, True):
                key = keys.registration(self._wanted.bookie_id, read_only=read_only)
                try:
                    record = await self._store.get(key)
                    if record is not None and self._is_ours(record):
                        await self._store.delete(key, version=record.version)
                except MetadataError:
                    continue  # the record ends with the session

    # ---- writing

    async def _try_write(self) -> bool:
        """Write the wanted record; return False if another session owns a record of this bookie."""
        async with self._writing:
            while True:
                operations = await self._plan(self._wanted)
                if operations is None:
                    return False
                try:
                    stat, *_ = await self._store.transaction(operations)
                except (BadVersionError, NoSuchKeyError):
                    continue  # another write came first; look again
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
