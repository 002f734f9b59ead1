"""`EtcdStore`: one session with the store in a scope (a key prefix) of etcd.

Reads are linearizable: a read shows everything that any process committed before. After a lost
reply, the outcome of a write stays unknown in two cases: etcd cannot be reached for long, or the
session ends meanwhile. A write with an unknown outcome raises `MetadataUnavailableError`.

This store differs from the store in memory:

- The session begins with the first write, or with the first consumer of its events. A store that
  only reads needs no lease, and no right to write.
- Records have no times, because etcd stores no times.
- A take-over by another session counts as a change of the record, so `first_version` is False.
- The servers round a session's timeout up to whole seconds, and at least to their election timeout.
  This process treats the session as lost earlier, within the requested timeout.
- There is no access control by record: etcd's users have rights on ranges of keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from bookie._pb import etcd_pb2 as pb
from bookie.errors import (
    BookieError,
    MetadataClosedError,
    MetadataUnavailableError,
    SessionLostError,
    UnauthorizedError,
)
from bookie.metadata.etcd.client import (
    RANGE,
    TXN,
    CompactedError,
    EtcdClient,
    LostReplyError,
    NoRightError,
)
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.lease import EtcdLease, Receipt, settled_revision, settlement
from bookie.metadata.etcd.listing import child_names, child_records, foreign_keys
from bookie.metadata.etcd.messages import any_below, delete, stat
from bookie.metadata.etcd.session import EtcdSession
from bookie.metadata.etcd.transactions import SequenceCounters, Transaction, stat_of
from bookie.metadata.etcd.watch import EtcdWatch, Position, present
from bookie.metadata.model import (
    ROOT,
    Change,
    Operation,
    Record,
    Stat,
    ancestors,
    check_key,
    check_listing,
    check_prefix,
    check_transaction,
    is_under,
)
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.watches import SessionWatches, Watches

OPERATION_SECONDS_MIN = 2.0
OPERATION_SECONDS_MAX = 10.0
"""The shortest and the longest time for the retries of one operation.

Between these limits, retries end after half a session timeout, before the session is lost.
"""

ATTEMPTS = 3
"""The number of endpoints that one operation has time to try if no endpoint answers."""

_DELETIONS_MAX = 100
"""The most foreign keys that one Txn deletes; etcd allows 128 operations in a Txn."""


class EtcdStore(MetadataStore):
    """A session with the store below `scope` in the etcd at `hosts` (each ``HOST:PORT``)."""

    backend = "the metadata store in etcd"

    def __init__(
        self,
        hosts: Sequence[object],
        scope: str,
        *,
        session_timeout_seconds: float = 30.0,
        security: MetadataSecurity | None = None,
    ) -> None:
        self.session_timeout_seconds = session_timeout_seconds
        self._scope = KeyLayout(scope)
        self._addresses = [str(host) for host in hosts]
        self._security = security or MetadataSecurity()
        self._counters = SequenceCounters()
        self._sequential = asyncio.Lock()
        self._followed: dict[str, _Followed] = {}
        self._session_watches = SessionWatches()
        self._tasks = asyncio.TaskGroup()
        self._open = False
        self._client: EtcdClient
        self._session: EtcdSession

    @property
    def client(self) -> EtcdClient:
        """The connection to etcd; the attribute `calls` of the client counts its calls."""
        return self._client

    # ---- the session's life

    async def __aenter__(self) -> Self:
        seconds = max(self.session_timeout_seconds / 2, OPERATION_SECONDS_MIN)
        seconds = min(seconds, OPERATION_SECONDS_MAX)
        self._client = EtcdClient(
            self._addresses,
            self._security,
            scope=str(self._scope),
            attempt_seconds=seconds / ATTEMPTS,
            operation_seconds=seconds,
            on_connected=self._connected,
        )
        self._session = EtcdSession(
            self._client,
            self._scope,
            self.session_timeout_seconds,
            self._tasks,
            self._session_watches.announce,
        )
        try:
            await self._client.authenticate()
            await present(self._client, self._scope)  # fails if this user may not read
        except BaseException:
            await self._client.close()
            raise
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        try:
            self._session.stop()
            for followed in self._followed.values():
                followed.task.cancel()
            # The group does not get the body's error, because the group would wrap the error.
            await self._tasks.__aexit__(None, None, None)
            await self._session.revoke()
        finally:
            await self._client.close()
            for followed in self._followed.values():
                followed.watches.end()
            self._session_watches.end()

    @property
    def is_session_certain(self) -> bool:
        return self._open and self._session.is_certain

    def _connected(self) -> None:
        if self._open:
            self._session.note_connected()

    @asynccontextmanager
    async def session_events(self) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        """Deliver the session's events; the first consumer begins the session."""
        self._require_open()
        await self._session.begin()
        self._require_open()
        with self._session_watches.open() as events:
            yield events

    # ---- reads

    async def get(self, key: str) -> Record | None:
        check_key(key)
        self._require_open()
        response = await self._client.read(RANGE, pb.RangeRequest(key=self._scope.key(key)))
        for kv in response.kvs:
            return Record(kv.value, stat_of(key, kv, self._session.lease_id))
        return None

    async def exists(self, key: str) -> bool:
        check_prefix(key)
        self._require_open()
        reads = [any_below(self._scope, key)]
        if key != ROOT:
            reads.append(stat(self._scope.key(key)))
        response = await self._client.read(TXN, pb.TxnRequest(success=reads))
        return any(read.response_range.kvs for read in response.responses)

    async def get_children(self, key: str) -> list[str]:
        """List the children at one revision, or at several if etcd compacts the first revision."""
        check_prefix(key)
        self._require_open()
        return await child_names(self._client, self._scope, key)

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """Yield the records at one revision, or at several if etcd compacts the first revision."""
        check_listing(key, after)
        self._require_open()
        async for name, kv in child_records(self._client, self._scope, key, after):
            self._require_open()
            yield Record(kv.value, stat_of(name, kv, self._session.lease_id))

    async def foreign_keys(self) -> list[bytes]:
        self._require_open()
        return await foreign_keys(self._client, self._scope)

    async def delete_foreign(self) -> int:
        found = await self.foreign_keys()
        for start in range(0, len(found), _DELETIONS_MAX):
            parts = [delete(key) for key in found[start : start + _DELETIONS_MAX]]
            await self._client.read(TXN, pb.TxnRequest(success=parts))
        return len(found)

    async def enclosing_scopes(self, names: Collection[str]) -> list[str]:
        self._require_open()
        found = []
        for scope in ancestors(str(self._scope)):
            reads = [stat(f"{scope}/{name}".encode()) for name in names]
            with suppress(UnauthorizedError):
                response = await self._client.read(TXN, pb.TxnRequest(success=reads))
                if any(read.response_range.kvs for read in response.responses):
                    found.append(scope)
        return found

    async def sync(self) -> None:
        """Only check that the store is open, because reads always show the last commit."""
        self._require_open()

    # ---- writes

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """Commit the operations; on return, a majority of the etcd members has them on disk."""
        check_transaction(operations)
        self._refuse_acl(operations)
        self._require_open()
        if not operations:
            return []
        transaction = Transaction(self._scope, tuple(operations), self._counters)
        deadline = asyncio.get_running_loop().time() + self._client.operation_seconds
        lease = await self._session.current_lease(deadline)
        if transaction.is_sequential:
            # Two sequential writes at once would compete for the same number.
            async with self._sequential:
                return await self._transact(transaction, lease, deadline)
        return await self._transact(transaction, lease, deadline)

    async def _transact(
        self, transaction: Transaction, lease: EtcdLease, deadline: float
    ) -> list[Stat | None]:
        while True:
            self._require_open()
            self._session.require(lease)  # the caller may have acted on its lease
            receipt = await lease.take_receipt()
            try:
                results = await self._attempt(transaction, receipt, deadline)
            except SessionLostError:
                self._session.lose(lease)
                raise
            finally:
                lease.give_back(receipt)
            if results is not None:
                return results

    async def _attempt(
        self, transaction: Transaction, receipt: Receipt, deadline: float
    ) -> list[Stat | None] | None:
        """Send the Txn once; return None if the Txn wrote nothing and must be sent again."""
        request = transaction.request(receipt)
        receipt.is_doubtful = True
        try:
            response = await self._client.call(TXN, request)
        except LostReplyError as lost:
            revision = await self._settle(receipt, deadline, lost)
            if revision:
                return await self._confirm(transaction, receipt)
            if asyncio.get_running_loop().time() >= deadline:
                raise MetadataUnavailableError(f"{lost}; nothing was written") from None
            return None
        except MetadataClosedError:
            raise
        except CompactedError:
            receipt.is_doubtful = False
            transaction.learn(receipt, await self._client.read(TXN, transaction.reads()))
            return None
        except BookieError as error:
            receipt.is_doubtful = False  # etcd refused the Txn
            if isinstance(error, NoRightError):
                raise UnauthorizedError(
                    f"etcd does not let {self._client.user} write {transaction.first_key} in"
                    f" {self._scope}"
                ) from None
            raise
        receipt.is_doubtful = False
        return transaction.take(receipt, response)

    async def _settle(self, receipt: Receipt, deadline: float, lost: LostReplyError) -> int:
        """Return the revision of a write whose reply was lost; 0 if the write can never happen.

        Raises:
            MetadataUnavailableError: the outcome stays unknown.
        """
        unknown = f"{lost}; whether it wrote is unknown"
        retries = self._client.retries()
        while True:
            try:
                response = await self._client.call(TXN, settlement(receipt))
            except LostReplyError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise MetadataUnavailableError(unknown) from None
            except SessionLostError:
                raise MetadataUnavailableError(unknown) from None
            else:
                revision = settled_revision(receipt, response)
                receipt.is_doubtful = False
                return revision
            await asyncio.sleep(retries.pause())

    async def _confirm(
        self, transaction: Transaction, receipt: Receipt
    ) -> list[Stat | None] | None:
        """Read the results of a write whose reply was lost, at the revision in the receipt."""
        try:
            response = await self._client.read(TXN, transaction.confirmation(receipt.revision))
        except CompactedError as error:
            raise MetadataUnavailableError(
                f"{error}; the write of revision {receipt.revision} happened"
            ) from None
        return transaction.confirmed(receipt, response)

    def _require_open(self) -> None:
        if not self._open:
            raise MetadataClosedError("the metadata store is closed")

    # ---- watches

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        check_prefix(prefix)
        self._require_open()
        position = await present(self._client, self._scope)
        self._require_open()
        followed = self._follow(prefix, position)
        try:
            with followed.watches.open(prefix, position.revision) as changes:
                yield changes
        finally:
            if not followed.watches:
                followed.task.cancel()
                del self._followed[followed.prefix]

    def _follow(self, prefix: str, position: Position) -> _Followed:
        """Return the watch that covers `prefix`; a new watch begins after `position`."""
        for followed in self._followed.values():
            if is_under(followed.prefix, prefix):
                return followed
        watches = Watches()
        watch = EtcdWatch(self._client, self._scope, prefix, self._tasks, watches)
        task = self._tasks.create_task(watch.run(position))
        self._followed[prefix] = _Followed(prefix, watch, watches, task)
        return self._followed[prefix]


@dataclass(frozen=True, slots=True)
class _Followed:
    """One etcd watch on a range of keys, and the consumers whose prefixes lie in the range."""

    prefix: str
    watch: EtcdWatch
    watches: Watches
    task: asyncio.Task[None]
