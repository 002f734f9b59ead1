"""Where the store's keys lie in etcd: below a scope, and never beside it.

The key ``/a/b`` of the scope ``/bk`` is etcd's key ``/bk/a/b``. Ranges end before ``0``, the byte
after the slash, so ``/bk-2`` is never touched. The store's own keys begin with ``/bk/`` and a NUL,
which no key of a user contains: they come first, and all listings and watches start behind them.
"""

from __future__ import annotations

from bookie.metadata.keys import ROOT


class Scope:
    """The keys of one store. `name` starts with a slash and ends without."""

    def __init__(self, name: str) -> None:
        self._prefix = name.encode()

    def __str__(self) -> str:
        return self._prefix.decode()

    def key(self, key: str) -> bytes:
        """The key in etcd of a record."""
        return self._prefix + key.encode()

    def name(self, key: bytes) -> str:
        """The key of the record that etcd keeps under `key`."""
        return key[len(self._prefix) :].decode()

    def below(self, key: str) -> tuple[bytes, bytes]:
        """The range of all keys below `key`, which may be the root: first, and first behind."""
        if key == ROOT:
            return self._prefix + b"/\x01", self._prefix + b"0"
        base = self.key(key)
        return base + b"/", base + b"0"

    def children(self, key: str) -> bytes:
        """What the keys below `key` begin with."""
        return self._prefix + b"/" if key == ROOT else self.key(key) + b"/"

    def receipt(self, lease: int, number: int) -> bytes:
        """Where a session notes which of its writes happened."""
        return self._prefix + b"/\0receipts/%016x/%d" % (lease, number)

    def sequence(self, key: str) -> bytes:
        """Where the last number of the sequential records `key` stands."""
        return self._prefix + b"/\0sequences" + key.encode()

    def sequences(self) -> tuple[bytes, bytes]:
        """The range of all of these: first, and first behind."""
        return self._prefix + b"/\0sequences/", self._prefix + b"/\0sequences0"

    def number_floor(self) -> bytes:
        """Where the number stands that all sequential records are numbered above."""
        return self._prefix + b"/\0number-floor"
