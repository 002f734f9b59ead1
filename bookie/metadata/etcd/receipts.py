"""Receipts: they tell the outcome of a write after its reply was lost.

Each Txn that writes also compares and replaces a receipt: a key of the session's lease, which only
this write uses meanwhile. A session that is lost loses its receipts and can write no more. After a
lost reply, the store tries to replace the receipt in its state before the write. If that succeeds,
the write can never happen. If the receipt was replaced already, it shows the write's revision.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.etcd.messages import Part, mod, put, read

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
    """Replaces the receipt by a write, as a part of it."""
    receipt.uses += 1
    return put(receipt.key, b"%d" % receipt.uses, receipt.lease)


def settlement(receipt: Receipt) -> pb.TxnRequest:
    """Replaces the receipt unless the write under way did; see `settled_revision`."""
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
