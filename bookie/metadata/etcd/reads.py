"""Reads of a Txn whose conditions do not hold: the state before it, for `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bookie.metadata.etcd import messages
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.messages import Part
from bookie.metadata.evaluate import NO_OWNER, Stored


class ConditionReads:
    """The state at the revision of a Txn, as far as its operations depend on it."""

    def __init__(self) -> None:
        self._requests: list[Part] = []
        self._records: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._responses: list[Any] = []

    def want_record(self, scope: KeyLayout, key: str) -> None:
        """Read the record of `key`, once, without its value."""
        if key not in self._records:
            self._records[key] = len(self._requests)
            self._requests.append(messages.stat(scope.key(key)))

    def want_below(self, scope: KeyLayout, key: str) -> None:
        """Read whether anything lies below `key`."""
        self._below[key] = len(self._requests)
        self._requests.append(messages.any_below(scope, key))

    def want_value(self, key: bytes) -> int:
        """Read etcd's own `key` with its value; its index for `value`."""
        self._requests.append(messages.read(key))
        return len(self._requests) - 1

    def operations(self) -> list[Part]:
        """All that is wanted, in order."""
        return self._requests

    def take(self, responses: Iterable[Any]) -> None:
        """Take the responses to them, in order."""
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
