"""Binds the addresses on which servers of the event loop listen."""

from __future__ import annotations

import asyncio
import socket

from bookie.addresses import is_wildcard


async def bind_all(host: str, port: int) -> list[socket.socket]:
    """Bind a non-blocking socket to each address of `host`; the caller makes the sockets listen.

    A socket on the IPv6 wildcard also accepts IPv4, like the socket of gRPC.

    Raises:
        OSError: an address cannot be bound, or `host` has no address.
    """
    if ":" in host and is_wildcard(host) and socket.has_dualstack_ipv6():
        address = (host, port)
        bound = [socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)]
    else:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        bound = [one.dup() for one in server.sockets]
        server.close()
    for one in bound:
        one.setblocking(False)
    return bound
