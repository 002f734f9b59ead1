"""Ends a connection from below: gRPC for Python cannot end a call whose client takes no answers.

A handler that returns, or fails, sends a status, and the status waits behind the unsent answer. So
the call, its answer and its share of the bookie last until the client goes. The only remedy within
the process is to shut down the client's socket. gRPC then ends all calls of the connection as if
the client had gone.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Set as AbstractSet
from contextlib import closing
from ipaddress import IPv6Address
from urllib.parse import unquote

from bookie.addresses import join_address


def hang_up(peers: AbstractSet[str]) -> int:
    """Shut down the connections from `peers`, named as by gRPC; return how many were found.

    It looks at every open file of the process, which takes about 5 µs each.
    """
    wanted = {unquote(peer) for peer in peers}
    found = 0
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            # The copy is the same connection, even if gRPC closes its own meanwhile.
            with closing(socket.socket(fileno=os.dup(int(name)))) as connection:
                if _peer_of(connection) in wanted:
                    connection.shutdown(socket.SHUT_RDWR)
                    found += 1
        except OSError:
            continue  # closed meanwhile, or not connected
    return found


def _peer_of(connection: socket.socket) -> str:
    """Return the name that gRPC gives to the peer of a connection."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = connection.getpeername()[:2]
    if connection.family == socket.AF_INET6:
        mapped = IPv6Address(host.partition("%")[0]).ipv4_mapped
        if mapped is None:
            return f"ipv6:{join_address(host, port)}"
        host = str(mapped)
    return f"ipv4:{join_address(host, port)}"
