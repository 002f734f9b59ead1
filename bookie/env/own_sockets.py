"""Shuts down sockets that gRPC owns, because gRPC has no function to end one connection.

gRPC may close a descriptor at any moment, and a file or another socket may then get the
descriptor's number. So this module duplicates the descriptor and compares the inode before it shuts
the socket down.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import Final

from bookie.addresses import join_address

_MAPPED: Final = "::ffff:"
"""The prefix of an IPv4 address that an IPv6 socket reports."""

_STRANGE: list[int] = []
"""Duplicates of descriptors that turned out to be files; the duplicates are never closed."""


def socket_inode(descriptor: int) -> int | None:
    """Return the inode number of a socket; None if `descriptor` is closed or is no socket."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def plain_address(address: str) -> str:
    """Return `address` without the prefix that an IPv6 socket adds to an IPv4 address."""
    is_mapped = address.startswith(_MAPPED) and "." in address
    return address.removeprefix(_MAPPED) if is_mapped else address


def peer_name(address: str, port: int) -> str:
    """Return the name that gRPC gives to the peer of a connection."""
    kind = "ipv6:" if ":" in address else "ipv4:"
    return kind + join_address(address, port)


def shut_down(descriptor: int, inode: int) -> bool:
    """Shut down both directions of a socket; return False if the socket has ended already.

    The owner of the socket then sees the end of the connection, and closes its own descriptor.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        return False
    found = socket_inode(own)
    if found is None:
        # Closing any descriptor of a file releases this process's locks on the file, for example
        # the locks of the index.
        _STRANGE.append(own)
        return False
    try:
        with socket.socket(fileno=own) as ours:
            if found != inode:
                return False
            ours.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
