"""The store's keys in etcd: below a scope, and never beside it.

The key ``/a/b`` of the scope ``/bk`` is etcd's key ``/bk/a/b``. Ranges end before ``0``, the byte
after the slash, so ``/bk-2`` is never touched. The store's own keys begin with ``/bk/`` and a NUL.
Keys of users contain no NUL, so the own keys come first. Listings and watches start behind them.

Another program can write any bytes into the scope. A key that can name no record is foreign: the
first is logged, and listings and watches skip all of them.
"""

from __future__ import annotations

from bookie.errors import InvalidKeyError
from bookie.metadata.model import ROOT, check_key
from bookie.telemetry import event_log

_log = event_log(__name__)


class KeyLayout:
    """The keys of one store. `name` starts with a slash and ends without."""

    def __init__(self, name: str) -> None:
        self._prefix = name.encode()
        self._has_warned = False

    def __str__(self) -> str:
        return self._prefix.decode()

    def key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def name(self, key: bytes) -> str | None:
        """The key of the record that etcd keeps under `key`; None if `key` is foreign."""
        try:
            return check_key(key[len(self._prefix) :].decode())
        except (UnicodeDecodeError, InvalidKeyError) as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("foreign_keys_skipped", first=repr(key), reason=str(error))
            return None

    def below(self, key: str) -> tuple[bytes, bytes]:
        """The range of all keys below `key`, which may be the root: first, and first behind."""
        if key == ROOT:
            return self._prefix + b"/\x01", self._prefix + b"0"
        base = self.key(key)
        return base + b"/", base + b"0"

    def watched(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of `prefix` and all below it. Siblings such as ``/a-b`` lie in it, too."""
        return self.below(ROOT) if prefix == ROOT else (self.key(prefix), self.below(prefix)[1])

    def children(self, key: str) -> bytes:
        """Prefix of the keys below `key`."""
        return self._prefix + b"/" if key == ROOT else self.key(key) + b"/"

    def receipt(self, lease: int, number: int) -> bytes:
        return self._prefix + b"/\0receipts/%016x/%d" % (lease, number)

    def sequence(self, key: str) -> bytes:
        return self._prefix + b"/\0sequences" + key.encode()
