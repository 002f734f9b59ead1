"""Tunes this process: the process keeps freed memory, and runs sooner on busy cores.

**Freed memory.** By default, glibc maps each large block at its allocation, and unmaps the block
when it is freed. So a message of 1 MiB costs about 160 page faults, more than half of the
transport's time. On two shared cores, a bookie that stores nothing received 560 batches of 1 MiB a
second. With the two thresholds of this module, the bookie received 930 batches a second. The price
is that the process keeps up to `KEPT_BYTES` of freed memory at the top of each heap.

**Short time slices.** A bookie wakes up often and works briefly. On busy cores, Linux lets a task
with a shorter time slice run sooner (``sched_setattr`` with a runtime, since Linux 6.12). A shorter
slice needs no privilege and does not change the task's share of processor time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of freed memory that the process keeps, and does not return to the system."""

FROM_HEAP_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory blocks up to this size come from the heap; glibc allows no higher limit."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

SLICE_NANOSECONDS: Final = 100_000
"""The shortest time slice in Linux; the default is 1.4 ms on two cores, more on more cores."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_SCHED_GETATTR: Final = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQII")
"""Size, policy, flags, nice, priority, runtime, deadline, period, two utilization bounds."""


def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory; return False if the allocator has no such setting.

    The setting affects the whole process: call this in the daemon and the command line only.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc
    return bool(
        mallopt(_M_MMAP_THRESHOLD, FROM_HEAP_BYTES_MAX) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def ask_for_short_slices() -> bool:
    """Shorten the time slice of this thread and of threads that it starts later.

    Return True on success. The shorter slice affects the process: call this in the daemon only,
    before the daemon starts a thread.
    """
    slices = slice_nanoseconds()
    if slices is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, SLICE_NANOSECONDS, 0, 0, 0, 0)
    return _call(_SCHED_SETATTR, wanted, 0) and slice_nanoseconds() == SLICE_NANOSECONDS


def slice_nanoseconds() -> int | None:
    """Return this thread's time slice; None if unknown or with a non-default scheduling policy."""
    octets = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _call(_SCHED_GETATTR, octets, _ATTRIBUTES.size, 0):
        return None
    _, policy, _, _, _, runtime, *_ = _ATTRIBUTES.unpack(octets.raw)
    return int(runtime) if policy == 0 and runtime else None


def _call(numbers: dict[str, int], *arguments: bytes | ctypes.Array[ctypes.c_char] | int) -> bool:
    """Make a system call that the C library lacks, for this thread; return True on success."""
    number = numbers.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(number, 0, *arguments) == 0)
