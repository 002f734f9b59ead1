"""Limits the share of the kernel's page cache that the files of one bookie use.

A bookie that writes at the speed of its device fills all memory with cached pages. In full memory,
each write waits until the kernel has freed pages, which halves the write rate. Therefore the bookie
drops pages before memory is full. Two windows of pages stay in memory, each of `page_cache_bytes`
bytes:

- the newest bytes of the journal, which tailing readers read;
- the newest bytes that reads and compactions loaded from other parts of the files.

A separate thread drops the pages that have left a window, in steps of up to 32 MiB. Only pages of
durable bytes are dropped, so no drop can lose data. A drop is only a hint to the kernel, so errors
are ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import closing, suppress
from typing import NamedTuple, NoReturn

from bookie.env import Environment
from bookie.node.engine.files import FileTable

POOL = "page-cache"
STEP_BYTES = 32 * 1024 * 1024
"""The largest number of bytes that one call drops; a call takes one or two milliseconds."""

STEPS_PER_WINDOW = 8
"""The smallest number of steps in a window; a small window therefore has smaller steps."""

CHUNK_BYTES = 1024 * 1024
"""The size of a chunk, the part of a file for which read bytes are counted together."""

OVERLAP_BYTES = 2 * 1024 * 1024
"""The size of the largest folio, a group of pages that the kernel keeps together."""

READ_BYTES_MIN = 16 * 1024
"""A shorter read counts as this many bytes, which limits the number of remembered chunks."""


class _Range(NamedTuple):
    """A range of bytes in a file; `end` 0 means the end of the file."""

    number: int
    begin: int
    end: int


class PageCache:
    """Keeps the most recently written and the most recently read bytes in memory; drops the others.

    All methods must be called in one event loop. A thread drops the pages.
    """

    def __init__(self, environment: Environment, files: FileTable, window_bytes: int) -> None:
        """With `window_bytes` 0, this object drops no pages; only the kernel drops pages."""
        self._env = environment
        self._files = files
        self._window_bytes = window_bytes
        self._step_bytes = max(min(STEP_BYTES, window_bytes // STEPS_PER_WINDOW), 1)
        self._written: deque[_Range] = deque()
        """Finished steps in the journal's window, oldest first; `_growing` is the current step."""
        self._written_bytes = 0
        self._growing = _Range(0, 0, 0)
        self._kept_from: dict[int, int] = {}
        """Maps each journal file in the window to the offset where its kept bytes begin."""
        self._chunks: dict[tuple[int, int], int] = {}
        """Maps (file, chunk number) to the byte count read there; the least recently read chunk is
        first."""
        self._chunk_bytes = 0
        self._behind: list[_Range] = []
        """Byte ranges of files whose pages must be dropped."""
        self._wake = asyncio.Event()

    def wrote(self, number: int, durable_upto: int) -> None:
        """Record that journals before `number`, and `number` up to `durable_upto`, are durable."""
        if not self._window_bytes:
            return
        growing = self._growing
        if number != growing.number:
            if growing.number:
                self._take_step(growing)
            self._kept_from[number] = 0
            self._growing = _Range(number, 0, durable_upto)
        elif durable_upto - growing.begin >= self._step_bytes:
            self._take_step(growing._replace(end=durable_upto))
            self._growing = _Range(number, durable_upto, durable_upto)
        else:
            self._growing = growing._replace(end=durable_upto)

    def read(self, number: int, offset: int, size: int) -> None:
        """Count durable bytes that were read from a device or written by a compaction."""
        if not self._window_bytes or offset >= self._kept_from.get(number, offset + 1):
            return
        end = offset + size
        for position in range(offset // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            begin = position * CHUNK_BYTES
            part = min(end, begin + CHUNK_BYTES) - max(offset, begin)
            before = self._chunks.pop((number, position), 0)
            after = min(before + max(part, READ_BYTES_MIN), CHUNK_BYTES)
            self._chunks[number, position] = after
            self._chunk_bytes += after - before
        if self._chunk_bytes > self._window_bytes + self._step_bytes:
            self._drop_chunks()

    async def run(self) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            behind, self._behind = self._behind, []
            paths = [(self._files.path(item.number), item) for item in behind]
            await self._env.workers.run(POOL, self._drop, paths)

    def _take_step(self, step: _Range) -> None:
        """Add a step to the journal's window; drop old steps until the window is small enough."""
        self._written.append(step)
        self._written_bytes += step.end - step.begin
        while self._written_bytes > self._window_bytes:
            oldest = self._written.popleft()
            self._written_bytes -= oldest.end - oldest.begin
            following = self._written[0] if self._written else self._growing
            if following.number == oldest.number:
                self._kept_from[oldest.number] = oldest.end
                # Drop from the start of the file, because an earlier step may share a page with
                # this step.
                self._behind.append(_Range(oldest.number, 0, oldest.end))
            else:
                del self._kept_from[oldest.number]
                self._behind.append(_Range(oldest.number, 0, 0))
            self._wake.set()

    def _drop_chunks(self) -> None:
        while self._chunk_bytes > self._window_bytes:
            number, position = next(iter(self._chunks))
            self._chunk_bytes -= self._chunks.pop((number, position))
            begin = position * CHUNK_BYTES
            last = self._behind[-1] if self._behind else None
            if last is not None and (last.number, last.end) == (number, begin):
                self._behind[-1] = last._replace(end=begin + CHUNK_BYTES)
            else:
                self._behind.append(_Range(number, begin, begin + CHUNK_BYTES))
        self._wake.set()

    def _drop(self, behind: list[tuple[str | None, _Range]]) -> None:
        for path, (_, start, end) in behind:
            if path is None:
                continue
            # The kernel drops only whole folios, and a folio may begin before the range.
            begin = max(start - OVERLAP_BYTES, 0) if end - start > CHUNK_BYTES else start
            # If the file was removed, the kernel has dropped its pages.
            with suppress(OSError), closing(self._env.disk.open(path)) as file:
                file.forget(begin, end - begin if end else 0)
