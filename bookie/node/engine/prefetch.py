"""Decides which bytes of a file to prefetch for clients that read long ranges.

A client reads a long range as a sequence of requests. The kernel reads only 128 KiB ahead, so each
request would wait for a thread and the device. Therefore a request that continues an earlier
request prefetches `AHEAD_BYTES` more bytes. The next requests find their bytes in memory.
"""

from __future__ import annotations

import threading

AHEAD_BYTES = 4 * 1024 * 1024
"""The number of bytes to prefetch at a time: about two milliseconds of work for a fast device."""

SEQUEL_BYTES_MIN = 64 * 1024
"""Shorter requests do not prefetch: the kernel's read-ahead is enough for short requests."""

FILES_MAX = 64
"""The number of files whose latest requests are remembered."""


class Prefetcher:
    """Detects requests that continue earlier requests; used by the event loop and read threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sequences: dict[int, tuple[int, int]] = {}
        """Maps a file number to the end of its last request in a thread, and the end of its
        prefetched bytes."""

    def is_due(self, number: int, size: int, offset: int) -> bool:
        """True if a request comes near the end of the prefetched bytes, so more must be fetched."""
        sequence = self._sequences.get(number)
        if sequence is None or size < SEQUEL_BYTES_MIN:
            return False
        until = sequence[1]
        return offset < until <= offset + size + AHEAD_BYTES // 2

    def missed(self, number: int, size: int, offset: int) -> tuple[int, int]:
        """Record a request that a thread executes; return offset and size of the bytes to prefetch.

        The size is 0 if nothing is to be prefetched.
        """
        if size < SEQUEL_BYTES_MIN:
            return 0, 0
        with self._lock:
            return self._missed(number, size, offset)

    def _missed(self, number: int, size: int, offset: int) -> tuple[int, int]:
        end = offset + size
        last, until = self._sequences.pop(number, (end, -1))
        due = offset < until <= end + AHEAD_BYTES // 2
        # Entries of other ledgers may lie between the bytes of two consecutive requests.
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
