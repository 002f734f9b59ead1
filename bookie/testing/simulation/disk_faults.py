"""Faults of a simulated disk's methods, and the sizes of its devices."""

from __future__ import annotations

import errno
from dataclasses import dataclass

GIB = 1024**3


@dataclass(slots=True)
class Fault:
    """A fault of the method `name` on paths that contain `part`.

    The kinds of faults are:

    * ``error``: the call fails with `errno`. A failed write has written the first half of its
      bytes; a failed sync loses all unsynced bytes.
    * ``revert``: a sync fails, and the cache contains the old bytes again.
    * ``stall``: the call lasts `seconds`.
    * ``lost``: a write reaches the page cache, but never the device.
    * ``misdirected``: the device writes the bytes at another place: `shift` bytes further, in the
      file that `SimulatedDisk.lands_in` returns.
    * ``flip``: a write changes one bit of the data.
    """

    name: str
    part: str
    kind: str = "error"
    errno: int = errno.EIO
    passes: int = 0
    times: int = 1
    seconds: float = 0.0
    shift: int = 4096
    struck: int = 0

    def strikes(self, name: str, path: str) -> bool:
        """True if the fault applies to this call; count the call if name and path match."""
        if self.times <= 0 or name != self.name or self.part not in path:
            return False
        if self.passes:
            self.passes -= 1
            return False
        self.times -= 1
        self.struck += 1
        return True


@dataclass(slots=True)
class Room:
    """A device of limited size, for the directories whose paths begin with `prefix`."""

    prefix: str
    total_bytes: int = GIB
