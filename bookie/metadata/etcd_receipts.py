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
from bookie.metadata.etcd_messages import Part, mod, put, read, stat

_VOID = b"void"
"""The value of a receipt after its write was proven not to happen."""

_OVERWRITE_BYTES_MAX = 64 * 1024
"""What a message that is filled in again may come to keep."""


@dataclass(slots=True)
class Receipt:
    """A key of the session that one write at a time replaces; `revision` is its last, 0 = none."""

    key: bytes
    lease: int
    revision: int = 0
    uses: int = 0
    is_doubtful: bool = False
    """Whether the write that uses it may still happen."""
    overwrite: Overwrite | None = None
    """The message of its last write of a version."""


class Overwrite:
    """The Txn that replaces one record of a version, as a message that is filled in again.

    It is what a lone writer writes most. To make it anew takes longer than all that is done here
    besides for a write.
    """

    def __init__(self, receipt: Receipt) -> None:
        self._txn = txn = pb.TxnRequest(
            compare=[mod(receipt.key, 0), mod(b"", 0)],
            success=[put(receipt.key, b"", receipt.lease), put(b"", b"", 0)],
            failure=[stat(b""), read(receipt.key)],
        )
        # A way into a message costs as much as a field.
        self._own, self._compare = txn.compare
        self._mark, self._put = (operation.request_put for operation in txn.success)
        self._stat = txn.failure[0].request_range
        self.held_bytes = 0
        """What it keeps of what it was filled with: a message frees nothing before its end."""

    def fill(self, receipt: Receipt, key: bytes, value: bytes, version: int) -> pb.TxnRequest:
        """Make it the write of `receipt`, which replaces `version` of `key`."""
        self._own.mod_revision = receipt.revision
        self._compare.key = self._put.key = self._stat.key = key
        self._compare.mod_revision = version
        self._mark.value = b"%d" % receipt.uses
        self._put.value = value
        self.held_bytes += len(value) + 3 * len(key)
        return self._txn


def overwrite(receipt: Receipt, key: bytes, value: bytes, version: int) -> pb.TxnRequest:
    """The Txn that replaces `version` of `key`, which has no lease, and the receipt.

    It reads the record without its value, and then the receipt, if it does not write. The message
    is good until the next use of the receipt.
    """
    message = receipt.overwrite
    if message is None or message.held_bytes > _OVERWRITE_BYTES_MAX:
        message = receipt.overwrite = Overwrite(receipt)
    receipt.uses += 1
    return message.fill(receipt, key, value, version)


def mark(receipt: Receipt) -> Part:
    """Replaces the receipt by a write, as a part of it."""
    receipt.uses += 1
    return put(receipt.key, b"%d" % receipt.uses, receipt.lease)


def settlement(receipt: Receipt) -> pb.TxnRequest:
    """Replaces the receipt unless the write under way did; tells which, see `settled_revision`."""
    return pb.TxnRequest(
        compare=[mod(receipt.key, receipt.revision)],
        success=[put(receipt.key, _VOID, receipt.lease)],
        failure=[read(receipt.key)],
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
