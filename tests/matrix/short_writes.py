"""Writes that the system cuts off: half is written, and the other half has to follow."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.env.disk import Buffer


@dataclass(slots=True)
class ShortWrite:
    """The first write on paths that contain `part`, after `passes` good ones, is short.

    Its other half fails with `number` (0 lets it pass), and if that is ENOSPC every write after it.
    `struck` counts the calls that came after the short one, of which the first is its other half.
    """

    part: str
    number: int
    passes: int
    but_not: str
    expects: int = 0
    """Where the other half goes."""
    struck: int = 0

    def bytes_of(self, path: str, size: int, offset: int) -> int:
        """How much of this write the system takes.

        Raises:
            OSError: nothing.
        """
        if self.part not in path or self.but_not in path:
            return size
        if self.passes > 0:
            self.passes -= 1
            return size
        if self.passes == 0:
            self.passes = -1
            half = size // 2
            assert half
            self.expects = offset + half
            return half
        if not self.struck:
            assert offset == self.expects, "what is missing was not written next"
        self.struck += 1
        if self.number == errno.ENOSPC or (self.number and self.struck == 1):
            raise OSError(self.number, os.strerror(self.number), path)
        return size


class ShortWrites:
    """Takes the place of `os.pwritev`; every write is whole until one is to be cut."""

    def __init__(self) -> None:
        self._real = os.pwritev
        self._cut: ShortWrite | None = None

    def cut(self, part: str, number: int, *, passes: int, but_not: str) -> ShortWrite:
        """Make one write short; see `ShortWrite`."""
        self._cut = ShortWrite(part, number, passes, but_not)
        return self._cut

    def heal(self) -> None:
        """All writes are whole again."""
        self._cut = None

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all of it, or as much as the device takes."""
        if self._cut is not None:
            size = sum(map(len, buffers))
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            wanted = self._cut.bytes_of(path, size, offset)
            if wanted < size:
                buffers = [b"".join(buffers)[:wanted]]
        return self._real(descriptor, buffers, offset)
