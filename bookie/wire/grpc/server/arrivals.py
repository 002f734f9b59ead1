"""How much of what arrived on each connection has reached the handlers of calls.

The rest is in gRPC's memory: messages that are incomplete, and messages that no handler has read
yet. gRPC bounds it by stream alone, and tells nobody how much it is. The daemon gets it from the
count of the kernel, less what is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final
from urllib.parse import unquote

MESSAGE_BYTES: Final = 128
"""Bytes of a message besides its own: heads of frames and of TLS records, updates of windows."""

CALL_BYTES: Final = 512
"""Bytes of a call besides metadata and messages: its path, heads of frames, its end."""

PARTS: Final = 64
"""Of a large message one in so many bytes more is heads of frames and of TLS records."""


HELD_BACK_BYTES: Final = 12 * 1024 * 1024
"""What a stream may leave unread while the bookie holds it back: a window and a message."""

HELD_BACK_MAX: Final = 2
"""The most streams of a connection that count as held back. Our client has one or two."""


class Arrived:
    """What has reached the handlers of one connection's calls."""

    __slots__ = ("busy", "taken")

    def __init__(self) -> None:
        self.taken = 0
        """Bytes of messages, and at least the other bytes that came with them."""
        self.busy: set[object] = set()
        """Streams that have a message in work, and so read no further one."""

    @property
    def allowance(self) -> int:
        """The bytes that the connection may hold because the bookie reads nothing from it."""
        return HELD_BACK_BYTES * min(len(self.busy), HELD_BACK_MAX)

    def message(self, size: int) -> None:
        """Count a message."""
        self.taken += size + size // PARTS + MESSAGE_BYTES

    def call(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Count the beginning of a call."""
        self.taken += CALL_BYTES + sum(len(key) + len(value) for key, value in metadata)


class Arrivals:
    """What has reached handlers, by connection."""

    def __init__(self) -> None:
        self._connections: dict[str, Arrived] = {}
        self._old: set[str] = set()
        """Connections that were there at the last `keep`."""

    def of(self, peer: str) -> Arrived:
        """Return the count of a connection, named as gRPC names its peer."""
        found = self._connections.get(peer)
        if found is None:
            # gRPC quotes the brackets around an IPv6 address.
            found = self._connections.setdefault(unquote(peer), Arrived())
            if "%" in peer:
                self._connections[peer] = found
        return found

    def keep(self, peers: AbstractSet[str]) -> None:
        """Forget all connections but these, and but those that are new since the last call.

        A connection may begin while a look at all connections is under way, and be missing in it.
        """
        for peer in self._old:
            if unquote(peer) not in peers:
                del self._connections[peer]
        self._old = set(self._connections)
