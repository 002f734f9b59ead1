"""The store on ZooKeeper: ``zk://HOST:2181,HOST:2181/scope``, for clusters of many machines.

Servers must be of version 3.6 or later, and 3.9 or later for watches to be exact. Every write is
one transaction of ZooKeeper's with a receipt (`zookeeper_outcome`), so that its outcome is known
also when the answer is lost; requests go out as they come, without waiting for each other, and the
server answers them in order. One persistent recursive watch on the scope serves all watches of the
store and is set again after each reconnection, followed by `Resync`.

What ZooKeeper cannot do exactly as the interface says:

- A transaction may be seen as several commits of one revision: events do not say where one ends.
- A version speaks of one life of a record (`zookeeper_births`), unless a program other than bookie
  creates it anew at that moment, or an operator deletes the counters of births.
- The times are those of the node: a record that was put on a virtual parent is as old as that, and
  its `first_version` is False.
- A virtual parent whose last ephemeral child went with its session is hidden, and removed, when
  somebody looks; among more than a thousand names one that was empty before the store connected is
  listed until somebody asks for it.
- Sequential numbers begin anew below a record that was deleted itself, with all its children.
- Keys with control characters, or characters beyond Unicode's basic plane, are refused.

Source: PIP-45 for the interface; the recipes and pitfalls of Curator and kazoo for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bookie.env import together
from bookie.errors import (
    ConfigurationError,
    InvalidKeyError,
    KeyHasChildrenError,
    MetadataClosedError,
    NoSuchKeyError,
)
from bookie.metadata.changes import Change, Commit, Resync, WatchEvent
from bookie.metadata.connect import Host
from bookie.metadata.keys import ROOT, check_key, check_prefix, is_under
from bookie.metadata.records import (
    Acl,
    Check,
    Operation,
    Record,
    Stat,
    check_transaction,
)
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.store import DELETIONS_MAX, MetadataStore
from bookie.metadata.subscription import Subscription
from bookie.metadata.zookeeper_changes import DELETED, ChangeReader
from bookie.metadata.zookeeper_known import KnownRecords
from bookie.metadata.zookeeper_nodes import NodeReader, refusal
from bookie.metadata.zookeeper_numbers import NumberBlocks
from bookie.metadata.zookeeper_outcome import HOME, Receipts
from bookie.metadata.zookeeper_parents import VirtualParents
from bookie.metadata.zookeeper_session import ZooKeeperLink
from bookie.metadata.zookeeper_thread import NodeError, NodeEvent
from bookie.metadata.zookeeper_tree import (
    Scope,
    is_virtual,
    require_representable,
    require_representable_key,
    stat_of,
)
from bookie.metadata.zookeeper_wire import (
    NO_NODE,
    Exists,
    GetData,
    ZnodeStat,
)
from bookie.metadata.zookeeper_writer import Writer
from bookie.protocol.session import SessionEvent

SCAN_AHEAD = 32
"""Records of a scan that are asked for before the first of them is taken: 16 MiB at most."""

_RECURSION_ROUNDS = 10

_TIDY_SECONDS_MAX = 2.0
"""How long a store that is being closed deletes what would go with its session, and the parents of
that; others find what is left."""


@dataclass(frozen=True, slots=True)
class _Open:
    """What an open store has."""

    link: ZooKeeperLink
    nodes: NodeReader
    parents: VirtualParents
    receipts: Receipts
    writer: Writer
    reader: ChangeReader
    numbers: NumberBlocks


class ZooKeeperStore(MetadataStore):
    """A session with the ZooKeeper servers `hosts`; all keys lie below the path `scope`."""

    backend = "ZooKeeper"
    lists_wide_directories = False

    def __init__(
        self,
        hosts: Sequence[Host],
        scope: str,
        *,
        session_timeout_seconds: float,
        security: MetadataSecurity,
    ) -> None:
        self.session_timeout_seconds = session_timeout_seconds
        require_representable_key(scope)
        if is_under(HOME, scope):
            raise ConfigurationError(
                f"the scope {scope} cannot hold a cluster: bookie keeps what all clusters of the"
                f" ZooKeeper servers share below {HOME}"
            )
        self._hosts = ",".join(str(host) for host in hosts)
        self._security = security
        self._scope = Scope(scope, security.access)
        self._known = KnownRecords(self._scope)
        self._watches: dict[Subscription[Change], str] = {}
        self._session_watches: set[Subscription[SessionEvent]] = set()
        self._group: list[WatchEvent] = []
        self._open: _Open | None = None

    async def __aenter__(self) -> Self:
        link = ZooKeeperLink(
            self._hosts,
            self._scope.root,
            self._scope.acl,
            session_timeout_seconds=self.session_timeout_seconds,
            security=self._security,
            on_event=self._take_event,
            on_quiet=self._take_quiet,
            on_missed=self._missed_events,
            announce=self._announce,
        )
        nodes = NodeReader(link, self._scope, self._known.births)
        parents = VirtualParents(link, self._scope, nodes)
        receipts = Receipts(link)
        numbers = NumberBlocks(link, self._scope.root, self._scope.acl)
        writer = Writer(link, self._scope, nodes, parents, receipts, self._known, numbers)
        reader = ChangeReader(self._scope)
        self._open = _Open(link, nodes, parents, receipts, writer, reader, numbers)
        try:
            await link.__aenter__()
        except BaseException:
            self._open = None
            raise
        self.session_timeout_seconds = link.timeout_seconds
        link.spawn(parents.keep_tidy())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._require_open()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIDY_SECONDS_MAX):
                    await opened.writer.leave()
        finally:
            await self._close(opened)

    async def _close(self, opened: _Open) -> None:
        self._open = None
        try:
            await opened.link.__aexit__(None, None, None)
        finally:
            closed = MetadataClosedError("the metadata store is closed")
            for watch in self._watches:
                watch.end(closed)
            for session_watch in self._session_watches:
                session_watch.end(closed)

    @property
    def credentials(self) -> tuple[int, bytes]:
        """The id and password of the session, with which anybody could go on with it."""
        return self._require_open().link.credentials

    # ---- reads

    async def get(self, key: str) -> Record | None:
        """See `MetadataStore.get`."""
        check_key(key)
        require_representable_key(key)
        opened = self._require_open()
        link = opened.link
        try:
            data, stat = await link.read(GetData(self._scope.path(key), None), link.deadline())
        except NodeError as error:
            if error.code == NO_NODE:
                return None
            raise refusal(error, key) from error
        return self._record(key, data, stat, link.session)

    async def exists(self, key: str) -> bool:
        """See `MetadataStore.exists`."""
        check_prefix(key)
        require_representable_key(key)
        opened = self._require_open()
        try:
            return await opened.parents.is_there(key, opened.link.deadline())
        except NodeError as error:
            raise refusal(error, key) from error

    async def get_children(self, key: str) -> list[str]:
        """See `MetadataStore.get_children`."""
        check_prefix(key)
        require_representable_key(key)
        opened = self._require_open()
        try:
            return await opened.parents.children(key, opened.link.deadline())
        except NodeError as error:
            raise refusal(error, key) from error

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """See `MetadataStore.scan_children`."""
        names = [name for name in await self.get_children(key) if name > after]
        prefix = key.rstrip("/")
        for start in range(0, len(names), SCAN_AHEAD):
            keys = [f"{prefix}/{name}" for name in names[start : start + SCAN_AHEAD]]
            for record in await together(map(self.get, keys)):
                if record is not None:
                    yield record

    def _record(self, key: str, data: bytes | None, stat: ZnodeStat, session: int) -> Record | None:
        if is_virtual(data):
            self._known.forget(key)
            return None
        assert data is not None
        self._known.learn(key, stat)
        return Record(data, stat_of(key, stat, session))

    # ---- writes

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """See `MetadataStore.transaction`."""
        check_transaction(operations)
        for operation in operations:
            require_representable(operation)
        opened = self._require_open()
        return await opened.writer.write(operations) if operations else []

    async def delete_recursive(self, key: str, *, condition: Check | None = None) -> None:
        """See `MetadataStore.delete_recursive`; parents of sequential records go, too."""
        check_prefix(key)
        require_representable_key(key)
        for _ in range(_RECURSION_ROUNDS):
            if await self._delete_all(key, condition):
                return
        raise KeyHasChildrenError(f"somebody keeps creating keys below {key}")

    async def last_number(self) -> int:
        """See `MetadataStore.last_number`."""
        opened = self._require_open()
        return await opened.numbers.last(opened.link.deadline())

    async def _number_above(self, last: int) -> None:
        opened = self._require_open()
        await opened.numbers.raise_above(last, opened.link.deadline())

    async def sync(self) -> None:
        """See `MetadataStore.sync`: a write through the quorum, which all reads after it follow.

        ZooKeeper's own sync asks a leader, which may have been deposed without knowing it.
        """
        link = self._require_open().link
        await self._require_open().receipts.commit([], link.deadline(), link.losses)

    # ---- access control

    async def get_acl(self, key: str) -> list[Acl]:
        """See `MetadataStore.get_acl`."""
        check_key(key)
        require_representable_key(key)
        opened = self._require_open()
        return await opened.nodes.acl(key, opened.link.deadline())

    async def set_acl(self, key: str, acl: Sequence[Acl]) -> None:
        """See `MetadataStore.set_acl`."""
        check_key(key)
        require_representable_key(key)
        opened = self._require_open()
        await opened.nodes.set_acl(key, acl, opened.link.deadline())

    # ---- watches

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        """See `MetadataStore.watch`."""
        check_prefix(prefix)
        link = self._require_open().link
        # What was committed before, elsewhere, is not seen any more: a round trip behind it.
        await link.read(Exists(self._scope.root, None), link.deadline())
        subscription: Subscription[Change] = Subscription(overflow=Resync())
        self._watches[subscription] = prefix
        try:
            yield subscription
        finally:
            del self._watches[subscription]

    @property
    def is_session_certain(self) -> bool:
        """See `MetadataStore.is_session_certain`."""
        return self._open is not None and self._open.link.is_certain

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

    def _take_event(self, node_event: NodeEvent) -> None:
        if (opened := self._open) is None:
            return
        if node_event.kind == DELETED:
            key = self._scope.key(node_event.path)
            self._known.note_deletion(key, node_event.zxid)
            opened.parents.note_deletion(key)
        if (event := opened.reader.read(node_event)) is None:
            return
        if self._group and (event.revision is None or self._group[0].revision != event.revision):
            self._flush_events()
        self._group.append(event)

    def _take_quiet(self) -> None:
        self._flush_events()
        self._known.note_quiet()

    def _flush_events(self) -> None:
        """Hand out the events of one commit, as far as they are here."""
        if not self._group:
            return
        group, self._group = self._group, []
        for watch, prefix in self._watches.items():
            events = tuple(event for event in group if is_under(prefix, event.key))
            if events:
                watch.push(Commit(group[0].revision, events))

    def _missed_events(self) -> None:
        if (opened := self._open) is None:
            return  # it is being closed
        opened.parents.begin(self._known.ephemeral())
        self._known.clear()
        opened.reader.begin()
        for watch in self._watches:
            watch.push(Resync())

    def _announce(self, event: SessionEvent) -> None:
        for subscription in self._session_watches:
            subscription.push(event)

    def _require_open(self) -> _Open:
        if self._open is None:
            raise MetadataClosedError("the metadata store is closed")
        return self._open

    async def _delete_all(self, key: str, condition: Check | None) -> bool:
        """Delete what is below `key` and `key` itself; whether nothing is left."""
        parents = self._require_open().parents
        keys = [f"{key.rstrip('/')}/{name}" for name in await self.get_children(key)]
        for start in range(0, len(keys), DELETIONS_MAX):
            some = keys[start : start + DELETIONS_MAX]
            try:
                await self._delete_if(condition, some)
            except (NoSuchKeyError, KeyHasChildrenError, InvalidKeyError):
                # Not all are plain leaves: find out which, one by one.
                for one in some:
                    await self._delete_all(one, condition)
        await parents.prune_below(key)
        if key == ROOT:
            return not await self.get_children(ROOT)
        try:
            await self._delete_if(condition, [key])
        except NoSuchKeyError:
            await parents.prune(key, even_kept=True)
            return not await self.exists(key)
        except KeyHasChildrenError:
            return False
        return True
