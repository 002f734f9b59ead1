"""How long this process works at a stretch while others wait for a core: short, to be let in soon.

A bookie wakes up often and works briefly. Where clients keep every core busy, Linux lets a task
that wakes up wait for its turn, the shorter the less time at a stretch the task has asked for
(``sched_setattr`` with a runtime, since Linux 6.12; it takes no rights, and gives no larger share).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

SLICE_NANOSECONDS: Final = 100_000
"""The shortest that Linux takes; by default it is 1.4 ms on two cores, and more on more."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_SCHED_GETATTR: Final = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQII")
"""Size, policy, flags, nice, priority, runtime, deadline, period, and two bounds of utilization."""


def ask_for_short_slices() -> bool:
    """Ask for this thread and those that it will start; whether the system took it.

    A property of the process: for the daemon, before it starts a thread, and never for a library.
    """
    slices = slice_nanoseconds()
    if slices is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, SLICE_NANOSECONDS, 0, 0, 0, 0)
    return _call(_SCHED_SETATTR, wanted, 0) and slice_nanoseconds() == SLICE_NANOSECONDS


def slice_nanoseconds() -> int | None:
    """What this thread has; None if it is not an ordinary task or the system does not tell."""
    octets = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _call(_SCHED_GETATTR, octets, _ATTRIBUTES.size, 0):
        return None
    _, policy, _, _, _, runtime, *_ = _ATTRIBUTES.unpack(octets.raw)
    return int(runtime) if policy == 0 and runtime else None


def _call(numbers: dict[str, int], *arguments: bytes | ctypes.Array[ctypes.c_char] | int) -> bool:
    """One system call about this thread that the C library has no name for."""
    number = numbers.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(number, 0, *arguments) == 0)
