"""Bounds the memory that gRPC holds for messages that no handler has read yet.

The danger: a peer opens 128 calls on one connection. In each call, the peer sends 8 MB of a
message, but never the message's last byte. The gRPC library keeps this 1 GB in memory, and no
handler sees the bytes. Each further connection costs another gigabyte. The gRPC library for Python
cannot limit the memory of the process: only gRPC for C++ has resource quotas.

So this module asks the kernel about ten times a second how many bytes each connection has received.
The module subtracts the bytes that handlers have read (`Arrivals`): the rest is *unfinished*. If
the unfinished bytes of all connections exceed a bound, the module ends connections. The address
with the most unfinished bytes loses its largest connection first. The total may exceed the bound by
the bytes that arrive between two measurements. If the bookie stops reading a writer's stream for a
while, gRPC's memory holds one flow-control window of the stream's bytes. So the module subtracts an
allowance for each stream that the bookie does not read (`Arrived.allowance`).

The number of unfinished bytes is an estimate. `Arrivals` counts extra bytes for the metadata of
each call, so a peer can hide the same number of unfinished bytes. The bytes of a call that reaches
no handler of the bookie count as unfinished until the connection ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.daemon.connections import LOG_SECONDS, AcceptedConnection, OwnSockets
from bookie.telemetry import Metrics, event_log
from bookie.wire.server.arrivals import Arrivals

LOOK_SECONDS: Final = 0.1
"""The time between two measurements of the unfinished bytes."""

SOON_SECONDS: Final = 0.025
"""The time until the next measurement while the unfinished bytes exceed an eighth of the bound."""

CONNECTION_SECONDS: Final = 0.00025
"""The shortest pause between two measurements is this time multiplied by the number of connections.
A measurement takes 5 µs for each connection, so measurements take at most 2% of a core."""

LARGE_BYTES: Final = 16 * 1024 * 1024
"""A number of unfinished bytes on one connection that no well-behaved client exceeds. A
well-behaved client fills at most the flow-control windows of its streams, and sends the beginning
of a message."""

DRIFT_BYTES_PER_SECOND: Final = 1024
"""The rate at which the count of unfinished bytes of each connection falls, in bytes per second. A
connection without calls receives fewer bytes per second than this rate, for example pings."""

REASON: Final = "unfinished"
"""The reason, as a label value of the metric `connections_ended_total`."""

_log = event_log(__name__)


@dataclass(slots=True)
class Unfinished:
    """The byte counts of a connection at the last measurement."""

    connection: AcceptedConnection
    received: int = 0
    """Bytes that the connection had received."""
    taken: int = 0
    """Received bytes that handlers had read, as `Arrivals` counts them."""
    held: int = 0
    """Received bytes that no handler had read."""


def surplus(held: Mapping[str, int], bytes_max: int) -> list[str]:
    """Choose connections to end, so that all other connections hold at most `bytes_max` together.

    If the total is above half of `bytes_max`, the function first chooses connections with more than
    `LARGE_BYTES`, until the total is at most this half. At each step, the address with the most
    bytes loses its largest connection.

    Args:
        held: the unfinished bytes of each connection, by gRPC's name of the connection's peer.
        bytes_max: the most unfinished bytes of all connections together.
    """
    total = sum(held.values())
    if total <= bytes_max // 2:
        return []
    large = {peer: size for peer, size in held.items() if size > LARGE_BYTES}
    ended = _largest(large, total - bytes_max // 2)
    total -= sum(large[peer] for peer in ended)
    others = {peer: size for peer, size in held.items() if peer not in ended}
    return ended + _largest(others, total - bytes_max)


def _largest(held: Mapping[str, int], excess: int) -> list[str]:
    """Choose connections that hold at least `excess` bytes together; if none do, choose all."""
    addresses: Counter[str] = Counter()
    largest: dict[str, list[str]] = {}
    for peer in sorted(held, key=held.__getitem__):
        address = peer.rpartition(":")[0]
        addresses[address] += held[peer]
        largest.setdefault(address, []).append(peer)
    chosen: list[str] = []
    while excess > 0 and len(chosen) < len(held):
        address = max(addresses, key=addresses.__getitem__)
        peer = largest[address].pop()
        addresses[address] -= held[peer]
        excess -= held[peer]
        chosen.append(peer)
    return chosen


class UnfinishedCount:
    """Measures repeatedly how many unfinished bytes each connection holds.

    Args:
        sockets: the sockets of this process.
        arrivals: counts the bytes that handlers have read.
        drift: the rate at which the count of unfinished bytes of each connection falls, in bytes
            per second.
    """

    def __init__(
        self, sockets: OwnSockets, arrivals: Arrivals, drift: float = DRIFT_BYTES_PER_SECOND
    ) -> None:
        self._drift = drift
        self._sockets = sockets
        self._arrivals = arrivals
        self.connections: dict[str, Unfinished] = {}
        """The connections of the last measurement, by gRPC's name of their peers."""
        self._looked_at = asyncio.get_running_loop().time()

    async def look(self) -> dict[str, int]:
        """Measure and return each connection's unfinished bytes minus its streams' allowance.

        Raises:
            OSError: the descriptors cannot be listed.
        """
        found: dict[str, Unfinished] = {}
        held: dict[str, int] = {}
        now = asyncio.get_running_loop().time()
        drift = int(self._drift * (now - self._looked_at))
        self._looked_at = now
        for one in await self._sockets.look():
            received = self._sockets.received(one)
            if received is None:
                continue
            known = self.connections.get(one.peer)
            if known is None or known.connection != one:
                # An earlier connection may have come from the same address and port.
                known = Unfinished(one, taken=0 if known is None else known.taken)
            arrived = self._arrivals.of(one.peer)
            taken = arrived.taken
            more = received - known.received - taken + known.taken
            known.held = max(0, known.held + more - drift)
            known.received, known.taken = received, taken
            found[one.peer] = known
            held[one.peer] = max(0, known.held - arrived.allowance)
        self.connections = found
        self._arrivals.keep(found.keys())
        return held

    def end(self, peers: Iterable[str]) -> list[str]:
        """End the connections of `peers`; return the peers whose connections were still open."""
        ended = [peer for peer in peers if self._sockets.end(self.connections[peer].connection)]
        for peer in ended:
            del self.connections[peer]
        return ended


async def bound_unfinished(
    sockets: OwnSockets, arrivals: Arrivals, bytes_max: Callable[[], int], metrics: Metrics
) -> None:
    """Bound the unfinished bytes by ending connections, until cancelled.

    If this system cannot list descriptors, the function returns at once.

    Args:
        sockets: the sockets of this process.
        arrivals: counts the bytes that handlers have read.
        bytes_max: returns the most unfinished bytes of all connections together.
        metrics: shows the unfinished bytes, and counts the ended connections.
    """
    count = UnfinishedCount(sockets, arrivals)
    loop = asyncio.get_running_loop()
    next_line = loop.time()
    while True:
        try:
            held = await count.look()
        except FileNotFoundError:
            return  # `bound_connections` has logged this
        except OSError:  # a listing needs a free descriptor, which may exist at the next listing
            await asyncio.sleep(LOOK_SECONDS)
            continue
        total = sum(held.values())
        metrics.unfinished_bytes.set(total)
        ended = count.end(surplus(held, bytes_max()))
        metrics.connections_ended_total.labels(REASON).inc(len(ended))
        if ended and loop.time() >= next_line:
            _log.warning(
                "connections_ended",
                reason=REASON,
                ended=len(ended),
                largest=ended[0],
                bytes=held[ended[0]],
                unfinished_bytes=total,
            )
            next_line = loop.time() + LOG_SECONDS
        pause = SOON_SECONDS if total > bytes_max() // 8 else LOOK_SECONDS
        await asyncio.sleep(max(pause, CONNECTION_SECONDS * len(held)))
