"""A disk that a bookie can no longer change after its kill, and that may skip syncs.

Bytes that were written before the kill remain in the files, as a real page cache survives the end
of a process. Bytes in the bookie's memory are lost.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bookie.env import (
    Buffer,
    Environment,
    Failpoints,
    File,
    KeyValueStore,
    PosixDisk,
    SystemClock,
    Workers,
    WriteTransaction,
    open_lmdb,
)


class Mortality:
    """The state of one life of a bookie: `is_dead` after a kill; `fsync` is False to skip syncs."""

    def __init__(self, *, fsync: bool) -> None:
        self.fsync = fsync
        self.is_dead = False

    def require_alive(self) -> None:
        """Raise an error if the bookie was killed, so that a dead bookie changes nothing.

        Raises:
            OSError: the bookie was killed.
        """
        if self.is_dead:
            raise OSError(errno.EIO, "the bookie was killed")


class MortalFile:
    """An open file in one life of a bookie; all changes fail after a kill."""

    def __init__(self, file: File, mortality: Mortality) -> None:
        self._file = file
        self._mortality = mortality
        self.pread = file.pread
        self.pread_cached = file.pread_cached
        self.pread_uncached = file.pread_uncached
        self.prefetch = file.prefetch
        self.size = file.size
        self.drop_cache = file.drop_cache
        self.forget = file.forget
        self.close = file.close

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._mortality.require_alive()
        return self._file.pwritev(buffers, offset)

    def fdatasync(self, *, in_place: bool = False) -> None:
        self._mortality.require_alive()
        if self._mortality.fsync:
            self._file.fdatasync(in_place=in_place)

    def allocate(self, offset: int, size: int) -> None:
        self._mortality.require_alive()
        self._file.allocate(offset, size)

    def truncate(self, size: int) -> None:
        self._mortality.require_alive()
        self._file.truncate(size)


class MortalDisk:
    """A `Disk` on the real file systems for one life of a bookie; all changes fail after a kill."""

    def __init__(self, mortality: Mortality) -> None:
        self._disk = PosixDisk()
        self._mortality = mortality
        self.names = self._disk.names
        self.lock = self._disk.lock
        self.usage = self._disk.usage

    def create(self, path: str, allocate_bytes: int) -> MortalFile:
        self._mortality.require_alive()
        return MortalFile(self._disk.create(path, allocate_bytes), self._mortality)

    def open(self, path: str, *, writable: bool = False) -> MortalFile:
        return MortalFile(self._disk.open(path, writable=writable), self._mortality)

    def rename(self, source: str, target: str) -> None:
        self._mortality.require_alive()
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self._mortality.require_alive()
        self._disk.unlink(path)

    def make_directory(self, path: str) -> None:
        self._mortality.require_alive()
        self._disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._mortality.require_alive()
        if self._mortality.fsync:
            self._disk.sync_directory(path)


class MortalStore:
    """The index's key-value store in one life; a kill rolls back an open transaction."""

    def __init__(self, store: KeyValueStore, mortality: Mortality) -> None:
        self._store = store
        self._mortality = mortality
        self.read = store.read
        self.close = store.close

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        self._mortality.require_alive()
        with self._store.write() as transaction:
            yield transaction
            self._mortality.require_alive()


def mortal_environment(workers: Workers, mortality: Mortality) -> Environment:
    """Return the environment for one life of a bookie, on the real machine."""

    def open_kv(
        directory: str, map_bytes: int, tables: tuple[str, ...], trusted: bool
    ) -> KeyValueStore:
        return MortalStore(open_lmdb(directory, map_bytes, tables, trusted), mortality)

    return Environment(
        clock=SystemClock(),
        disk=MortalDisk(mortality),
        workers=workers,
        open_kv=open_kv,
        failpoints=Failpoints(),
    )
