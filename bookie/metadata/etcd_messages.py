"""The messages of which Txns are made: compares, writes and reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bookie._pb import etcd_pb2 as pb
from bookie.errors import BadRequestError
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.keys import ROOT

OPERATIONS_MAX = 100
"""Compares, writes or reads in a plain Txn. etcd takes 128 by default, counted along every way into
a Txn of Txns."""

_GROUP_OPERATIONS = 50
_GROUPS_MAX = 70


def mod(key: bytes, revision: int) -> pb.Compare:
    """Holds if the record was written last at `revision`; 0 = if there is none."""
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=revision)


def version(key: bytes, expected: int) -> pb.Compare:
    """Holds if the record has this version, which no record has that is not there."""
    return mod(key, expected or -1)


def absent(key: bytes) -> pb.Compare:
    """Holds if there is no record."""
    return pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=0)


def present(key: bytes) -> pb.Compare:
    """Holds if there is a record."""
    return pb.Compare(
        result=pb.Compare.GREATER, target=pb.Compare.CREATE, key=key, create_revision=0
    )


def less(key: bytes, value: bytes) -> pb.Compare:
    """Holds if there is a record with a value before `value`, in the order of bytes."""
    return pb.Compare(result=pb.Compare.LESS, target=pb.Compare.VALUE, key=key, value=value)


def lease(key: bytes, owner: int) -> pb.Compare:
    """Holds if the record has this lease; a missing one has none, 0."""
    return pb.Compare(target=pb.Compare.LEASE, key=key, lease=owner)


def leased(key: bytes) -> pb.Compare:
    """Holds if the record has a lease, whichever."""
    return pb.Compare(result=pb.Compare.NOT_EQUAL, target=pb.Compare.LEASE, key=key, lease=0)


def none_below(scope: Scope, key: str) -> pb.Compare:
    """Holds if there is no key below `key`."""
    # A compare of a range holds when it does for every key in it; no key has create_revision 0.
    start, end = scope.below(key)
    compare = absent(start)
    compare.range_end = end
    return compare


def put(key: bytes, value: bytes, owner: int) -> pb.RequestOp:
    """Write a record with a lease; 0 = with none."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=owner))


def keep(key: bytes, value: bytes) -> pb.RequestOp:
    """A put that leaves the record with the lease it has; etcd refuses it if there is none."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, ignore_lease=True))


def stat(key: bytes) -> pb.RequestOp:
    """Read a record without its value."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=True))


def nested(
    compares: list[pb.Compare],
    then: list[pb.RequestOp],
    otherwise: list[pb.RequestOp] | None = None,
) -> pb.RequestOp:
    """A Txn as an operation of another."""
    return pb.RequestOp(
        request_txn=pb.TxnRequest(compare=compares, success=then, failure=otherwise)
    )


def conjunction(
    scope: Scope, compares: list[pb.Compare], writes: list[pb.RequestOp]
) -> list[pb.RequestOp]:
    """Txns that together write if all compares hold; else etcd refuses the Txn that they are in.

    A Txn holds only so many compares, and one nested in it cannot undo what stands beside it. But
    etcd carries nothing out of a Txn in which any operation that is due cannot be: so every group
    whose compares do not hold asks for a revision of the future (`CompactedError`), of a key of the
    scope: a user may have no right to any other.
    """
    key, _ = scope.below(ROOT)
    refusal = pb.RequestOp(request_range=pb.RangeRequest(key=key, revision=2**63 - 1))
    longest = max(len(compares), len(writes))
    if longest > _GROUP_OPERATIONS * _GROUPS_MAX:
        raise BadRequestError("a transaction touches too many keys and ancestors of keys")
    return [
        nested(
            compares[start : start + _GROUP_OPERATIONS],
            writes[start : start + _GROUP_OPERATIONS],
            [refusal],
        )
        for start in range(0, longest, _GROUP_OPERATIONS)
    ]


def grouped(scope: Scope, operations: list[pb.RequestOp]) -> list[pb.RequestOp]:
    """The same as Txns, of which etcd takes more."""
    return conjunction(scope, [], operations)


def ungrouped(responses: Iterable[Any]) -> Iterator[Any]:
    """The responses to operations that went through `grouped` or `conjunction`."""
    for group in responses:
        yield from group.response_txn.responses
