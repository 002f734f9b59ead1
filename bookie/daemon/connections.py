"""Limits the connections to a bookie's ports for clients, for each peer address and in total.

The danger: one hostile or faulty host opens thousands of connections. The gRPC library limits only
the total number of connections to a port. If only the total were limited, one host could use up all
connections, and a repairing bookie or an operator could not connect. The gRPC library cannot count
connections by address. So this module lists the sockets of its own process about once a second, and
shuts down surplus connections.

This module shuts down the newest connections first, so a working client keeps its connections.
Between two listings of the sockets, a peer can have more connections than this module allows, but
never more than the limit of gRPC. This module does not end connections of slow or silent peers,
because gRPC ends these connections after the timeouts in ``[rpc]``.

This module also limits the unsent bytes of each connection in the kernel (`UNSENT_BYTES`). On a
slow link, a ping of gRPC could otherwise wait in the kernel behind megabytes of answers. The
client's answer to the ping would come too late, and gRPC would end the connection, although the
client reads all the time.

A listing of the sockets takes about 3 µs for each open descriptor. During a listing, other tasks of
the event loop run after every `SLICE` descriptors.
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
"""The time between two listings of the sockets."""

SOON_SECONDS: Final = 0.25
"""The time until the next listing after connections were shut down."""

LOG_SECONDS: Final = 60.0
"""The shortest time between two log lines about connections that were shut down."""

SLICE: Final = 256
"""The number of descriptors that a listing examines before other tasks of the event loop run."""

UNSENT_BYTES: Final = 512 * 1024
"""The largest number of unsent bytes that the kernel holds for one connection. A link of 64 KiB/s
needs 8 s for 512 KiB; these 8 s are less than the default of `rpc.keepalive_timeout_seconds`. If
client and bookie run on one machine, this bound lowers the rate of 64 KB reads by about 7 %."""

_OPEN = Path("/proc/self/fd")
_RECEIVED: Final = slice(128, 136)
"""The position of ``tcpi_bytes_received`` in ``struct tcp_info``, in bytes. Source: linux/tcp.h,
since Linux 4.1."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """A connection that a peer opened to a port of this process."""

    descriptor: int
    inode: int
    """The socket's inode number, because the descriptor may later belong to another socket."""
    address: str
    """The peer's IP address; an IPv4 address is never written as IPv6."""
    is_local: bool
    """True if the peer is a process of this machine."""
    look: int
    """The number of the listing that first found the connection; each listing has a higher number
    than the one before."""
    peer: str
    """The name that gRPC gives to the peer, with the peer's port."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The maximal numbers of connections that are open at the same time."""

    in_all: int
    per_address: int
    reserved: int
    """The number of connections, out of `in_all`, that only bookies and this machine can use."""


def bounds_of(settings: NodeSettings, allowed: int) -> ConnectionBounds:
    """Return the bounds from the settings, with at most `allowed` connections in total.

    If `allowed` is below `connections_max`, `reserved` shrinks in proportion, but not below a
    quarter of the total. One address has at most a quarter, unless the settings name a number.
    """
    in_all = min(settings.connections_max, allowed)
    quarter = max(1, in_all // 4)
    per_address = settings.connections_per_address_max
    if "connections_per_address_max" not in settings.model_fields_set:
        per_address = min(per_address, quarter)
    reserved = settings.connections_reserved
    in_proportion = reserved * in_all // settings.connections_max
    return ConnectionBounds(in_all, per_address, min(reserved, max(in_proportion, quarter)))


def surplus(
    connections: Sequence[AcceptedConnection],
    bounds: ConnectionBounds,
    is_bookie: Callable[[str], bool],
) -> dict[AcceptedConnection, str]:
    """Choose the connections to shut down; return each connection with the reason for the metric.

    First, each address keeps only its oldest connections, up to `per_address`. Then the function
    chooses the newest connections from other machines that are not bookies, until the `reserved`
    connections are free. If the total is still above `in_all`, the function also chooses
    connections of this machine and of bookies. Among connections that were first found by the same
    listing, the address with the most connections loses a connection first.

    Args:
        connections: all connections, the oldest first.
        bounds: the maximal numbers of connections.
        is_bookie: returns True if an address belongs to a registered bookie.
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
        ports: the ports of the connections to list.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._known: dict[tuple[int, int], AcceptedConnection | None] = {}
        """Every socket of the process by descriptor and inode. None means that the socket is not a
        connection to one of the ports, or was shut down."""
        self._looks = 0

    async def look(self) -> list[AcceptedConnection]:
        """List the open connections to the ports, the oldest first.

        Other tasks run during the listing. So the result may contain a connection that ended during
        the listing.

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
        """Shut the connection down; return False if the connection has ended already.

        Later calls of `look` omit the connection. The gRPC library notices the shutdown, and closes
        the descriptor itself.
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
            theirs.detach()  # gRPC owns the descriptor, which must stay open
        is_local = peer == plain_address(own) or ipaddress.ip_address(peer).is_loopback
        name = peer_name(peer, peer_port)
        return AcceptedConnection(descriptor, inode, peer, is_local, self._looks, name)

    def received(self, connection: AcceptedConnection) -> int | None:
        """Return the number of bytes that the connection has received; None if it has ended."""
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
            theirs.detach()  # gRPC owns the descriptor, which must stay open
        return int.from_bytes(info[_RECEIVED], sys.byteorder)


class Doorkeeper:
    """Divides one bookie's open files between gRPC and HTTP, and bounds the numbers of connections.

    Args:
        settings: returns the current section ``[limits]``.
        descriptors: the limit of open files in force.
        metrics: counts open connections, and connections that were shut down.
    """

    def __init__(
        self, settings: Callable[[], NodeSettings], descriptors: int, metrics: Metrics
    ) -> None:
        self.bookies = BookieAddresses()
        allowed = connections_allowed(descriptors)
        http = min(HTTP_BOUNDS.in_all, allowed // 4)
        self.http = ListenerBounds(http, min(HTTP_BOUNDS.per_address, http // 2))
        """The maximal numbers of connections of the HTTP server."""
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
        """Return the most connections that gRPC may accept on each of its listening sockets.

        gRPC has one listening socket for each port and each address of `host`. The connections of
        all these sockets together fit into the limit of open files.
        """
        try:
            sockets = ports * len(addresses_of(host))
        except OSError:
            sockets = ports  # gRPC cannot resolve the host either, and reports why
        return max(1, min(self._settings().connections_max, self._allowed // sockets))

    def works(self, *ports: int) -> list[Coroutine[object, object, None]]:
        """Return the coroutines that bound the connections to these ports; port 0 is ignored."""
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
    """Shut down surplus connections about once a second, until cancelled.

    If this system cannot list descriptors, the function logs a warning and returns.

    Args:
        sockets: the sockets of this process, which the function lists repeatedly.
        bounds: returns the current bounds.
        is_bookie: returns True if an address belongs to a registered bookie.
        metrics: counts open connections, and connections that were shut down.
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
        except OSError:  # a listing needs a free descriptor, which may exist at the next listing
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
