"""The session of a store in etcd, which begins when the store first needs a session.

Reads and watches need no session, so a store that only reads has no lease. The first write begins
the session, and so does the first consumer of the session's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from bookie.errors import BookieError, MetadataClosedError, SessionLostError
from bookie.metadata.etcd.client import EtcdClient
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.lease import EtcdLease, replace
from bookie.metadata.etcd.transactions import session_lost
from bookie.metadata.session import Connected, Expired, SessionEvent, SessionState
from bookie.metadata.session_monitor import SessionMonitor

PROBE_FRACTION = 4
RENEWAL_FRACTION = 7
"""The session timeout divided by these numbers limits a lease's proof, and each renewal step.

The limits end before the monitor's limit, a third of the timeout. So the session can try another
endpoint.
"""


class EtcdSession:
    """The session of one open store: its current lease, once it has begun, and its monitor.

    Args:
        client: the connection to etcd.
        scope: the keys of the store.
        timeout_seconds: the session timeout.
        tasks: a group for the task that runs the monitor; the group must live until `stop`.
        announce: called with each event of the session.
    """

    def __init__(
        self,
        client: EtcdClient,
        scope: KeyLayout,
        timeout_seconds: float,
        tasks: asyncio.TaskGroup,
        announce: Callable[[SessionEvent], None],
    ) -> None:
        self._client = client
        self._scope = scope
        self._timeout_seconds = timeout_seconds
        self._tasks = tasks
        self._announce = announce
        self._usable = asyncio.Event()
        """Cleared while a write has to wait for the next session."""
        self._usable.set()
        self._beginning = asyncio.Lock()
        self._lease: EtcdLease | None = None
        self._monitor: SessionMonitor | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_ended = False

    @property
    def lease_id(self) -> int:
        """The id of the current lease; 0 before the session begins."""
        return 0 if self._lease is None else self._lease.id

    @property
    def is_certain(self) -> bool:
        """True unless the session is in doubt or lost; also True before the session begins."""
        return self._monitor is None or self._monitor.state is SessionState.CONNECTED

    async def begin(self) -> None:
        """Begin the session, unless it has begun.

        Raises:
            MetadataUnavailableError: etcd does not answer; a later call tries again.
            UnauthorizedError: etcd grants this user no lease.
        """
        if self._monitor is not None:
            return
        async with self._beginning:
            if self._monitor is None:
                await self._begin()

    async def _begin(self) -> None:
        lease = await EtcdLease.grant(self._client, self._scope, self._timeout_seconds)
        if self._is_ended:
            raise MetadataClosedError("the metadata store is closed")  # the lease will time out
        self._lease = lease
        self._monitor = SessionMonitor(
            self._timeout_seconds,
            probe=self._probe,
            renew=self._renew,
            announce=self._take_event,
            begun_at=lease.asked_at,
        )
        self._keeper = self._tasks.create_task(self._keep(self._monitor))

    def _take_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._usable.clear()
        elif event is SessionEvent.SESSION_REESTABLISHED:
            self._usable.set()
        self._announce(event)

    async def _keep(self, monitor: SessionMonitor) -> None:
        async with monitor:
            await asyncio.Event().wait()

    def stop(self) -> None:
        """Stop the monitor, so that the lease is no longer extended; `revoke` ends the lease."""
        self._is_ended = True
        self._usable.set()
        if self._keeper is not None:
            self._keeper.cancel()

    async def revoke(self) -> None:
        """End the lease, if there is one; etcd then deletes the session's records."""
        if self._lease is not None:
            # After a failure the lease ends by its timeout, because no task extends the lease.
            with suppress(BookieError):
                await self._lease.revoke(self._client.attempt_seconds)

    async def current_lease(self, deadline: float) -> EtcdLease:
        """Return the lease for a write; begin the session if needed.

        If the session was already announced as lost, wait for the next session, at most until
        `deadline` of the event loop's clock. The write then belongs to the next session.

        Raises:
            SessionLostError: this call found that the session is lost, so its caller could not know
                it yet. Or the next session had not begun in time.
            BookieError: for the reasons that `begin` names.
        """
        await self.begin()
        assert self._monitor is not None
        was_usable = self._usable.is_set()
        if self._monitor.state is SessionState.LOST:
            if was_usable or not await self._is_usable_by(deadline):
                raise SessionLostError(
                    "the session with etcd is lost; one begins when etcd answers"
                )
            if self._is_ended:
                raise MetadataClosedError("the metadata store is closed")
        assert self._lease is not None
        return self._lease

    async def _is_usable_by(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._usable.wait()
        except TimeoutError:
            return False

    def require(self, lease: EtcdLease) -> None:
        """Raise `SessionLostError` unless `lease` is still the lease of the session."""
        assert self._monitor is not None
        if lease is not self._lease or self._monitor.state is SessionState.LOST:
            raise session_lost()

    def note_connected(self) -> None:
        if self._monitor is not None:
            self._monitor.tell(Connected())

    def lose(self, lease: EtcdLease) -> None:
        if lease is self._lease and self._monitor is not None and not self._is_ended:
            self._monitor.tell(Expired())

    async def _probe(self) -> None:
        assert self._lease is not None
        await self._lease.prove(self._timeout_seconds / PROBE_FRACTION)

    async def _renew(self) -> None:
        assert self._lease is not None
        self._lease = await replace(
            self._client,
            self._scope,
            self._lease,
            self._timeout_seconds,
            answer_seconds=self._timeout_seconds / RENEWAL_FRACTION,
        )
