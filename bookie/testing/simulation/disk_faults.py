"""Faults in calls of a simulated disk, and the sizes of its devices."""

from __future__ import annotations

import errno
from dataclasses import dataclass

GIB = 1024**3


@dataclass(slots=True)
class Fault:
    """A fault in calls named `name` on paths that contain `part`.

    Kinds:

    * ``error``: the call fails with `errno`. A failed write leaves its first half, and a failed
      sync loses the bytes to write.
    * ``revert``: a sync fails, and the cache contains the old bytes again.
    * ``stall``: the call takes `seconds`.
    * ``lost``: the device forgets a write.
    * ``misdirected``: a write ends up elsewhere, `shift` bytes further, in the file that
      `SimulatedDisk.lands_in` names.
    * ``flip``: one bit of the data changes.
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
        """True if the fault strikes this call; each matching call is counted."""
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
