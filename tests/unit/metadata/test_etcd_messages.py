"""Txns of many operations, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd import messages
from bookie.metadata.etcd.key_layout import KeyLayout

SCOPE = KeyLayout("/mine")


def _keys(operations: Iterable[pb.RequestOp]) -> set[bytes]:
    """All keys that are read or written, in whatever case."""
    found: set[bytes] = set()
    for operation in operations:
        match operation.WhichOneof("request"):
            case "request_txn":
                txn = operation.request_txn
                found |= _keys([*txn.success, *txn.failure])
            case "request_range":
                found.add(operation.request_range.key)
            case _:
                found.add(operation.request_put.key)
    return found


def test_a_large_transaction_touches_nothing_outside_its_scope() -> None:
    """A user may have rights on the scope only, and rights are checked for every case."""
    keys = [SCOPE.key(f"/{i}") for i in range(120)]
    compares = [messages.absent(key) for key in keys]
    writes = [messages.put(key, b"", 0) for key in keys]
    first, behind = b"/mine/", b"/mine0"
    for operations in (
        messages.conjunction(SCOPE, compares, writes),
        messages.grouped(SCOPE, [messages.stat(key) for key in keys]),
    ):
        found = _keys(pb.TxnRequest(success=operations).success)
        assert found > set(keys)
        assert all(first <= key < behind for key in found)
