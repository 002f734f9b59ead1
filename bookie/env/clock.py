"""Time and randomness, as the engine sees them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Two clocks, one source of nonces, and the identity of the running kernel."""

    def monotonic(self) -> float:
        """Seconds that never decrease; only differences have a meaning."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; for people and retention, never for ordering."""

    def nonce(self) -> bytes:
        """16 bytes that no other file has."""

    def boot_id(self) -> str:
        """Differs after each start of the operating system; empty when unknown."""


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Seconds of CLOCK_MONOTONIC."""

    def now_ms(self) -> int:
        """Milliseconds of CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000

    def nonce(self) -> bytes:
        """16 random bytes of the kernel."""
        return os.urandom(16)

    def boot_id(self) -> str:
        """The kernel's boot id."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""


def boot_time_seconds() -> float:
    """Seconds since the machine started, suspended time included; equal in all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def jitter() -> float:
    """A random number in [0, 1), so that many clients do not act at the same moment."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
