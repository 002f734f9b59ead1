"""The store in memory: ``memory://NAME``, shared by everybody in the process who uses the name.

It is the model of all stores: sessions are real (several on one name, each with its own ephemeral
records), commits are numbered, watches see them in order. A name's records live as long as the
process, so that a store can be closed and opened again. It is for tests and demonstrations: a
bookie that keeps its data on disk must not keep its metadata here.

What servers and networks do to a store is simulated by methods and fields of `MemoryStore`:

=============================== ==================================================================
``expire_session``              the server ends the session at once
``disconnect``, ``reconnect``   nothing comes through; the session is doubtful, lost after 5/6 of
                                its timeout by the clock, and ended by the server after all of it
``faults.latency_seconds``      each request takes so long
``faults.lost_requests``        so many of the next writes never arrive
``faults.lost_replies``         so many of the next writes happen, and nobody hears of it
``hold_watches``                events stay away (a lagging follower) until ``release_watches``
=============================== ==================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bookie.env import Clock, SystemClock
from bookie.errors import MetadataClosedError, MetadataUnavailableError
from bookie.metadata.memory_tree import tree_of
from bookie.metadata.store import (
    Change,
    Commit,
    MetadataStore,
    Operation,
    Record,
    Resync,
    SessionEvent,
    Stat,
    check_key,
    check_prefix,
    check_transaction,
    is_under,
)
from bookie.metadata.subscription import Subscription
from bookie.protocol.session import (
    Announce,
    Answered,
    Disconnected,
    Expired,
    MonitorEvent,
    Renewed,
    SessionMachine,
    SessionState,
    Tick,
)


@dataclass(slots=True)
class Faults:
    """What goes wrong between one `MemoryStore` and its server; see the module."""

    latency_seconds: float = 0.0
    lost_requests: int = 0
    lost_replies: int = 0


class MemoryStore(MetadataStore):
    """A session with the memory store `name`.

    Args:
        name: whose records; the same name is the same store.
        session_timeout_seconds: how long a store that is cut off keeps its session.
        clock: by which that is counted, and records get their times; whoever moves it by hand calls
            `let_time_pass` afterwards.
    """

    backend = "the metadata store in memory"

    def __init__(
        self, name: str, *, session_timeout_seconds: float = 30.0, clock: Clock | None = None
    ) -> None:
        self.session_timeout_seconds = session_timeout_seconds
        self.faults = Faults()
        self._clock = clock or SystemClock()
        self._tree = tree_of(name)
        if clock is not None:
            self._tree.clock = clock
        self._session = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outage: SessionMachine | None = None
        """Counts for as long as the connection is cut."""
        self._alarm: asyncio.TimerHandle | None = None
        self._held: list[Commit] | None = None
        self._watches: dict[Subscription[Change], tuple[str, int]] = {}
        """Each with its prefix and the last commit before it."""
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
        self._set_alarm(None)
        closed = MetadataClosedError("the metadata store is closed")
        for watch in self._watches:
            watch.end(closed)
        for session_watch in self._session_watches:
            session_watch.end(closed)

    @property
    def is_session_certain(self) -> bool:
        """See `MetadataStore.is_session_certain`."""
        return self._loop is not None and self._outage is None

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
        if self.faults.lost_requests > 0:
            self.faults.lost_requests -= 1
            raise MetadataUnavailableError("the metadata store does not answer")
        with self._tree.lock:
            stats = self._tree.transact(operations, self._session)
        if self.faults.lost_replies > 0:
            self.faults.lost_replies -= 1
            raise MetadataUnavailableError("the metadata store does not answer any more")
        return stats

    async def last_number(self) -> int:
        """See `MetadataStore.last_number`."""
        await self._reach()
        with self._tree.lock:
            return self._tree.last_number

    async def _number_above(self, last: int) -> None:
        await self._reach()
        with self._tree.lock:
            self._tree.number_above(last)

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
            self._watches[subscription] = (prefix, self._tree.version)
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

    # ---- what servers and networks do

    def expire_session(self) -> None:
        """End the session as a server would: ephemeral records vanish, a new session begins.

        While disconnected nobody hears of it, and the new session begins at `reconnect`.
        """
        with self._tree.lock:
            self._tree.end_session(self._session)
        if self._outage is None:
            self._outage = self._new_machine()
            self._come_back()

    def disconnect(self) -> None:
        """Cut the connection: operations fail and watches stay silent until `reconnect`."""
        if self._outage is not None:
            return
        now = self._clock.monotonic()
        with self._tree.lock:
            self._tree.cut_off(
                self._session, now + self.session_timeout_seconds, self._clock.monotonic
            )
        self._outage = self._new_machine()
        self._step(Disconnected())

    def reconnect(self) -> None:
        """Restore the connection: watches resync, and an expired session is replaced."""
        if self._outage is None:
            return
        self._step(Tick())
        with self._tree.lock:
            self._tree.heard(self._session)
            for watch in self._watches:
                watch.push(Resync())
        self._come_back()

    def let_time_pass(self) -> None:
        """Act on what the clock shows now."""
        with self._tree.lock:
            self._tree.let_time_pass()
        if self._outage is not None:
            self._step(Tick())

    def hold_watches(self) -> None:
        """Keep events from the watches, in order, until `release_watches`."""
        self._held = [] if self._held is None else self._held

    def release_watches(self) -> None:
        """Deliver what was held."""
        held, self._held = self._held or [], None
        for change in held:
            self._push(change)

    def _new_machine(self) -> SessionMachine:
        return SessionMachine(self.session_timeout_seconds, self._clock.monotonic(), lambda: 0.0)

    def _come_back(self) -> None:
        """The server answers again: what becomes of the session, and of the outage."""
        assert self._outage is not None
        with self._tree.lock:
            alive = self._tree.is_alive(self._session)
            if not alive and self._outage.state is not SessionState.LOST:
                self._step(Expired())
            if not alive:
                self._session = self._tree.begin_session()
        now = self._clock.monotonic()
        lost = self._outage.state is SessionState.LOST
        self._step(Renewed(now) if lost else Answered(now))
        self._outage = None
        self._set_alarm(None)

    def _step(self, event: MonitorEvent) -> None:
        """Let the machine of an outage take `event`, and see to it that it gets its ticks."""
        machine = self._outage
        assert machine is not None
        now = self._clock.monotonic()
        for effect in machine.step(event, now):
            if isinstance(effect, Announce):
                self._announce((effect.event,))
        deadline = machine.deadline
        self._set_alarm(None if deadline is None else max(0.0, deadline - now))

    def _set_alarm(self, seconds: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if seconds is not None and self._loop is not None:
            self._alarm = self._loop.call_later(seconds, self.let_time_pass)

    def deliver(self, commit: Commit) -> None:
        """Hand a commit to the watches it concerns; called by the tree, in any thread."""
        loop = self._loop
        if loop is None or self._outage is not None:
            return
        if _is_running_here(loop):
            self._deliver(commit)
        else:
            loop.call_soon_threadsafe(self._deliver, commit)

    def _deliver(self, commit: Commit) -> None:
        if self._held is not None:
            self._held.append(commit)
        else:
            self._push(commit)

    def _push(self, commit: Commit) -> None:
        for watch, (prefix, since) in self._watches.items():
            if commit.revision is not None and commit.revision <= since:
                continue
            events = tuple(event for event in commit.events if is_under(prefix, event.key))
            if events:
                watch.push(Commit(commit.revision, events))

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
        await asyncio.sleep(self.faults.latency_seconds)
        self._require_open()
        if self._outage is not None:
            raise MetadataUnavailableError("the metadata store does not answer")
        with self._tree.lock:
            self._tree.let_time_pass()


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
