"""The parts of an etcd transaction (Txn): compares, writes and reads.

Each part is a dictionary, from which the constructor of a protobuf message makes the message. The
parts are not messages themselves, because a message is copied when it is put into another one. So
nested Txns would be copied once per level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from bookie._pb import etcd_pb2 as pb
from bookie.errors import BadRequestError
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.evaluate import NO_OWNER, Stored
from bookie.metadata.model import ROOT

Part: TypeAlias = dict[str, Any]
"""A compare or an operation of a Txn."""

OPERATIONS_MAX = 100
"""The most compares, writes or reads in a flat Txn; etcd's default is 128 per nesting path."""

_GROUP_OPERATIONS = 50
_GROUPS_MAX = 70

# These constants are plain numbers: a lookup in protobuf's enumeration would double the time to
# make a compare.
_CREATE: Final = int(pb.Compare.CREATE)
_MOD: Final = int(pb.Compare.MOD)
_LEASE: Final = int(pb.Compare.LEASE)
_GREATER: Final = int(pb.Compare.GREATER)
_NOT_EQUAL: Final = int(pb.Compare.NOT_EQUAL)


def mod(key: bytes, revision: int) -> Part:
    """Return a compare that holds if `revision` wrote the record last; 0 requires no record."""
    return {"target": _MOD, "key": key, "mod_revision": revision}


def version(key: bytes, expected: int) -> Part:
    """Return a compare that holds if the record exists with the version `expected`."""
    return mod(key, expected or -1)


def absent(key: bytes) -> Part:
    """Return a compare that holds if there is no record of `key`."""
    return {"target": _CREATE, "key": key, "create_revision": 0}


def present(key: bytes) -> Part:
    """Return a compare that holds if there is a record of `key`."""
    return {"result": _GREATER, "target": _CREATE, "key": key, "create_revision": 0}


def lease(key: bytes, owner: int) -> Part:
    """Return a compare that holds if a record's lease is `owner`.

    A missing record has the lease 0.
    """
    return {"target": _LEASE, "key": key, "lease": owner}


def leased(key: bytes) -> Part:
    """Return a compare that holds if the record has any lease."""
    return {"result": _NOT_EQUAL, "target": _LEASE, "key": key, "lease": 0}


def none_below(scope: KeyLayout, key: str) -> Part:
    """Return a compare that holds if there is no key below `key`."""
    # A compare of a range holds if the compare holds for each key in the range. No existing key has
    # the create_revision 0.
    start, end = scope.below(key)
    return {**absent(start), "range_end": end}


def put(key: bytes, value: bytes, owner: int) -> Part:
    """Return an operation that writes a record with the lease `owner`; 0 means no lease."""
    return {"request_put": {"key": key, "value": value, "lease": owner}}


def keep(key: bytes, value: bytes) -> Part:
    """Return a write that keeps the record's lease; etcd refuses to write a missing record."""
    return {"request_put": {"key": key, "value": value, "ignore_lease": True}}


def delete(key: bytes) -> Part:
    """Return an operation that deletes a record, if the record exists."""
    return {"request_delete_range": {"key": key}}


def read(key: bytes) -> Part:
    """Return an operation that reads a record."""
    return {"request_range": {"key": key}}


def stat(key: bytes, *, revision: int = 0) -> Part:
    """Return a read of a record without its value at `revision`; 0 means the newest revision."""
    return {"request_range": {"key": key, "keys_only": True, "revision": revision}}


def any_below(scope: KeyLayout, key: str) -> Part:
    """Return an operation that reads any one key below `key`."""
    start, end = scope.below(key)
    return {"request_range": {"key": start, "range_end": end, "limit": 1, "keys_only": True}}


def nested(compares: list[Part], then: list[Part], otherwise: list[Part] | None = None) -> Part:
    """Return a Txn as an operation of another Txn."""
    return {"request_txn": {"compare": compares, "success": then, "failure": otherwise or []}}


def conjunction(scope: KeyLayout, compares: list[Part], writes: list[Part]) -> list[Part]:
    """Return nested Txns that write if all compares hold; if one does not, the outer Txn fails.

    Many compares need several nested Txns, because etcd limits the compares of each. But when the
    compares of one nested Txn do not hold, etcd still carries out the others. Only an operation
    that fails makes etcd carry out nothing. So a nested Txn whose compares do not hold reads a
    future revision, which fails (`CompactedError`). This read names a key of the scope, because a
    user may lack the right to read other keys.
    """
    key, _ = scope.below(ROOT)
    refusal = {"request_range": {"key": key, "revision": 2**63 - 1}}
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


def grouped(scope: KeyLayout, operations: list[Part]) -> list[Part]:
    """Put the operations into nested Txns, because etcd limits the operations of each Txn."""
    return conjunction(scope, [], operations)


def ungrouped(responses: Iterable[Any]) -> Iterator[Any]:
    """Yield the responses to the operations that `grouped` or `conjunction` has nested."""
    for group in responses:
        yield from group.response_txn.responses


class ConditionReads:
    """The reads that a Txn does if its conditions fail; the results are a `Tree` for `evaluate`."""

    def __init__(self) -> None:
        self._requests: list[Part] = []
        self._records: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._responses: list[Any] = []

    def want_record(self, scope: KeyLayout, key: str) -> None:
        """Add a read of the record of `key` without its value, unless it was added before."""
        if key not in self._records:
            self._records[key] = len(self._requests)
            self._requests.append(stat(scope.key(key)))

    def want_below(self, scope: KeyLayout, key: str) -> None:
        """Add a read that shows if any key lies below `key`."""
        self._below[key] = len(self._requests)
        self._requests.append(any_below(scope, key))

    def want_value(self, key: bytes) -> int:
        """Add a read of the etcd key `key` and its value; return the index for `value`."""
        self._requests.append(read(key))
        return len(self._requests) - 1

    def operations(self) -> list[Part]:
        return self._requests

    def take(self, responses: Iterable[Any]) -> None:
        self._responses = [response.response_range for response in responses]

    def value(self, index: int) -> Any:
        """Return the entry that the read number `index` found, or None."""
        kvs = self._responses[index].kvs
        return kvs[0] if kvs else None

    # The next methods implement the `Tree` from which `evaluate` reads.

    def find(self, key: str) -> Stored | None:
        """Return the record of `key`, or None; `want_record` must have added the read."""
        kv = self.value(self._records[key])
        return Stored(kv.mod_revision, owner(kv.lease)) if kv is not None else None

    def has_children(self, key: str) -> bool:
        return bool(self._responses[self._below[key]].kvs)


def owner(lease: int) -> bytes:
    """Return the owner of a record with this lease, in the form that `evaluate` takes."""
    return lease.to_bytes(8, "big", signed=True) if lease else NO_OWNER
