"""Ports of the loopback interface for servers that tests start, each given to one process only.

Between the choice of a port and the moment when its server listens, the port must stay free. The
same holds while a killed server is to come back on it. Other test processes, outgoing connections
and servers on any free port are kept away.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Below the ports that the kernel hands out by itself, and above those that ``bookie local``
chooses from."""


def claimed_ports(count: int) -> list[int]:
    """Free ports, which belong to this process until it ends.

    Raises:
        RuntimeError: not so many are left.
    """
    found = list(islice(_claims(), count))
    if len(found) < count:
        raise RuntimeError(f"the ports {PORTS.start} to {PORTS.stop - 1} are used up")
    return found


@functools.cache
def _claims() -> Iterator[int]:
    """Every port at most once in a run, in random order."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if claim(port) and _is_free(port):
            yield port


def claim(port: int) -> bool:
    """Keep other processes from a port; whether none has it. One's own is had again.

    The claim is a lock on one byte of a file that all processes of a user share. The kernel drops
    it with the process, however that ends.
    """
    try:
        fcntl.lockf(_claimed(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


@functools.cache
def _claimed() -> int:
    """The file, which nobody may close: that would drop all claims."""
    path = Path(tempfile.gettempdir()) / f"bookie-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # The remains of former connections to it do not matter; who listens does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
