"""The store in etcd: ``etcd://HOST:2379,HOST:2379/scope``.

etcd is close to what the interface asks for: one number, its revision, is the version and the
revision of a record; a Txn is a transaction (`etcd_transactions`); a lease is a session
(`etcd_lease`), which the machine of all stores watches; one watch on the scope tells every change
(`etcd_watch`). Reads are linearizable: they show what anybody wrote before. A scope needs no
creation.

A write whose reply is lost is settled: the store finds out whether it happened, or sees to it that
it never will and makes it again. Only when etcd cannot be reached for long, or the session ends
meanwhile, is the outcome unknown (`MetadataUnavailableError`).

What is different here from the store in memory, and why:

- Records have no times: etcd keeps none.
- A record that was taken over by another session is not of its first version: the take-over is one
  put, so that no moment exists without the record, and etcd counts it as a change.
- Writes that were under way at the same time may be one commit (`etcd_convoy`): their records have
  one revision, and a watch tells of them together.
- A session lasts whole seconds, and at least what the servers' election timeout allows; it is given
  up here by what was asked for, which is earlier.
- There is no access control by record: etcd's users have rights on ranges of keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from bookie._pb import etcd_pb2 as pb
from bookie.errors import (
    BookieError,
    MetadataClosedError,
    MetadataUnavailableError,
    SessionLostError,
)
from bookie.metadata.changes import Change, Commit, Resync
from bookie.metadata.etcd_client import (
    RANGE,
    TXN,
    CompactedError,
    EtcdClient,
    LostReplyError,
)
from bookie.metadata.etcd_convoy import Convoy, Convoys
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.etcd_known import Known
from bookie.metadata.etcd_lease import EtcdLease, replace
from bookie.metadata.etcd_listing import child_names, child_records
from bookie.metadata.etcd_messages import any_below, stat
from bookie.metadata.etcd_numbers import last_number, raise_floor
from bookie.metadata.etcd_receipts import Receipt, settled_revision, settlement
from bookie.metadata.etcd_transactions import (
    Transaction,
    stat_of,
)
from bookie.metadata.etcd_watch import EtcdWatch
from bookie.metadata.keys import ROOT, check_key, check_prefix, is_under
from bookie.metadata.records import Operation, Record, Stat, check_transaction
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.session_monitor import SessionMonitor
from bookie.metadata.store import MetadataStore
from bookie.metadata.subscription import Subscription
from bookie.protocol.session import Connected, Expired, SessionEvent, SessionState

OPERATION_SECONDS_MIN = 2.0
OPERATION_SECONDS_MAX = 10.0
"""An operation is tried for half a session timeout, within these bounds: who asks learns that etcd
does not answer before the session is lost."""

ATTEMPTS = 3
"""How many endpoints can be tried within an operation although none of them answers."""

PROBE_FRACTION = 4
RENEWAL_FRACTION = 7
"""Of the session timeout: how long an endpoint may take to prove a lease, or for each of the two
steps of a new one. The monitor waits for a third; another endpoint must have its turn before."""


class EtcdStore(MetadataStore):
    """A session with the store below `scope` in the cluster of `hosts` (each ``HOST:PORT``)."""

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
        self._scope = Scope(scope)
        self._addresses = [str(host) for host in hosts]
        self._security = security or MetadataSecurity()
        self._known = Known()
        self._sequential = asyncio.Lock()
        self._watches: dict[Subscription[Change], tuple[str, int]] = {}
        self._session_watches: set[Subscription[SessionEvent]] = set()
        self._tasks = asyncio.TaskGroup()
        self._convoys = Convoys(self._tasks, self._transact)
        self._running: asyncio.Task[None] | None = None
        self._open = False
        self._client: EtcdClient
        self._lease: EtcdLease
        self._monitor: SessionMonitor
        self._watch: EtcdWatch

    @property
    def client(self) -> EtcdClient:
        """The way to etcd; its `calls` say what was asked so far."""
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
        self._watch = EtcdWatch(self._client, self._scope, self._tasks, self._deliver, self._resync)
        try:
            await self._client.authenticate()
            self._lease = await EtcdLease.grant(
                self._client, self._scope, self.session_timeout_seconds
            )
            self._monitor = SessionMonitor(
                self.session_timeout_seconds,
                probe=self._probe,
                renew=self._renew,
                announce=self._announce,
                begun_at=self._lease.asked_at,
            )
            await self._monitor.__aenter__()
        except BaseException:
            await self._client.close()
            raise
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        try:
            self._convoys.close()
            if self._running is not None:
                self._running.cancel()
            # The body's own error passes by the group, which would wrap it.
            await self._tasks.__aexit__(None, None, None)
            await self._monitor.__aexit__(None, None, None)
            with suppress(BookieError):  # then it ends by itself: nobody keeps it alive any more
                await self._lease.revoke(self._client.attempt_seconds)
        finally:
            await self._client.close()
            closed = MetadataClosedError("the metadata store is closed")
            for watch in self._watches:
                watch.end(closed)
            for session_watch in self._session_watches:
                session_watch.end(closed)

    @property
    def is_session_certain(self) -> bool:
        """See `MetadataStore.is_session_certain`."""
        return self._open and self._monitor.state is SessionState.CONNECTED

    async def _probe(self) -> None:
        await self._lease.prove(self.session_timeout_seconds / PROBE_FRACTION)

    async def _renew(self) -> None:
        self._lease = await replace(
            self._client,
            self._scope,
            self._lease,
            self.session_timeout_seconds,
            answer_seconds=self.session_timeout_seconds / RENEWAL_FRACTION,
        )

    def _connected(self) -> None:
        if self._open:
            self._monitor.tell(Connected())

    def _announce(self, event: SessionEvent) -> None:
        for subscription in self._session_watches:
            subscription.push(event)

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

    # ---- reads

    async def get(self, key: str) -> Record | None:
        """See `MetadataStore.get`."""
        check_key(key)
        self._require_open()
        response = await self._client.read(RANGE, pb.RangeRequest(key=self._scope.key(key)))
        for kv in response.kvs:
            if not kv.lease:
                self._known.saw_persistent(key, kv.mod_revision)
            return Record(kv.value, stat_of(key, kv, self._lease.id))
        return None

    async def exists(self, key: str) -> bool:
        """See `MetadataStore.exists`."""
        check_prefix(key)
        self._require_open()
        reads = [any_below(self._scope, key)]
        if key != ROOT:
            reads.append(stat(self._scope.key(key)))
        response = await self._client.read(TXN, pb.TxnRequest(success=reads))
        return any(read.response_range.kvs for read in response.responses)

    async def get_children(self, key: str) -> list[str]:
        """See `MetadataStore.get_children`; all of one revision, if etcd keeps it long enough."""
        check_prefix(key)
        self._require_open()
        return await child_names(self._client, self._scope, key)

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """See `MetadataStore.scan_children`; all of one revision, if etcd keeps it long enough."""
        check_prefix(key)
        self._require_open()
        async for name, kv in child_records(self._client, self._scope, key, after):
            self._require_open()
            yield Record(kv.value, stat_of(name, kv, self._lease.id))

    async def last_number(self) -> int:
        """See `MetadataStore.last_number`."""
        self._require_open()
        return await last_number(self._client, self._scope)

    async def _number_above(self, last: int) -> None:
        self._require_open()
        await raise_floor(self._client, self._scope, last)

    async def sync(self) -> None:
        """See `MetadataStore.sync`: a read always shows the last commit of any process."""
        self._require_open()

    # ---- writes

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """See `MetadataStore.transaction`; a majority of etcd has it on disk when it returns."""
        check_transaction(operations)
        self._refuse_acl(operations)
        self._require_open()
        if not operations:
            return []
        transaction = Transaction(self._scope, tuple(operations), self._known)
        if transaction.is_sequential:
            # Two at once would only take the same number away from each other.
            async with self._sequential:
                return await self._transact(transaction)
        if transaction.is_light:
            return await self._convoys.carry(transaction)
        return await self._transact(transaction)

    async def _transact(self, transaction: Transaction | Convoy) -> list[Stat | None]:
        deadline = asyncio.get_running_loop().time() + self._client.operation_seconds
        while True:
            if self._monitor.state is SessionState.LOST:
                await asyncio.sleep(0)  # whoever tries again at once lets the next one begin
            lease = self._require_session()
            receipt = await lease.take_receipt()
            try:
                results = await self._attempt(transaction, receipt, deadline)
            except SessionLostError:
                self._lose(lease)
                raise
            finally:
                lease.give_back(receipt)
            if results is not None:
                return results

    async def _attempt(
        self, transaction: Transaction | Convoy, receipt: Receipt, deadline: float
    ) -> list[Stat | None] | None:
        """Make the Txn once; None = it did not write and is to be made again."""
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
            if isinstance(transaction, Convoy):
                raise
            transaction.learn(receipt, await self._client.read(TXN, transaction.reads()))
            return None
        except BookieError:
            receipt.is_doubtful = False  # refused
            raise
        receipt.is_doubtful = False
        return transaction.take(receipt, response)

    async def _settle(self, receipt: Receipt, deadline: float, lost: LostReplyError) -> int:
        """The revision of the write whose reply was lost; 0 = it did not happen and never will.

        Raises:
            MetadataUnavailableError: nobody can tell.
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
        self, transaction: Transaction | Convoy, receipt: Receipt
    ) -> list[Stat | None] | None:
        """The results of a write of which only the revision is known."""
        try:
            response = await self._client.read(TXN, transaction.confirmation(receipt.revision))
        except CompactedError as error:
            raise MetadataUnavailableError(
                f"{error}; the write of revision {receipt.revision} happened"
            ) from None
        return transaction.confirmed(receipt, response)

    def _require_session(self) -> EtcdLease:
        self._require_open()
        if self._monitor.state is SessionState.LOST:
            raise SessionLostError("the session with etcd is lost; one begins when etcd answers")
        return self._lease

    def _lose(self, lease: EtcdLease) -> None:
        if lease is self._lease and self._open:
            self._monitor.tell(Expired())

    def _require_open(self) -> None:
        if not self._open:
            raise MetadataClosedError("the metadata store is closed")

    # ---- watches

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        """See `MetadataStore.watch`."""
        check_prefix(prefix)
        self._require_open()
        position = await self._watch.present()
        self._require_open()
        if self._running is None:
            self._running = self._tasks.create_task(self._watch.run(position))
        subscription: Subscription[Change] = Subscription(overflow=Resync())
        self._watches[subscription] = (prefix, position.revision)
        try:
            yield subscription
        finally:
            del self._watches[subscription]

    def _deliver(self, commit: Commit) -> None:
        assert commit.revision is not None
        for subscription, (prefix, since) in self._watches.items():
            if commit.revision <= since:
                continue
            events = tuple(event for event in commit.events if is_under(prefix, event.key))
            if events:
                subscription.push(Commit(commit.revision, events))

    def _resync(self, revision: int) -> None:
        for subscription, (prefix, since) in self._watches.items():
            self._watches[subscription] = (prefix, min(since, revision))
            subscription.push(Resync())
