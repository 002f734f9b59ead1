"""Bounds the connections to the gRPC ports of a bookie, by address and in all.

The fault: one host with a leak of connections, or a hostile host, opens thousands of them. gRPC
bounds a port as a whole. Under that bound alone, the host would take the place of all clients, and
a repairing bookie or an operator could not connect. gRPC cannot count by address. So this module
looks at the sockets of its own process, about once a second, and shuts down the surplus.

The newest connections end first, so a client that works keeps its connections. A peer may exceed
the bounds by what it opens between two looks; gRPC's own bound holds at every moment. Slow and
silent peers are not the subject: gRPC ends them by the timeouts of ``[rpc]``.

It also keeps what waits in the kernel short. On a slow link, megabytes of answers would wait there,
and a ping of gRPC behind them. Its answer would come too late, and gRPC would end the connection of
a client that reads all the time.

A look costs about 3 µs for each open descriptor, in slices.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from bookie.config import NodeSettings
from bookie.daemon.bookie_addresses import BookieAddresses, addresses_of
from bookie.daemon.descriptors import connections_allowed
from bookie.daemon.http_listener import HTTP_BOUNDS, ListenerBounds
from bookie.env.own_sockets import peer_name, plain_address, shut_down, socket_inode
from bookie.telemetry import Metrics, event_log

LOOK_SECONDS: Final = 1.0
"""The time between two looks."""

SOON_SECONDS: Final = 0.25
"""The time until the next look while connections are being ended."""

LOG_SECONDS: Final = 60.0
"""The shortest time between two log lines about ended connections."""

SLICE: Final = 256
"""Descriptors that are looked at before other tasks of the event loop get their turn."""

UNSENT_BYTES: Final = 256 * 1024
"""The most bytes of a connection that wait in the kernel and are not yet under way. A link of
32 KB/s takes them within 8 s, which is less than the default of `rpc.keepalive_timeout_seconds`."""

_OPEN = Path("/proc/self/fd")
_RECEIVED: Final = slice(128, 136)
"""Where ``tcpi_bytes_received`` is in ``struct tcp_info``. Source: linux/tcp.h, since Linux 4.1."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """A connection that a peer opened to one of our ports."""

    descriptor: int
    inode: int
    """The number of the socket; the descriptor may belong to another socket later."""
    address: str
    """The peer's IP address; an IPv4 address is never written as IPv6."""
    is_local: bool
    """True if the peer is a process of this machine."""
    look: int
    """The number of the look that found it first."""
    peer: str
    """gRPC's name of the peer, with its port."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The most connections at a time."""

    in_all: int
    per_address: int
    reserved: int
    """The part of `in_all` that is free for this machine and for bookies alone."""


def bounds_of(settings: NodeSettings, allowed: int) -> ConnectionBounds:
    """Return the bounds by the settings, with at most `allowed` connections in all.

    If fewer than `connections_max` are allowed, the reserve shrinks in proportion.
    """
    in_all = min(settings.connections_max, allowed)
    reserved = settings.connections_reserved * in_all // settings.connections_max
    return ConnectionBounds(in_all, settings.connections_per_address_max, reserved)


def surplus(
    connections: Sequence[AcceptedConnection],
    bounds: ConnectionBounds,
    is_bookie: Callable[[str], bool],
) -> dict[AcceptedConnection, str]:
    """Choose the connections that must end; return each with the reason, a label of the metric.

    First, each address keeps its oldest connections up to its bound. Then the newest connections
    from elsewhere than this machine and bookies end, until the reserve is free. Of connections that
    one look found, those of the address with the most connections end first.

    Args:
        connections: all connections, in the order in which looks found them.
        bounds: the most connections at a time.
        is_bookie: tells if an address belongs to a registered bookie.
    """
    ended: dict[AcceptedConnection, str] = {}
    if len(connections) <= min(bounds.per_address, bounds.in_all - bounds.reserved):
        return ended
    counts: Counter[str] = Counter()
    kept: list[tuple[bool, int, int, AcceptedConnection]] = []
    for one in connections:
        rank = counts[one.address] = counts[one.address] + 1
        if rank > bounds.per_address:
            ended[one] = "address"
        else:
            is_other = not (one.is_local or is_bookie(one.address))
            kept.append((is_other, one.look, rank, one))
    others = sum(is_other for is_other, *_ in kept)
    excess = max(others - (bounds.in_all - bounds.reserved), len(kept) - bounds.in_all)
    if excess > 0:
        kept.sort(key=lambda each: each[:3], reverse=True)
        ended.update((one, "total") for *_, one in kept[:excess])
    return ended


class OwnSockets:
    """The connections that this process has accepted on some ports.

    Args:
        ports: the ports.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._known: dict[tuple[int, int], AcceptedConnection | None] = {}
        """Every socket of the process by descriptor and inode; None if it is no connection to a
        port, or was ended."""
        self._looks = 0

    async def look(self) -> list[AcceptedConnection]:
        """Return the connections of this moment, in the order in which looks found them.

        Other tasks run in between. So a connection that ends meanwhile may be among them.

        Raises:
            OSError: the descriptors cannot be listed.
        """
        self._looks += 1
        found: dict[tuple[int, int], AcceptedConnection | None] = {}
        for count, name in enumerate(os.listdir(_OPEN), start=1):
            if count % SLICE == 0:
                await asyncio.sleep(0)
            descriptor = int(name)
            inode = socket_inode(descriptor)
            if inode is not None:
                key = descriptor, inode
                found[key] = self._known[key] if key in self._known else self._examine(*key)
        self._known = found
        return sorted((one for one in found.values() if one), key=attrgetter("look"))

    def end(self, connection: AcceptedConnection) -> bool:
        """Shut the connection down; return False if it has ended already.

        Later looks leave it out. gRPC sees that its peer is gone, and closes the descriptor itself.
        """
        if not shut_down(connection.descriptor, connection.inode):
            return False
        self._known[connection.descriptor, connection.inode] = None
        return True

    def _examine(self, descriptor: int, inode: int) -> AcceptedConnection | None:
        try:
            theirs = socket.socket(fileno=descriptor)
        except OSError:
            return None
        try:
            if theirs.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            own, port = theirs.getsockname()[:2]
            if port not in self._ports:
                return None
            # A listening socket has no peer, and raises an error.
            address, peer_port = theirs.getpeername()[:2]
            peer = plain_address(address)
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        except OSError:
            return None
        finally:
            theirs.detach()  # the descriptor stays open, and gRPC's
        is_local = peer == plain_address(own) or ipaddress.ip_address(peer).is_loopback
        name = peer_name(peer, peer_port)
        return AcceptedConnection(descriptor, inode, peer, is_local, self._looks, name)

    def received(self, connection: AcceptedConnection) -> int | None:
        """Return how many bytes the connection has received so far; None if it has ended."""
        if socket_inode(connection.descriptor) != connection.inode:
            return None
        try:
            theirs = socket.socket(fileno=connection.descriptor)
        except OSError:
            return None
        try:
            info = theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.stop)
        except OSError:
            return None
        finally:
            theirs.detach()  # the descriptor stays open, and gRPC's
        return int.from_bytes(info[_RECEIVED], sys.byteorder)


class Doorkeeper:
    """Bounds the connections of one bookie: to its gRPC ports by looks, to HTTP by a number.

    Args:
        settings: returns the section ``[limits]`` of this moment.
        descriptors: the limit of open files in force.
        metrics: where connections and ended connections are counted.
    """

    def __init__(
        self, settings: Callable[[], NodeSettings], descriptors: int, metrics: Metrics
    ) -> None:
        self.bookies = BookieAddresses()
        allowed = connections_allowed(descriptors)
        http = min(HTTP_BOUNDS.in_all, allowed // 4)
        self.http = ListenerBounds(http, min(HTTP_BOUNDS.per_address, http // 2))
        """The most connections of the HTTP server."""
        self._allowed = allowed - http
        self._settings = settings
        self._metrics = metrics
        wanted = settings().connections_max
        if self._allowed < wanted:
            _log.warning(
                "connections_limited",
                allowed=self._allowed,
                connections_max=wanted,
                open_files=descriptors,
                hint="raise the limit of open files (LimitNOFILE= in systemd)",
            )

    def each_max(self, host: str, *, ports: int) -> int:
        """Return gRPC's own bound for each socket that listens, on all addresses of `host`.

        All of them together never use more descriptors than there are.
        """
        try:
            sockets = ports * len(addresses_of(host))
        except OSError:
            sockets = ports  # to listen there will fail, and say why
        return max(1, min(self._settings().connections_max, self._allowed // sockets))

    def works(self, *ports: int) -> list[Coroutine[object, object, None]]:
        """Return tasks that bound the connections to these ports; port 0 is none."""
        return [
            bound_connections(
                OwnSockets([port for port in ports if port]),
                lambda: bounds_of(self._settings(), self._allowed),
                self.bookies.__contains__,
                self._metrics,
            ),
            self.bookies.keep_resolved(),
        ]


async def bound_connections(
    sockets: OwnSockets,
    bounds: Callable[[], ConnectionBounds],
    is_bookie: Callable[[str], bool],
    metrics: Metrics,
) -> None:
    """End surplus connections until cancelled. Return if this system cannot list descriptors.

    Args:
        sockets: the connections.
        bounds: returns the bounds of this moment.
        is_bookie: tells if an address belongs to a registered bookie.
        metrics: where connections and ended connections are counted.
    """
    loop = asyncio.get_running_loop()
    untold: Counter[tuple[str, str]] = Counter()
    next_line = loop.time()
    while True:
        try:
            connections = await sockets.look()
        except FileNotFoundError:
            _log.warning("connections_not_counted", reason=f"this system has no {_OPEN}")
            return
        except OSError:  # no descriptor is left for the listing; the next look may have one
            await asyncio.sleep(SOON_SECONDS)
            continue
        ended = 0
        for one, reason in surplus(connections, bounds(), is_bookie).items():
            if sockets.end(one):
                ended += 1
                untold[one.address, reason] += 1
                metrics.connections_ended_total.labels(reason).inc()
        metrics.connections.set(len(connections) - ended)
        if untold and loop.time() >= next_line:
            (address, reason), most = untold.most_common(1)[0]
            _log.warning(
                "connections_ended",
                ended=untold.total(),
                addresses=len(untold),
                most_from=address,
                most=most,
                reason=reason,
            )
            untold.clear()
            next_line = loop.time() + LOG_SECONDS
        await asyncio.sleep(SOON_SECONDS if ended else LOOK_SECONDS)
