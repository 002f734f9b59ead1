"""Ends connections that a library owns, from below: gRPC offers no call for it.

A descriptor is only a number. The library may close it at any moment, and a file or another socket
may get the number. So a socket is known by its inode, too, and ended through a descriptor of ours.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import Final

from bookie.addresses import join_address

_MAPPED: Final = "::ffff:"
"""Precedes an IPv4 address that a socket for IPv6 writes."""

_STRANGE: list[int] = []
"""Descriptors of files that got the number of a socket in between; they stay open."""


def socket_inode(descriptor: int) -> int | None:
    """Return the number of a socket; None if the descriptor is closed or of a file."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def plain_address(address: str) -> str:
    """Return an IPv4 address that a socket for IPv6 wrote as IPv4 again."""
    is_mapped = address.startswith(_MAPPED) and "." in address
    return address.removeprefix(_MAPPED) if is_mapped else address


def peer_name(address: str, port: int) -> str:
    """Return the name that gRPC gives to the peer of a connection."""
    kind = "ipv6:" if ":" in address else "ipv4:"
    return kind + join_address(address, port)


def shut_down(descriptor: int, inode: int) -> bool:
    """Shut a connection down, both ways; return False if it has ended already.

    Its owner sees that the peer is gone, and closes the descriptor itself.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        return False
    found = socket_inode(own)
    if found is None:
        # To close the descriptor of a file would release the locks of this process on the file,
        # such as those of the index.
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
