"""`LocalStore`: one session with a metadata store in a directory.

The code of this module runs in the event loop. Reads also run in the event loop, because reads are
short. One task per store ends dead sessions of other processes, and polls for commits, because a
notification may be lost. The writer thread of the module `environment` does the writes.
`session_monitor` probes the session: a probe succeeds while the session's row exists and no write
is stuck.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from bookie.errors import MetadataClosedError, MetadataUnavailableError, SessionLostError
from bookie.metadata.local.environment import LocalEnvironment, acquire, release
from bookie.metadata.local.sessions import (
    CommitSubscription,
    SessionFile,
    SessionReaper,
    begin_session,
)
from bookie.metadata.local.tree import SESSION_SIZE_BYTES, TreeWriter
from bookie.metadata.model import (
    ROOT,
    Change,
    Operation,
    Record,
    Stat,
    check_key,
    check_listing,
    check_prefix,
    check_transaction,
)
from bookie.metadata.session import Connected, Disconnected, Expired, SessionEvent, SessionState
from bookie.metadata.session_monitor import SessionMonitor
from bookie.metadata.store import MetadataStore
from bookie.metadata.watches import SessionWatches, Watches

T = TypeVar("T")

TICK_SECONDS = 0.05
"""Seconds between two heartbeats, and between two polls of the commit log."""

INSPECTION_TICKS = 4
"""Ticks between two inspections of other sessions; a tick is `TICK_SECONDS` long."""

_PAGE_NAMES = 256
_PAGE_BYTES = 1024 * 1024
_PUMP_COMMITS = 256
_STUCK_FRACTION = 3
"""If a write takes longer than the session timeout / this number, the connection counts as lost."""


class LocalStore(MetadataStore):
    """A session with the metadata store in `directory`."""

    backend = "the metadata store in a directory"

    def __init__(
        self, directory: Path, *, session_timeout_seconds: float = 30.0, create: bool = True
    ) -> None:
        """If `create` is False, `directory` must contain a store when the context is entered."""
        self.session_timeout_seconds = session_timeout_seconds
        self._directory = directory
        self._create = create
        self._environment: LocalEnvironment | None = None
        self._tasks = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None
        self._session = b""
        self._session_file: SessionFile | None = None
        self._subscription: CommitSubscription | None = None
        self._wake = asyncio.Event()
        self._monitor: SessionMonitor
        self._cursor = 0
        """The version of the last commit that the watches have seen."""
        self._watches = Watches()
        self._session_watches = SessionWatches()

    # ---- the session's life

    async def __aenter__(self) -> Self:
        environment = acquire(self._directory, create=self._create)
        try:
            file = await self._begin_session(environment)
        except BaseException:
            release(environment)
            raise
        self._environment = environment
        self._monitor = SessionMonitor(
            self.session_timeout_seconds,
            probe=self._prove,
            renew=self._renew,
            announce=self._session_watches.announce,
            begun_at=file.beaten_at,
        )
        await self._monitor.__aenter__()
        await self._tasks.__aenter__()
        self._keeper = self._tasks.create_task(self._keep(environment))
        return self

    async def __aexit__(self, *_: object) -> None:
        environment, self._environment = self._require_open(), None
        assert self._keeper is not None
        self._keeper.cancel()
        try:
            async with AsyncExitStack() as steps:  # runs all steps, even if one is cancelled
                steps.push_async_callback(self._end_session, environment)
                steps.push_async_callback(self._monitor.__aexit__, None, None, None)
                # The group does not get the body's error, because it would wrap the error.
                steps.push_async_callback(self._tasks.__aexit__, None, None, None)
        finally:
            self._drop_session()
            self._watches.end()
            self._session_watches.end()
            release(environment)

    async def _begin_session(self, environment: LocalEnvironment) -> SessionFile:
        session = os.urandom(SESSION_SIZE_BYTES)
        directory, timeout_seconds = environment.sessions_directory, self.session_timeout_seconds
        files: list[SessionFile] = []

        def begin(tree: TreeWriter) -> None:
            files.append(begin_session(tree, directory, session, timeout_seconds))

        def undo(tree: TreeWriter) -> None:
            tree.end_session(session)
            for file in files:
                file.close()

        beginning = environment.submit(begin)
        try:
            await self._wait(beginning)
        except BaseException:
            if beginning.done() and not beginning.cancelled():
                for file in files:
                    file.close()
            else:
                environment.submit(undo)  # `begin` may still run later, but before `undo`
            raise
        file = self._session_file = files[0]
        self._session = session
        with suppress(OSError):  # without a socket, polling finds the commits
            self._subscription = CommitSubscription(session)
            asyncio.get_running_loop().add_reader(self._subscription.fileno(), self._on_notified)
        return file

    async def _end_session(self, environment: LocalEnvironment) -> None:
        session = self._session
        try:
            await self._wait(environment.submit(lambda tree: tree.end_session(session)))
        except MetadataUnavailableError:
            # A stopped process holds the write lock, or the disk failed. Next, the caller frees the
            # lock of our session's file. So other processes see that the session is dead, and end
            # it as soon as they can write.
            return

    async def _wait(self, outcome: asyncio.Future[T]) -> T:
        """Wait at most one session timeout for a write, and return its result.

        After MetadataUnavailableError, the write continues, so its outcome is unknown.
        """
        try:
            async with asyncio.timeout(self.session_timeout_seconds):
                return await outcome
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"a write to the metadata store in {self._directory} did not end within "
                f"{self.session_timeout_seconds} seconds; a process that uses it may be stopped"
            ) from error

    def _drop_session(self) -> None:
        if self._subscription is not None:
            asyncio.get_running_loop().remove_reader(self._subscription.fileno())
            self._subscription.close()
            self._subscription = None
        if self._session_file is not None:
            self._session_file.close()
            self._session_file = None

    async def _prove(self) -> None:
        """Write a heartbeat; raise if the session has ended, or if a write is stuck."""
        environment = self._require_open()
        with environment.read() as tree:
            alive = tree.has_session(self._session)
        if not alive or self._session_file is None:
            raise SessionLostError("the session with the metadata store ended")
        self._require_unstuck(environment)
        self._session_file.beat()

    async def _renew(self) -> None:
        """Continue the session if its row still exists, or begin another session.

        The new heartbeat is written inside a write transaction. A process that wants to end the
        session must read the heartbeat again inside its own write transaction. So it sees the new
        heartbeat, and does not end the session.
        """
        environment = self._require_open()
        self._require_unstuck(environment)
        session, file = self._session, self._session_file

        def revive(tree: TreeWriter) -> bool:
            alive = file is not None and tree.has_session(session)
            if alive and file is not None:
                file.beat()
            return alive

        if not await self._wait(environment.submit(revive)):
            self._drop_session()
            await self._begin_session(environment)

    def _require_unstuck(self, environment: LocalEnvironment) -> None:
        seconds = environment.busy_seconds()
        if seconds >= self.session_timeout_seconds / _STUCK_FRACTION:
            raise MetadataUnavailableError(
                f"a write to the metadata store in {self._directory} has not ended for "
                f"{seconds:.1f} seconds; a process that uses it may be stopped"
            )

    async def _keep(self, environment: LocalEnvironment) -> None:
        """Poll for commits, and end dead sessions of other processes, until cancelled."""
        tick_seconds = min(TICK_SECONDS, self.session_timeout_seconds / 6)
        reaper = SessionReaper(environment.sessions_directory, tick_seconds * INSPECTION_TICKS)
        reaping: asyncio.Future[None] | None = None
        ticks, failing = 0, False
        while True:
            try:
                async with asyncio.timeout(tick_seconds):
                    await self._wake.wait()
            except TimeoutError:
                ticks += 1
            self._wake.clear()
            try:
                self._look_after_own(environment)
                self._pump()
                if reaping is not None and reaping.done():
                    reaping.result()
                    reaping = None
                if reaping is None and ticks >= INSPECTION_TICKS:
                    ticks = 0
                    reaping = self._inspect(environment, reaper)
                self._require_unstuck(environment)
            except MetadataUnavailableError:
                if reaping is not None and reaping.done():
                    reaping = None
                failing = True
                self._monitor.tell(Disconnected())
            else:
                if failing:
                    failing = False
                    self._monitor.tell(Connected())

    def _look_after_own(self, environment: LocalEnvironment) -> None:
        """Show other processes by a heartbeat that this one lives; check if they ended our session.

        The heartbeat continues while writes are stuck. A stopped process can block the writes of
        all other processes. When the stopped process continues, it must find recent heartbeats of
        the other processes; otherwise it would end their sessions.
        """
        with environment.read() as tree:
            alive = tree.has_session(self._session)
        if alive and self._session_file is not None:
            self._session_file.beat()
        elif self._monitor.state is not SessionState.LOST:
            self._monitor.tell(Expired())

    def _inspect(
        self, environment: LocalEnvironment, reaper: SessionReaper
    ) -> asyncio.Future[None] | None:
        with environment.read() as tree:
            sessions = tree.sessions()
        dead = reaper.inspect(sessions, self._session)
        if not dead:
            return None
        environment.forget_dead_readers()
        # Do not await the write here, because the heartbeat must not wait for the write lock.
        return environment.submit(lambda tree: reaper.reap(tree, dead))

    @property
    def is_session_certain(self) -> bool:
        return self._environment is not None and self._monitor.state is SessionState.CONNECTED

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        self._require_open()
        with self._session_watches.open() as events:
            yield events

    # ---- reads and writes

    async def get(self, key: str) -> Record | None:
        check_key(key)
        with self._require_open().read() as tree:
            return tree.record(key, self._session)

    async def exists(self, key: str) -> bool:
        check_prefix(key)
        with self._require_open().read() as tree:
            return (key != ROOT and tree.find(key) is not None) or tree.has_children(key)

    async def get_children(self, key: str) -> list[str]:
        check_prefix(key)
        names: list[str] = []
        while True:
            with self._require_open().read() as tree:
                page = tree.child_names(key, names[-1] if names else "", _PAGE_NAMES)
            names += page
            if len(page) < _PAGE_NAMES:
                return names
            # Reading a page takes a fraction of a millisecond. Let other tasks run after each page.
            await asyncio.sleep(0)

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        check_listing(key, after)
        start: str | None = after
        while start is not None:
            with self._require_open().read() as tree:
                records, start = tree.child_records(
                    key, start, self._session, _PAGE_NAMES, _PAGE_BYTES
                )
            for record in records:
                yield record
            await asyncio.sleep(0)

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """Commit the operations; on return, the commit is durable on disk."""
        environment = self._require_open()
        check_transaction(operations)
        self._refuse_acl(operations)
        operations, session = tuple(operations), self._session
        try:
            return await self._wait(
                environment.submit(lambda tree: tree.transact(operations, session))
            )
        except SessionLostError:
            # Tell the monitor first, so that consumers get SESSION_LOST before this caller gets the
            # error.
            if self._session == session:
                self._monitor.tell(Expired())
            raise

    async def sync(self) -> None:
        """Only check that the store is open, because reads always show the last commit."""
        self._require_open()

    def _require_open(self) -> LocalEnvironment:
        if self._environment is None:
            raise MetadataClosedError("the metadata store is closed")
        return self._environment

    # ---- watches

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        check_prefix(prefix)
        with self._require_open().read() as tree:
            version = tree.version()
        if not self._watches:
            self._cursor = version
        with self._watches.open(prefix, version) as changes:
            yield changes

    def _on_notified(self) -> None:
        if self._subscription is not None:
            self._subscription.drain()
        try:
            self._pump()
        except MetadataUnavailableError:
            self._wake.set()  # `_keep` gets the same error and reports it to the monitor

    def _pump(self) -> None:
        """Deliver the commits since the last delivery to the watches."""
        environment = self._environment
        if environment is None or not self._watches:
            return
        with environment.read() as tree:
            commits = tree.commits_after(self._cursor, _PUMP_COMMITS)
            if commits is None:
                self._cursor = tree.version()
        if commits is None:
            self._watches.resync()
            return
        for version, events in commits:
            self._cursor = version
            self._watches.deliver(version, events)
        if len(commits) == _PUMP_COMMITS:
            asyncio.get_running_loop().call_soon(self._on_notified)
