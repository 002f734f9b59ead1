"""Checks and raises the limit of file descriptors, and reports when few descriptors are free.

A bookie without free descriptors cannot accept a connection. Without free descriptors, a bookie
also cannot create the next journal file, and this failure ends the process. So a bookie reports
that it is not ready as soon as fewer than `RESERVED` descriptors are free.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from bookie.daemon.readiness import Part, Readiness
from bookie.errors import ConfigurationError
from bookie.node.engine.files import OPEN_FILES_MAX
from bookie.telemetry import event_log

_log = event_log(__name__)

RESERVED = 64
"""The number of descriptors that stay free for journals, logs and directories."""

PROCESS = 64
"""The number of descriptors for a bookie without data and clients; a measurement found 35 open. The
bookie uses these descriptors for its index, its listening sockets and the wake-up of threads."""

CONNECTIONS_MIN = 128
"""The lowest number of descriptors for connections. A client uses about five descriptors, or two if
it uses only gRPC; an HTTP scrape or probe uses two for a moment."""

DESCRIPTORS_MIN = PROCESS + OPEN_FILES_MAX + CONNECTIONS_MIN + RESERVED
"""The lowest limit of open files with which a bookie starts."""

LOOK_INTERVAL_SECONDS = 1.0

_OPEN = Path("/proc/self/fd")
_LIMITS = Path("/proc/self/limits")
_NAME = "Max open files"
UNLIMITED = resource.RLIM_INFINITY


def limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files; the value -1 means no limit."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:
        # If a filter of system calls forbids getrlimit, read the two limits from /proc.
        for line in _LIMITS.read_text(encoding="ascii").splitlines():
            if line.startswith(_NAME):
                soft, hard = line.removeprefix(_NAME).split()[:2]
                return _number(soft), _number(hard)
        raise


def _number(word: str) -> int:
    return UNLIMITED if word == "unlimited" else int(word)


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, if possible; return the new limit."""
    soft, hard = limits()
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft


def require_descriptors() -> int:
    """Raise the limit of descriptors as far as this process may, and return the limit.

    Raises:
        ConfigurationError: the raised limit is below `DESCRIPTORS_MIN`.
    """
    limit = raise_limit()
    if limit != UNLIMITED and limit < DESCRIPTORS_MIN:
        raise ConfigurationError(
            f"a bookie needs at least {DESCRIPTORS_MIN} open files and may have {limit}; raise the "
            "limit (LimitNOFILE= in systemd, ulimit -n in a shell)"
        )
    return limit


def connections_allowed(limit: int) -> int:
    """Return how many connections fit into `limit` while `RESERVED` descriptors stay free."""
    if limit == UNLIMITED:
        return sys.maxsize
    return limit - PROCESS - OPEN_FILES_MAX - RESERVED


def in_use() -> int:
    """Return the number of descriptors that this process has open.

    Raises:
        OSError: no descriptor is free to list the directory; Linux 6.2 and later need no listing.
    """
    # Newer kernels give the number as the directory's size. On older kernels, a listing of a few
    # thousand descriptors takes about a millisecond.
    return os.stat(_OPEN).st_size or len(os.listdir(_OPEN)) - 1


async def watch_descriptors(readiness: Readiness) -> NoReturn:
    """Report that the bookie is not ready while fewer than `RESERVED` descriptors are free.

    The function runs until cancelled.
    """
    is_short = False
    while True:
        limit, _ = limits()
        try:
            used = in_use()
        except OSError:
            used = limit
        short = limit != UNLIMITED and used > limit - RESERVED
        if short:
            readiness.block(
                Part.DESCRIPTORS,
                f"{used} of {limit} open files are in use; raise the limit (LimitNOFILE= in"
                " systemd) or have clients close connections",
            )
        elif is_short:
            readiness.clear(Part.DESCRIPTORS)
        if short != is_short:
            is_short = short
            log = _log.error if short else _log.info
            log("descriptors_run_out" if short else "descriptors_free", used=used, limit=limit)
        await asyncio.sleep(LOOK_INTERVAL_SECONDS)
