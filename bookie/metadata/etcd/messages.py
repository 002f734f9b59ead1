"""The parts of which Txns are made: compares, writes and reads.

The parts are dictionaries, which the constructors of messages take. A message is copied when it is
put into another one, so a Txn made of messages would be copied once per level.
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
"""Compares, writes or reads in a plain Txn. etcd takes 128 by default, counted along every way into
a Txn of Txns."""

_GROUP_OPERATIONS = 50
_GROUPS_MAX = 70

# As plain numbers: a lookup in the enumeration takes as long as the rest of a compare.
_CREATE: Final = int(pb.Compare.CREATE)
_MOD: Final = int(pb.Compare.MOD)
_LEASE: Final = int(pb.Compare.LEASE)
_GREATER: Final = int(pb.Compare.GREATER)
_NOT_EQUAL: Final = int(pb.Compare.NOT_EQUAL)


def mod(key: bytes, revision: int) -> Part:
    """Holds if the record was written last at `revision`; 0 = if there is none."""
    return {"target": _MOD, "key": key, "mod_revision": revision}


def version(key: bytes, expected: int) -> Part:
    """Holds if there is a record and it has this version."""
    return mod(key, expected or -1)


def absent(key: bytes) -> Part:
    """Holds if there is no record."""
    return {"target": _CREATE, "key": key, "create_revision": 0}


def present(key: bytes) -> Part:
    """Holds if there is a record."""
    return {"result": _GREATER, "target": _CREATE, "key": key, "create_revision": 0}


def lease(key: bytes, owner: int) -> Part:
    """Holds if the record has this lease; a missing one has none, 0."""
    return {"target": _LEASE, "key": key, "lease": owner}


def leased(key: bytes) -> Part:
    """Holds if the record has a lease, whichever."""
    return {"result": _NOT_EQUAL, "target": _LEASE, "key": key, "lease": 0}


def none_below(scope: KeyLayout, key: str) -> Part:
    """Holds if there is no key below `key`."""
    # A compare of a range holds when it does for every key in it; no key has create_revision 0.
    start, end = scope.below(key)
    return {**absent(start), "range_end": end}


def put(key: bytes, value: bytes, owner: int) -> Part:
    """Write a record with a lease; 0 = with none."""
    return {"request_put": {"key": key, "value": value, "lease": owner}}


def keep(key: bytes, value: bytes) -> Part:
    """A put that leaves the record with the lease it has; etcd refuses it if there is none."""
    return {"request_put": {"key": key, "value": value, "ignore_lease": True}}


def delete(key: bytes) -> Part:
    """Delete a record, if there is one."""
    return {"request_delete_range": {"key": key}}


def read(key: bytes) -> Part:
    """Read a record."""
    return {"request_range": {"key": key}}


def stat(key: bytes, *, revision: int = 0) -> Part:
    """Read a record without its value, as it was at `revision`; 0 = as it is."""
    return {"request_range": {"key": key, "keys_only": True, "revision": revision}}


def any_below(scope: KeyLayout, key: str) -> Part:
    """Read any one key below `key`."""
    start, end = scope.below(key)
    return {"request_range": {"key": start, "range_end": end, "limit": 1, "keys_only": True}}


def nested(compares: list[Part], then: list[Part], otherwise: list[Part] | None = None) -> Part:
    """A Txn as an operation of another."""
    return {"request_txn": {"compare": compares, "success": then, "failure": otherwise or []}}


def conjunction(scope: KeyLayout, compares: list[Part], writes: list[Part]) -> list[Part]:
    """Txns that together write if all compares hold; else etcd refuses the Txn that they are in.

    The number of compares in a Txn is limited, and a nested Txn cannot undo the writes beside it.
    But if one operation fails, etcd carries out none of the whole Txn. So a group whose compares do
    not hold reads a revision of the future, which fails (`CompactedError`). It reads a key of the
    scope, because a user may lack the right to other keys.
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
    """The operations in nested Txns, because etcd limits the operations of each."""
    return conjunction(scope, [], operations)


def ungrouped(responses: Iterable[Any]) -> Iterator[Any]:
    """The responses to operations that went through `grouped` or `conjunction`."""
    for group in responses:
        yield from group.response_txn.responses


class ConditionReads:
    """Reads of a Txn whose conditions do not hold: the state before it, for `evaluate`."""

    def __init__(self) -> None:
        self._requests: list[Part] = []
        self._records: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._responses: list[Any] = []

    def want_record(self, scope: KeyLayout, key: str) -> None:
        """Read the record of `key`, once, without its value."""
        if key not in self._records:
            self._records[key] = len(self._requests)
            self._requests.append(stat(scope.key(key)))

    def want_below(self, scope: KeyLayout, key: str) -> None:
        """Read whether anything lies below `key`."""
        self._below[key] = len(self._requests)
        self._requests.append(any_below(scope, key))

    def want_value(self, key: bytes) -> int:
        """Read etcd's own `key` with its value; its index for `value`."""
        self._requests.append(read(key))
        return len(self._requests) - 1

    def operations(self) -> list[Part]:
        return self._requests

    def take(self, responses: Iterable[Any]) -> None:
        self._responses = [response.response_range for response in responses]

    def value(self, index: int) -> Any:
        """The entry that was read at `index`, or None."""
        kvs = self._responses[index].kvs
        return kvs[0] if kvs else None

    # The tree for `evaluate`.

    def find(self, key: str) -> Stored | None:
        """The record of `key`, which `want_record` asked for."""
        kv = self.value(self._records[key])
        return Stored(kv.mod_revision, owner(kv.lease)) if kv is not None else None

    def has_children(self, key: str) -> bool:
        return bool(self._responses[self._below[key]].kvs)


def owner(lease: int) -> bytes:
    """The owner of a record in the form that `evaluate` takes."""
    return lease.to_bytes(8, "big", signed=True) if lease else NO_OWNER
