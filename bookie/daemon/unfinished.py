"""Bounds the memory that gRPC holds for messages which no handler has taken yet.

The fault: a peer opens 128 calls on one connection, and sends each time a message of 8 MB, except
for its last byte. gRPC keeps 1 GB, and no handler hears of it. A second connection costs another
gigabyte. gRPC for Python has no bound for the process: it has resource quotas in C++ alone.

So this module looks ten times a second how many bytes each connection has received, by the count
of the kernel. It subtracts what handlers have taken (`Arrivals`). Beyond a bound for all
connections together, it ends the largest connections of the address that holds most. What peers
send between two looks exceeds the bound. A writer that the bookie holds back fills a window with
bytes, and more in a stall of a device. So such a stream has an allowance (`Arrived.allowance`).

What is counted here is an estimate. A peer whose calls reach handlers can hide some bytes, at most
as many as `Arrivals` allows to each call for its metadata. Calls that reach no handler of the
bookie count as unfinished until their connection ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.daemon.connections import LOG_SECONDS, AcceptedConnection, OwnSockets
from bookie.telemetry import Metrics, event_log
from bookie.wire.grpc.server.arrivals import Arrivals

LOOK_SECONDS: Final = 0.1
"""The time between two looks."""

SOON_SECONDS: Final = 0.025
"""The time until the next look while much is unfinished."""

CONNECTION_SECONDS: Final = 0.00025
"""More connections make looks rarer: a look takes 5 µs for each, so looks take 2% of a core."""

LARGE_BYTES: Final = 16 * 1024 * 1024
"""More than a connection of a client that keeps the rules holds: windows of its streams, and the
beginning of a message."""

DRIFT_BYTES_PER_SECOND: Final = 1024
"""More than pings and their like receive without any call; the count forgets as much."""

REASON: Final = "unfinished"
"""The label of the metric `connections_ended_total`."""

_log = event_log(__name__)


@dataclass(slots=True)
class Unfinished:
    """A connection as the last look found it."""

    connection: AcceptedConnection
    received: int = 0
    """Bytes that it had received."""
    taken: int = 0
    """Bytes of them that handlers had taken, as `Arrivals` counts."""
    held: int = 0
    """Bytes that no handler had taken."""


def surplus(held: Mapping[str, int], bytes_max: int) -> list[str]:
    """Choose the connections that must end, so that the others hold at most `bytes_max`.

    Beyond a half of it, connections end that hold more than `LARGE_BYTES`. The address that holds
    most loses its largest connection, again and again.

    Args:
        held: what each connection holds, by gRPC's name of its peer.
        bytes_max: the most bytes of all connections together.
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
    """Choose connections that hold `excess` bytes together, or all of them."""
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
    """What each connection holds, from look to look.

    Args:
        sockets: the connections.
        arrivals: what handlers have taken.
        drift: what the count of a connection forgets, in bytes a second.
    """

    def __init__(
        self, sockets: OwnSockets, arrivals: Arrivals, drift: float = DRIFT_BYTES_PER_SECOND
    ) -> None:
        self._drift = drift
        self._sockets = sockets
        self._arrivals = arrivals
        self.connections: dict[str, Unfinished] = {}
        """The connections of the last look, by gRPC's name of their peers."""
        self._looked_at = asyncio.get_running_loop().time()

    async def look(self) -> dict[str, int]:
        """Return what each connection holds now, beyond its allowance for streams held back.

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
                # An earlier connection may have had the same peer.
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
        """End connections; return those that had not ended already."""
        ended = [peer for peer in peers if self._sockets.end(self.connections[peer].connection)]
        for peer in ended:
            del self.connections[peer]
        return ended


async def bound_unfinished(
    sockets: OwnSockets, arrivals: Arrivals, bytes_max: Callable[[], int], metrics: Metrics
) -> None:
    """End the largest connections until cancelled; return if sockets cannot be listed here.

    Args:
        sockets: the connections.
        arrivals: what handlers have taken.
        bytes_max: returns the most bytes that no handler has taken, of all connections together.
        metrics: where the bytes and the ended connections are counted.
    """
    count = UnfinishedCount(sockets, arrivals)
    loop = asyncio.get_running_loop()
    next_line = loop.time()
    while True:
        try:
            held = await count.look()
        except FileNotFoundError:
            return  # who bounds connections has said so
        except OSError:  # no descriptor is left for the listing; the next look may have one
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
