"""The interface between bookie and the machine: clock, disk, key-value store, threads.

The engine uses the machine only through an `Environment`, so that tests can simulate the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.env.backoff import Backoff
from bookie.env.clock import Clock, Moment, SystemClock, boot_time_seconds, jitter, moment_ms
from bookie.env.disk import Buffer, Disk, DiskUsage, File, PosixDisk, Readable, is_disk_full
from bookie.env.failpoints import Failpoints
from bookie.env.gather import beside, gather
from bookie.env.kv import KeyValueStore, ReadTransaction, WriteTransaction, open_lmdb
from bookie.env.outcome import Outcome
from bookie.env.pause import Pause
from bookie.env.workers import BatchWorker, ThreadWorkers, Workers

__all__ = [
    "Backoff",
    "BatchWorker",
    "Buffer",
    "Clock",
    "Disk",
    "DiskUsage",
    "Environment",
    "Failpoints",
    "File",
    "KeyValueStore",
    "Moment",
    "Outcome",
    "Pause",
    "PosixDisk",
    "ReadTransaction",
    "Readable",
    "SystemClock",
    "ThreadWorkers",
    "Workers",
    "WriteTransaction",
    "beside",
    "boot_time_seconds",
    "gather",
    "is_disk_full",
    "jitter",
    "moment_ms",
    "open_lmdb",
    "system_environment",
]


@dataclass(frozen=True, slots=True)
class Environment:
    """All parts of the machine that the engine uses."""

    clock: Clock
    disk: Disk
    workers: Workers
    open_kv: Callable[[str, int, tuple[str, ...], bool], KeyValueStore]
    """Opens the key-value store in a directory; the arguments are (directory, map bytes, table
    names, trusted).

    A `trusted` store is unchanged since an orderly stop, so only its two meta pages are checked.
    """
    failpoints: Failpoints


def system_environment(workers: Workers, failpoints: Failpoints | None = None) -> Environment:
    """Return an environment that uses the real machine."""
    return Environment(
        clock=SystemClock(),
        disk=PosixDisk(),
        workers=workers,
        open_kv=open_lmdb,
        failpoints=failpoints or Failpoints(),
    )
