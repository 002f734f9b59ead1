"""Receipts: how the outcome of a write is known although its reply was lost.

Each Txn that writes also compares and replaces a receipt, a key of the session's lease that no
other write uses meanwhile. If the session is lost its receipts are gone, so it cannot write. If a
reply is lost, whoever replaces the receipt in the state before the write has proven that the write
did not happen and never will; whoever finds it replaced has the revision at which it happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.etcd_messages import mod, put

_VOID = b"void"
"""The value of a receipt after its write was proven not to happen."""


@dataclass(slots=True)
class Receipt:
    """A key of the session that one write at a time replaces; `revision` is its last, 0 = none."""

    key: bytes
    lease: int
    revision: int = 0
    uses: int = 0
    is_doubtful: bool = False
    """Whether the write that uses it may still happen."""


def mark(receipt: Receipt) -> pb.RequestOp:
    """Replaces the receipt by a write, as a part of it."""
    receipt.uses += 1
    return put(receipt.key, b"%d" % receipt.uses, receipt.lease)


def settlement(receipt: Receipt) -> pb.TxnRequest:
    """Replaces the receipt unless the write under way did; tells which, see `settled_revision`."""
    return pb.TxnRequest(
        compare=[mod(receipt.key, receipt.revision)],
        success=[put(receipt.key, _VOID, receipt.lease)],
        failure=[pb.RequestOp(request_range=pb.RangeRequest(key=receipt.key))],
    )


def settled_revision(receipt: Receipt, response: pb.TxnResponse) -> int:
    """The revision at which the write of the lost reply happened; 0 = it never will.

    Raises:
        MetadataUnavailableError: the session ended, and with it all that could tell.
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
    # An earlier settlement, whose reply was lost too, may have come first.
    return 0 if kvs[0].value == _VOID else receipt.revision
