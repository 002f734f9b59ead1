"""Count the bytes of each connection that have reached the handlers of its calls.

All other received bytes are in gRPC's memory: incomplete messages, and messages that no handler has
read yet. gRPC bounds this memory only for each stream, and does not report its size. The daemon
computes the size: the bytes that the kernel has received, minus the bytes that this module counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final
from urllib.parse import unquote

MESSAGE_BYTES: Final = 128
"""Estimated overhead of a message: frame headers, TLS record headers, window updates."""

CALL_BYTES: Final = 512
"""Estimated bytes of a call without metadata and messages: path, frame headers, end of stream."""

PARTS: Final = 64
"""A large message needs one byte of frame and TLS record headers per this number of bytes."""


HELD_BACK_BYTES: Final = 12 * 1024 * 1024
"""The most unread bytes of a stream that the bookie does not read: a flow-control window and a
message."""

HELD_BACK_MAX: Final = 2
"""The most streams of a connection for which `HELD_BACK_BYTES` are allowed. Our client has one or
two such streams."""


class Arrived:
    """The number of bytes that have reached the handlers of one connection's calls."""

    __slots__ = ("busy", "taken")

    def __init__(self) -> None:
        self.taken = 0
        """Bytes of messages, plus an upper estimate of the protocol's other bytes."""
        self.busy: set[object] = set()
        """Streams whose handlers are busy with a message, and so read no further message."""

    @property
    def allowance(self) -> int:
        """Bytes that may wait unread in gRPC because streams of the connection are busy."""
        return HELD_BACK_BYTES * min(len(self.busy), HELD_BACK_MAX)

    def message(self, size: int) -> None:
        self.taken += size + size // PARTS + MESSAGE_BYTES

    def call(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self.taken += CALL_BYTES + sum(len(key) + len(value) for key, value in metadata)


class Arrivals:
    """The counts of all connections."""

    def __init__(self) -> None:
        self._connections: dict[str, Arrived] = {}
        self._old: set[str] = set()
        """Connections that existed at the last call of `keep`."""

    def of(self, peer: str) -> Arrived:
        """Return the count of a connection; `peer` is gRPC's name of the client's address."""
        found = self._connections.get(peer)
        if found is None:
            # gRPC quotes the brackets around an IPv6 address.
            found = self._connections.setdefault(unquote(peer), Arrived())
            if "%" in peer:
                self._connections[peer] = found
        return found

    def keep(self, peers: AbstractSet[str]) -> None:
        """Forget every connection that is not in `peers` and existed at the last call of `keep`.

        A newer connection may be missing in `peers`, because it began while the caller listed the
        connections.
        """
        for peer in self._old:
            if unquote(peer) not in peers:
                del self._connections[peer]
        self._old = set(self._connections)
