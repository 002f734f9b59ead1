"""The keys that a store uses in etcd: only keys below its scope.

The key ``/a/b`` of the scope ``/bk`` is etcd's key ``/bk/a/b``. A range of the scope begins with
``/bk/`` and ends before ``/bk0`` (``0`` is the byte after the slash), so ``/bk-2`` is never
touched. The store's internal keys begin with ``/bk/`` and a NUL. Keys of users contain no NUL, so
the internal keys sort first. Listings and watches start after the internal keys.

Another program can write any bytes into the scope. A key in the scope that is not valid as the key
of a record is called foreign. The first foreign key is logged; listings and watches skip all
foreign keys.
"""

from __future__ import annotations

from bookie.errors import InvalidKeyError
from bookie.metadata.model import ROOT, check_key
from bookie.telemetry import event_log

_log = event_log(__name__)


class KeyLayout:
    """The etcd keys of one store. The scope `name` starts with a slash, and ends with no slash."""

    def __init__(self, name: str) -> None:
        self._prefix = name.encode()
        self._has_warned = False

    def __str__(self) -> str:
        return self._prefix.decode()

    def key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def name(self, key: bytes) -> str | None:
        """Return the record key for the etcd key `key`; None if `key` is foreign."""
        try:
            return check_key(key[len(self._prefix) :].decode())
        except (UnicodeDecodeError, InvalidKeyError) as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("foreign_keys_skipped", first=repr(key), reason=str(error))
            return None

    def below(self, key: str) -> tuple[bytes, bytes]:
        """Return the start and the exclusive end of the range of keys below `key` (or the root)."""
        if key == ROOT:
            return self._prefix + b"/\x01", self._prefix + b"0"
        base = self.key(key)
        return base + b"/", base + b"0"

    def watched(self, prefix: str) -> tuple[bytes, bytes]:
        """Return a range that covers `prefix` and all keys below it.

        The range for ``/a`` also covers siblings such as ``/a-b``.
        """
        return self.below(ROOT) if prefix == ROOT else (self.key(prefix), self.below(prefix)[1])

    def children(self, key: str) -> bytes:
        """Return the prefix that all keys below `key` have in etcd."""
        return self._prefix + b"/" if key == ROOT else self.key(key) + b"/"

    def receipt(self, lease: int, number: int) -> bytes:
        return self._prefix + b"/\0receipts/%016x/%d" % (lease, number)

    def sequence(self, key: str) -> bytes:
        return self._prefix + b"/\0sequences" + key.encode()
