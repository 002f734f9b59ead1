"""Binds the addresses on which servers of the event loop listen."""

from __future__ import annotations

import asyncio
import socket

from bookie.addresses import is_wildcard

ATTEMPTS_MAX = 20
"""The most times that `bind_all` looks for a port that is free at all addresses of a host."""


async def bind_all(host: str, port: int) -> list[socket.socket]:
    """Bind a non-blocking socket to each address of `host`; the caller makes the sockets listen.

    All sockets have the same port, even if `port` is 0. A socket on the IPv6 wildcard also accepts
    IPv4, like the socket of gRPC.

    Raises:
        OSError: an address cannot be bound, or `host` has no address.
    """
    if ":" in host and is_wildcard(host) and socket.has_dualstack_ipv6():
        address = (host, port)
        bound = [socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)]
    else:
        bound = await _bind_each(host, port)
        attempts = 0
        while port == 0 and len({_port(one) for one in bound}) > 1:
            free = _port(bound[0])
            for one in bound:
                one.close()
            attempts += 1
            try:
                bound = await _bind_each(host, free)
            except OSError:  # another process has this port at another address of the host
                if attempts == ATTEMPTS_MAX:
                    raise
                bound = await _bind_each(host, 0)
    for one in bound:
        one.setblocking(False)
    return bound


async def _bind_each(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    bound = [one.dup() for one in server.sockets]
    server.close()
    return bound


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])
