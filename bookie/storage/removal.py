"""Files on their way out: set aside at once, durably, and then given back in small steps.

Freeing a large file at once keeps the file system's own journal busy, and every sync of the
bookie's journal waits: 70 ms for 256 MiB on ext4. Cut from its end a few MiB at a time, the same
file delays no sync.

A file first gets another name, which a start removes. That name is durable before the first byte
goes, because a rebuild must not meet half a file. The index forgets the file at once. The next
start removes what a process leaves behind.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from bookie.env import Environment
from bookie.storage.files import TEMPORARY_SUFFIX
from bookie.telemetry import Metrics

R = TypeVar("R")

POOL = "index"
"""One thread, which no step keeps for long."""

STEP_BYTES = 2 * 1024 * 1024
"""Freed at once: a multiple of the page, so that a reader never sees a page cut in two."""

PAUSE_SECONDS = 0.01
"""After each step: close to 200 MB/s, twenty times slower than the file system could."""

PAUSE_STEPS = 4
"""A step that took long is followed by a pause so many times as long."""

PAUSE_SECONDS_MAX = 0.1


class _Next(enum.Enum):
    """When the next step is due."""

    NOTHING = enum.auto()
    """Nothing was left to be done."""
    LATER = enum.auto()
    AT_ONCE = enum.auto()
    """There is less room than is still to be given back."""


@dataclass(slots=True)
class _Leaving:
    """A file under its last name."""

    path: str
    size_bytes: int


class Removal:
    """Removes files. Its task runs in the event loop, its steps in the index thread."""

    def __init__(
        self, environment: Environment, metrics: Metrics, is_full: Callable[[], bool]
    ) -> None:
        """`is_full` tells whether a device has no room for new entries."""
        self._env = environment
        self._metrics = metrics
        self._is_full = is_full
        self._taken: deque[str] = deque()
        """Still under their old names."""
        self._leaving: deque[_Leaving] = deque()
        """Touched in the index thread only."""
        self._wake = asyncio.Event()
        self.working_since: float | None = None
        """When the step that is under way began, which keeps the index from its next commit."""

    async def take(self, paths: list[str]) -> None:
        """Remove these files: no start finds them after this.

        A reader that has one of them open finds it shorter than it was. Where room is short, the
        space is free when this returns. Cancelled, it is done all the same.

        Raises:
            OSError: a device failed.
        """
        self._taken += paths
        self._wake.set()
        await self._work(self._set_aside)
        if self._is_full():
            await self.finish()

    async def finish(self) -> None:
        """Give back everything now, file by file and without a pause; raises like `take`."""
        while await self._work(partial(self._step, whole=True)) is not _Next.NOTHING:
            pass

    async def run(self) -> NoReturn:
        """Give back what is taken, step by step, until cancelled; raises like `take`."""
        clock = self._env.clock.monotonic
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = clock()
            while (step := await self._work(self._step)) is not _Next.NOTHING:
                if step is _Next.LATER and not self._is_full():
                    wanted = max(PAUSE_SECONDS, PAUSE_STEPS * (clock() - began))
                    await asyncio.sleep(min(wanted, PAUSE_SECONDS_MAX))
                began = clock()

    async def _work(self, call: Callable[[], R]) -> R:
        return await self._env.workers.run(POOL, self._timed, call)

    # --- in the index thread -------------------------------------------------------------

    def _timed(self, call: Callable[[], R]) -> R:
        self.working_since = self._env.clock.monotonic()
        try:
            return call()
        finally:
            self.working_since = None

    def _set_aside(self) -> None:
        disk = self._env.disk
        renamed = []
        while self._taken:
            path = self._taken.popleft()
            with suppress(FileNotFoundError):
                disk.rename(path, path + TEMPORARY_SUFFIX)
                renamed.append(path + TEMPORARY_SUFFIX)
        self._env.failpoints.hit("removal.after_rename")
        for directory in sorted({os.path.dirname(path) for path in renamed}):
            disk.sync_directory(directory)
        for path in renamed:
            with suppress(FileNotFoundError), closing(disk.open(path)) as file:
                self._leaving.append(_Leaving(path, file.size()))

    def _step(self, *, whole: bool = False) -> _Next:
        """Shorten the first file, or remove it; a file that is gone already is skipped."""
        if self._taken:
            # The caller of `take` was cancelled before its step began.
            self._set_aside()
        if not self._leaving:
            return _Next.NOTHING
        self._env.failpoints.hit("removal.before_step")
        leaving, disk = self._leaving[0], self._env.disk
        rest = 0 if whole else max(leaving.size_bytes - 1, 0) // STEP_BYTES * STEP_BYTES
        try:
            if rest:
                with closing(disk.open(leaving.path, writable=True)) as file:
                    file.truncate(rest)
            else:
                self._leaving.popleft()
                disk.unlink(leaving.path)
        except FileNotFoundError:
            self._leaving = deque(item for item in self._leaving if item is not leaving)
            return _Next.LATER
        self._metrics.reclaimed_bytes_total.inc(leaving.size_bytes - rest)
        leaving.size_bytes = rest
        left = sum(item.size_bytes for item in self._leaving)
        free = disk.usage(os.path.dirname(leaving.path)).free_bytes
        return _Next.AT_ONCE if free < left else _Next.LATER
