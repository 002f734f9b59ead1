"""A session of the store in etcd: a lease, and the receipts of its writes.

Ephemeral records, and the receipts (keys that show if a write was done), are deleted at the latest
when the lease ends. The session monitor calls `prove` to extend the lease; it counts each extension
from the moment at which the request was sent. If the session is lost, the store revokes the lease,
which deletes the lease's records at once, and then gets a new lease.

**Receipts** show the outcome of a write after its reply was lost. A receipt is a key that belongs
to the lease. Each Txn that writes also compares and replaces a receipt, which no other write uses
at the same time. When the lease ends, its receipts are deleted. So a Txn of the session that
arrives later fails: its receipt is gone, or cannot be created for a lease that has ended. After a
lost reply, the store sends a second Txn, which replaces the receipt unless the write has already
replaced it. If the second Txn replaces the receipt, the write finds another receipt than it
expects, and can never happen. If the write came first, the receipt shows the write's revision.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass

from bookie._pb import etcd_pb2 as pb
from bookie.env import boot_time_seconds
from bookie.errors import BookieError, MetadataUnavailableError, SessionLostError
from bookie.metadata.etcd.client import GRANT, KEEP_ALIVE, REVOKE, EtcdClient
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.messages import Part, mod, put, read

WRITES_MAX = 64
"""The most writes of one session that run at the same time; more writes wait."""


class EtcdLease:
    """One lease, which etcd ends after `timeout_seconds` (rounded up) unless `prove` extends it."""

    def __init__(
        self, client: EtcdClient, scope: KeyLayout, lease_id: int, asked_at: float
    ) -> None:
        self.id = lease_id
        self.asked_at = asked_at
        """The time at which the request for the lease was sent, by `boot_time_seconds`."""
        self._client = client
        self._scope = scope
        self._free: list[Receipt] = []
        self._receipts = 0
        self._writes = asyncio.Semaphore(WRITES_MAX)

    @classmethod
    async def grant(
        cls,
        client: EtcdClient,
        scope: KeyLayout,
        timeout_seconds: float,
        *,
        answer_seconds: float | None = None,
    ) -> EtcdLease:
        """Return a new lease.

        If `answer_seconds` is given, ask one endpoint only, and wait at most this time; else try
        all endpoints. If the reply is lost, a lease that etcd granted stays empty, and ends by its
        timeout.
        """
        request = pb.LeaseGrantRequest(ttl=max(1, math.ceil(timeout_seconds)))
        asked_at = boot_time_seconds()

        def note() -> None:
            nonlocal asked_at
            asked_at = boot_time_seconds()

        if answer_seconds is None:
            response = await client.read(GRANT, request, note)
        else:
            response = await client.call(GRANT, request, seconds=answer_seconds)
        return cls(client, scope, response.id, asked_at)

    async def prove(self, seconds: float) -> None:
        """Ask etcd to keep the lease alive for another session timeout.

        Raises:
            SessionLostError: the lease ended.
            MetadataUnavailableError: no answer within `seconds`.
        """
        request = pb.LeaseKeepAliveRequest(id=self.id)
        response = await self._client.exchange(KEEP_ALIVE, request, seconds=seconds)
        if response.ttl <= 0:
            raise SessionLostError("the session with etcd ended")

    async def revoke(self, seconds: float) -> None:
        """End the lease, which deletes its records and receipts; raise if etcd does not answer."""
        try:
            await self._client.call(REVOKE, pb.LeaseRevokeRequest(id=self.id), seconds=seconds)
        except SessionLostError:
            return  # the lease has ended already

    async def take_receipt(self) -> Receipt:
        """Return a receipt for one write; wait while `WRITES_MAX` writes are under way.

        After the write, even a failed write, the caller must pass the receipt to `give_back`.
        """
        await self._writes.acquire()
        if self._free:
            return self._free.pop()
        self._receipts += 1
        return Receipt(self._scope.receipt(self.id, self._receipts), self.id)

    def give_back(self, receipt: Receipt) -> None:
        """Take a receipt back after a write; later writes use it again, unless it is doubtful."""
        if not receipt.is_doubtful:
            self._free.append(receipt)
        self._writes.release()


async def replace(
    client: EtcdClient,
    scope: KeyLayout,
    lost: EtcdLease,
    timeout_seconds: float,
    *,
    answer_seconds: float,
) -> EtcdLease:
    """Revoke the lost lease if etcd answers, and return a new lease."""
    # If the revocation fails, the lease ends by its timeout, because nothing extends the lease.
    with suppress(BookieError):
        await lost.revoke(answer_seconds)
    return await EtcdLease.grant(client, scope, timeout_seconds, answer_seconds=answer_seconds)


# ---- receipts

_VOID = b"void"
"""The value of a receipt whose write was prevented."""


@dataclass(slots=True)
class Receipt:
    """A key that belongs to the lease, and that only one write at a time may use.

    `revision` is etcd's revision of the Txn that replaced the key last; 0 if none has done so.
    """

    key: bytes
    lease: int
    revision: int = 0
    uses: int = 0
    is_doubtful: bool = False
    """True while the write that uses this receipt has no known outcome, and may still happen."""


def mark(receipt: Receipt) -> Part:
    """Return the put that replaces `receipt`; later it proves that its Txn was carried out."""
    receipt.uses += 1
    return put(receipt.key, b"%d" % receipt.uses, receipt.lease)


def settlement(receipt: Receipt) -> pb.TxnRequest:
    """Return a Txn that replaces the receipt unless the unanswered write has replaced it.

    Pass the response to `settled_revision`.
    """
    return pb.TxnRequest(
        compare=[mod(receipt.key, receipt.revision)],
        success=[put(receipt.key, _VOID, receipt.lease)],
        failure=[read(receipt.key)],
    )


def settled_revision(receipt: Receipt, response: pb.TxnResponse) -> int:
    """Return the revision of the write whose reply was lost; 0 if the write can never happen.

    Raises:
        MetadataUnavailableError: the session ended, so the receipt is gone.
    """
    if response.succeeded:
        receipt.revision = response.header.revision
        return 0
    kvs = response.responses[0].response_range.kvs
    if not kvs:
        raise MetadataUnavailableError(
            "the session with etcd ended before it answered; whether it wrote is unknown"
        )
    receipt.revision = kvs[0].mod_revision
    # `_VOID` means that an earlier settlement, whose reply was lost too, has prevented the write.
    return 0 if kvs[0].value == _VOID else receipt.revision
