"""A session of the store in etcd: a lease, and the receipts of its writes.

The lease keeps ephemeral records and receipts alive. The session monitor calls `prove`, and a proof
counts from the moment at which its request was sent. A lost lease is revoked, so that its records
go at once, and another lease replaces it.

**Receipts** tell the outcome of a write after its reply was lost. Each Txn that writes also
compares and replaces a receipt: a key of the lease, which only this write uses meanwhile. A session
that is lost loses its receipts and can write no more. After a lost reply, the store tries to
replace the receipt in its state before the write. If that succeeds, the write can never happen. If
the receipt was replaced already, it shows the write's revision.
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
"""Writes of a session under way at once; more wait."""


class EtcdLease:
    """One lease. etcd ends it when `timeout_seconds`, rounded up, passed without a proof."""

    def __init__(
        self, client: EtcdClient, scope: KeyLayout, lease_id: int, asked_at: float
    ) -> None:
        self.id = lease_id
        self.asked_at = asked_at
        """Time of the granted request, by `boot_time_seconds`."""
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
        """A new lease. Every endpoint is tried, or one for `answer_seconds`.

        A lease whose grant was not answered is empty and ends by itself.
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
        """Keep the lease alive for another timeout.

        Raises:
            SessionLostError: it ended.
            MetadataUnavailableError: no answer within `seconds`.
        """
        request = pb.LeaseKeepAliveRequest(id=self.id)
        response = await self._client.exchange(KEEP_ALIVE, request, seconds=seconds)
        if response.ttl <= 0:
            raise SessionLostError("the session with etcd ended")

    async def revoke(self, seconds: float) -> None:
        """End the lease with all that belongs to it; raises if etcd does not answer."""
        try:
            await self._client.call(REVOKE, pb.LeaseRevokeRequest(id=self.id), seconds=seconds)
        except SessionLostError:
            return  # it ended by itself

    async def take_receipt(self) -> Receipt:
        """A receipt for one write; `give_back` is owed."""
        await self._writes.acquire()
        if self._free:
            return self._free.pop()
        self._receipts += 1
        return Receipt(self._scope.receipt(self.id, self._receipts), self.id)

    def give_back(self, receipt: Receipt) -> None:
        """End a write. A receipt of a write that may still happen is never used again."""
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
    """A new lease instead of a lost one, which is revoked if etcd answers."""
    # If the revocation fails, the lease ends by itself: it gets no more proofs.
    with suppress(BookieError):
        await lost.revoke(answer_seconds)
    return await EtcdLease.grant(client, scope, timeout_seconds, answer_seconds=answer_seconds)


# ---- receipts

_VOID = b"void"
"""The value of a receipt whose write was prevented."""


@dataclass(slots=True)
class Receipt:
    """A key of the session that one write at a time replaces; `revision` is its last, 0 = none."""

    key: bytes
    lease: int
    revision: int = 0
    uses: int = 0
    is_doubtful: bool = False
    """True while the write that uses it may still happen."""


def mark(receipt: Receipt) -> Part:
    """The part of a write that replaces the receipt."""
    receipt.uses += 1
    return put(receipt.key, b"%d" % receipt.uses, receipt.lease)


def settlement(receipt: Receipt) -> pb.TxnRequest:
    """A Txn that replaces the receipt unless the write under way did; see `settled_revision`."""
    return pb.TxnRequest(
        compare=[mod(receipt.key, receipt.revision)],
        success=[put(receipt.key, _VOID, receipt.lease)],
        failure=[read(receipt.key)],
    )


def settled_revision(receipt: Receipt, response: pb.TxnResponse) -> int:
    """The revision at which the write of the lost reply happened; 0 = it will never happen.

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
    # The void may be of an earlier settlement, whose reply was lost too.
    return 0 if kvs[0].value == _VOID else receipt.revision
