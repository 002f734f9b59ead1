"""The store on ZooKeeper: ``zk://HOST:2181,HOST:2181/scope``, for clusters of many machines.

Servers must be of version 3.6 or later. With servers before 3.9, watches also report parents
(`changes`), and each event is a commit of its own. A request is sent without waiting for the
answers to earlier requests, and the server answers requests in order.

This store differs from the contract of `MetadataStore`:

- A watch may deliver one transaction as several commits of one revision, because ZooKeeper's events
  do not mark the end of a transaction.
- A record may be deleted and created again before the event of the deletion arrives. Until this
  event arrives, a write that expects the old record succeeds, if the new record was written as many
  times as the old one.
- The times of a record are the times of its node. If the node existed before, as a parent without a
  record, the creation time is the parent's, and `first_version` is False.
- A parent whose last child ended with its session stays, and is listed, until a delete below it or
  a recursive delete. A parent also stays if its removal conflicts with too many other removals.
  While a parent without children exists, a record above this parent cannot be deleted.
- If a record is deleted together with all its children, sequential numbers below its key begin
  anew. Numbers of ephemeral records also begin anew below a parent that became empty.
- If our user may write nothing, not even below ``/.bookie``, `sync` uses ZooKeeper's own sync. A
  leader that was just deposed may answer this sync; then later reads may lack the newest commits.
- Keys with control characters, or characters beyond Unicode's basic plane, are refused.

Source: PIP-45 for the interface; the recipes and pitfalls of Curator and kazoo for the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from bookie.env import gather
from bookie.errors import ConfigurationError, MetadataClosedError, UnauthorizedError
from bookie.metadata.model import (
    ROOT,
    Acl,
    Change,
    Check,
    Delete,
    Operation,
    Record,
    Stat,
    WatchEvent,
    ancestors,
    check_access,
    check_key,
    check_listing,
    check_prefix,
    check_transaction,
    is_under,
)
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.uri import Host
from bookie.metadata.watches import SessionWatches, Watches
from bookie.metadata.zookeeper.cached import KnownRecords
from bookie.metadata.zookeeper.changes import DELETED, ChangeReader
from bookie.metadata.zookeeper.kazoo_parts import NodeEvent
from bookie.metadata.zookeeper.nodes import NodeReader, refusal
from bookie.metadata.zookeeper.outcome import Receipts
from bookie.metadata.zookeeper.parents import Parents
from bookie.metadata.zookeeper.requests import (
    NO_NODE,
    Exists,
    GetChildren,
    GetData,
    NodeError,
    Sync,
    ZnodeStat,
)
from bookie.metadata.zookeeper.restrict import restrict
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import (
    HOME,
    Scope,
    has_no_record,
    require_representable,
    require_representable_key,
    stat_of,
)
from bookie.metadata.zookeeper.writer import Writer

SCAN_AHEAD = 32
"""The number of records that a scan reads at once, before it yields them; at most 16 MiB."""


@dataclass(frozen=True, slots=True)
class _Open:
    """The parts of a store that exist while the store is open."""

    link: ZooKeeperLink
    nodes: NodeReader
    parents: Parents
    receipts: Receipts
    writer: Writer
    reader: ChangeReader


class ZooKeeperStore(MetadataStore):
    """A session with the ZooKeeper servers `hosts`; all keys lie below the path `scope`."""

    backend = "ZooKeeper"
    lists_wide_directories = False
    has_access_control = True

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
        self._scope = Scope(scope, security.access, security.users)
        self._known = KnownRecords()
        self._watches = Watches()
        self._session_watches = SessionWatches()
        self._group: list[WatchEvent] = []
        self._may_not_write = 0
        """The latest connection on which ZooKeeper refused our user's empty write; 0 if none."""
        self._open: _Open | None = None

    async def __aenter__(self) -> Self:
        link = ZooKeeperLink(
            self._hosts,
            self._scope.root,
            self._scope.acl(ROOT),
            session_timeout_seconds=self.session_timeout_seconds,
            security=self._security,
            on_event=self._take_event,
            on_quiet=self._take_quiet,
            on_missed=self._missed_events,
            announce=self._session_watches.announce,
        )
        nodes = NodeReader(link, self._scope)
        parents = Parents(link, self._scope, nodes)
        receipts = Receipts(link)
        writer = Writer(link, self._scope, nodes, parents, receipts, self._known)
        reader = ChangeReader(self._scope)
        self._open = _Open(link, nodes, parents, receipts, writer, reader)
        try:
            await link.__aenter__()
        except BaseException:
            self._open = None
            raise
        self.session_timeout_seconds = link.timeout_seconds
        return self

    async def __aexit__(self, *_: object) -> None:
        opened = self._require_open()
        self._open = None
        try:
            await opened.link.__aexit__(None, None, None)
        finally:
            self._watches.end()
            self._session_watches.end()

    @property
    def credentials(self) -> tuple[int, bytes]:
        """The session's id and password, with which another client can continue the session."""
        return self._require_open().link.credentials

    # ---- reads

    async def get(self, key: str) -> Record | None:
        check_key(key)
        link, found = await self._read(GetData, key)
        if found is None:
            return None
        data, stat = found
        return self._record(key, data, stat, link.session)

    async def exists(self, key: str) -> bool:
        check_prefix(key)
        _, found = await self._read(GetData, key)
        if found is None:
            return False
        data, stat = found
        return stat.numChildren > 0 or (key != ROOT and not has_no_record(data))

    async def get_children(self, key: str) -> list[str]:
        check_prefix(key)
        _, names = await self._read(GetChildren, key)
        return sorted(names or [])

    async def _read(
        self, request: type[GetData | GetChildren], key: str
    ) -> tuple[ZooKeeperLink, Any]:
        """Read the node of `key`; return the link, and the answer or None if there is no node."""
        require_representable_key(key)
        link = self._require_open().link
        try:
            return link, await link.read(request(self._scope.path(key)), link.deadline())
        except NodeError as error:
            if error.code == NO_NODE:
                return link, None
            raise refusal(error, key) from error

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        check_listing(key, after)
        names = [name for name in await self.get_children(key) if name > after]
        prefix = key.rstrip("/")
        for start in range(0, len(names), SCAN_AHEAD):
            keys = [f"{prefix}/{name}" for name in names[start : start + SCAN_AHEAD]]
            for record in await gather(map(self.get, keys)):
                if record is not None:
                    yield record

    def _record(self, key: str, data: bytes | None, stat: ZnodeStat, session: int) -> Record | None:
        if has_no_record(data):
            self._known.forget(key)
            return None
        assert data is not None
        self._known.learn(key, stat)
        return Record(data, stat_of(key, stat, session))

    # ---- writes

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        check_transaction(operations)
        for operation in operations:
            require_representable(operation)
        opened = self._require_open()
        return await opened.writer.write(operations) if operations else []

    async def _is_there(self, key: str) -> bool:
        link = self._require_open().link
        path = self._scope.path(key)
        stat = await link.read(Exists(path), link.deadline())
        # A parent without children counts, too: the end of a session, or a failed delete, may have
        # left it.
        return stat is not None and (key != ROOT or stat.numChildren > 0)

    async def _delete_if(self, condition: Check | None, some: Sequence[str]) -> None:
        operations: list[Operation] = [
            *([] if condition is None else [condition]),
            *map(Delete, some),
        ]
        for key in some:
            require_representable_key(key)
        check_transaction(operations)
        await self._require_open().writer.write(operations, with_parents=True)

    async def enclosing_scopes(self, names: Collection[str]) -> list[str]:
        nodes, deadline = self._require_open().nodes, self._require_open().link.deadline()
        found = []
        for scope in ancestors(self._scope.root):
            asked = [Exists(f"{scope}/{name}") for name in names]
            if any(await nodes.ask(asked, deadline)):
                found.append(scope)
        return found

    async def sync(self) -> None:
        """Commit a write without operations, which needs a quorum of servers.

        ZooKeeper's own sync is not used, because a deposed leader may still answer that sync. It is
        used only for a user that may write nothing at all.
        """
        link = self._require_open().link
        if self._may_not_write != link.connection:
            try:
                await self._require_open().receipts.commit([], link.deadline(), link.losses)
                return
            except UnauthorizedError:
                self._may_not_write = link.connection
        await link.read(Sync(self._scope.root), link.deadline())

    # ---- access control

    async def get_acl(self, key: str) -> list[Acl]:
        check_key(key)
        require_representable_key(key)
        opened = self._require_open()
        return await opened.nodes.acl(key, opened.link.deadline())

    async def set_acl(self, key: str, acl: Sequence[Acl]) -> None:
        check_key(key)
        check_access(acl)
        require_representable_key(key)
        opened = self._require_open()
        await opened.nodes.set_acl(key, acl, opened.link.deadline())

    async def restrict(self) -> int:
        opened = self._require_open()
        return await restrict(opened.link, opened.nodes, self._scope)

    # ---- watches

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        check_prefix(prefix)
        link = self._require_open().link
        # The answer to this read arrives after the events of all earlier commits. So the new watch,
        # which is opened then, does not get these events.
        await link.read(Exists(self._scope.root), link.deadline())
        with self._watches.open(prefix) as changes:
            yield changes

    @property
    def is_session_certain(self) -> bool:
        return self._open is not None and self._open.link.is_certain

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        self._require_open()
        with self._session_watches.open() as events:
            yield events

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
        """Deliver the events that have arrived for one commit."""
        if not self._group:
            return
        group, self._group = self._group, []
        self._watches.deliver(group[0].revision, group)

    def _missed_events(self) -> None:
        if (opened := self._open) is None:
            return  # the store is being closed
        self._known.clear()
        opened.parents.clear()
        opened.reader.begin()
        self._watches.resync()

    def _require_open(self) -> _Open:
        if self._open is None:
            raise MetadataClosedError("the metadata store is closed")
        return self._open
