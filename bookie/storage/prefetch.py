"""What a reader will want next from a file, asked of the device before it does.

A client reads a long range as many requests, one after the other. The kernel reads 128 KiB ahead of
such a request. A device of 1.6 GB/s delivers that in the time of one wake-up, so each request would
wait for a thread and the device. Here a request that goes on where another ended asks for
`AHEAD_BYTES` more, and the next requests find their bytes in memory.
"""

from __future__ import annotations

import threading

AHEAD_BYTES = 4 * 1024 * 1024
"""What is asked for at a time: some two milliseconds of a fast device."""

SEQUEL_BYTES_MIN = 64 * 1024
"""Shorter requests are not worth more than the kernel's own read-ahead."""

FILES_MAX = 64
"""Files that are remembered; a reader needs one at a time."""


class Prefetcher:
    """Tells which requests go on where others ended; used by the event loop and read threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sequences: dict[int, tuple[int, int]] = {}
        """By file: where the last request that missed, or its sequel, ended, and where what was
        asked for ahead ends."""

    def is_due(self, number: int, size: int, offset: int) -> bool:
        """Whether a request of what was asked for ahead should ask for more, in memory or not."""
        sequence = self._sequences.get(number)
        if sequence is None or size < SEQUEL_BYTES_MIN:
            return False
        until = sequence[1]
        return offset < until <= offset + size + AHEAD_BYTES // 2

    def missed(self, number: int, size: int, offset: int) -> tuple[int, int]:
        """Note a request that a thread carries out; offset and size of what to ask for after it.

        The size is 0 if nothing is.
        """
        if size < SEQUEL_BYTES_MIN:
            return 0, 0
        with self._lock:
            return self._missed(number, size, offset)

    def _missed(self, number: int, size: int, offset: int) -> tuple[int, int]:
        end = offset + size
        last, until = self._sequences.pop(number, (end, -1))
        due = offset < until <= end + AHEAD_BYTES // 2
        # Between the entries of one ledger there may be some of others.
        follows = 0 <= offset - last <= size and until <= end
        start = max(end, until)
        if due or follows:
            self._note(number, end, start + AHEAD_BYTES)
            return start, AHEAD_BYTES
        self._note(number, end, until if offset < until else -1)
        return 0, 0

    def _note(self, number: int, end: int, until: int) -> None:
        self._sequences[number] = (end, until)
        if len(self._sequences) > FILES_MAX:
            del self._sequences[next(iter(self._sequences))]
