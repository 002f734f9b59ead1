"""Interfaces of files and directories for the engine; `PosixDisk` implements them with POSIX calls.

Methods raise the kernel's `OSError`; after such an error, the engine decides between fail-stop and
read-only mode. Only short reads, short writes and EINTR are retried.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bookie.errors import DirectoryLockedError, DiskFullError

Buffer: TypeAlias = bytes | bytearray | memoryview
_FILLED_BYTES_MAX = 64 * 1024
IOV_MAX = 1024
"""The largest number of buffers that one pwritev accepts on Linux."""

WRITEBACK_BYTES = 1024 * 1024
"""Larger writes are split: the device writes the first parts while the kernel copies later parts.

Measured with writes of 8 MiB, each synced: 850 MB/s in one piece, 1500 MB/s in parts of 1 MiB.
"""

NO_ROOM_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

PAGE_BYTES = 4096
"""The size of a page, the unit in which the page cache writes to the device."""

_SYNC_FILE_RANGE_WRITE = 2
_KEEP_SIZE = 1
"""The flag FALLOC_FL_KEEP_SIZE of fallocate."""

_FAILED_ERRNOS = (errno.EROFS, errno.EIO, errno.EUCLEAN, errno.EBADMSG)


def is_disk_full(error: Exception) -> bool:
    """True if an error of a disk, or of a store on a disk, means that the disk is full."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM_ERRNOS
    return isinstance(error, DiskFullError)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Sizes of a directory's file system in bytes; `device` identifies the file system."""

    total_bytes: int
    free_bytes: int
    device: int


class Readable(Protocol):
    """An object whose bytes can be read by offset."""

    def pread(self, size: int, offset: int) -> Buffer:
        """Return `size` bytes from `offset` on, or fewer bytes if the object ends before."""

    def size(self) -> int:
        """Return the size of the object in bytes."""


class File(Protocol):
    """One open file; each read or write has an offset, because the file has no position."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all `buffers` one after the other at `offset`; return the number of bytes written.

        After a short write, the method writes the rest. Nothing is durable before `fdatasync`,
        although some of the data may already be on the device.
        """

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file; may wait for the device."""

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        """Return exactly `size` bytes if all are in memory, otherwise None; never block."""

    def prefetch(self, size: int, offset: int) -> None:
        """Ask the device to read `size` bytes into memory for later use; this call never fails.

        The call does not wait for the data. On a busy device, the request alone may take a while.
        """

    def pread_uncached(self, size: int, offset: int) -> Buffer:
        """Read like `pread`, but without the page cache if the file system permits this.

        `size` and `offset` must be multiples of 4096.
        """

    def fdatasync(self, *, in_place: bool = False) -> None:
        """Make every write so far durable, together with the file size.

        `in_place` is True if all writes since the last sync replaced bytes that had been synced
        before. In this case, ext4 cannot lose new blocks, so this method skips the check after the
        sync.
        """

    def size(self) -> int:
        """Return the number of bytes up to the end of the file."""

    def allocate(self, offset: int, size: int) -> None:
        """Reserve disk space for `size` bytes at `offset`, writing no zeros; a shorter file grows.

        After an error, a part of the space may stay reserved; `truncate` frees this part.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and free the space beyond; the cut is not durable yet."""

    def drop_cache(self) -> None:
        """Sync the file and drop its pages from the page cache, so that reads need the device."""

    def forget(self, offset: int, size: int) -> None:
        """Ask the kernel to drop synced pages of the file from the page cache.

        Later reads of these pages need the device. A `size` of 0 means up to the end of the file.
        Pages with unwritten changes stay in memory.
        """

    def close(self) -> None:
        """Close the file; further calls are errors."""


class Disk(Protocol):
    """Directories and the files in them. Paths are absolute."""

    def create(self, path: str, allocate_bytes: int) -> File:
        """Create a file, open it for writing, and reserve `allocate_bytes` without writing zeros.

        If a file of that name exists, its content is deleted. The content and the name of the new
        file are not durable yet.
        """

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file; a missing file is not created."""

    def names(self, directory: str) -> list[str]:
        """Return the names of all files and directories in `directory`, sorted."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file within one directory; the new name is durable after `sync_directory`."""

    def unlink(self, path: str) -> None:
        """Remove a file if it exists; the removal is durable after `sync_directory`."""

    def make_directory(self, path: str) -> None:
        """Create the directory `path` and its missing parents durably, with mode 0700."""

    def sync_directory(self, path: str) -> None:
        """Make all creations, renames and removals in the directory `path` durable."""

    def lock(self, path: str) -> File:
        """Lock the file `path`; create the file if it is missing.

        The lock lasts until the returned file is closed or this process ends.

        Raises:
            DirectoryLockedError: another process holds the lock.
        """

    def usage(self, directory: str) -> DiskUsage:
        """Return the sizes of the file system that holds `directory`."""


class PosixFile:
    """A `File` on a POSIX file descriptor."""

    __slots__ = ("_direct", "_fd", "_nowait", "path")
    _fd: int

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path
        # Some file systems refuse RWF_NOWAIT; then every read goes to a thread.
        self._nowait = True
        self._direct: int | None = None
        """A second descriptor that bypasses the page cache; -1 if the file system refuses it."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(map(len, buffers))
        if size < WRITEBACK_BYTES and len(buffers) <= IOV_MAX:
            return self._pwritev_some(buffers, size, offset) - offset
        start = begun = offset
        for part in _parts(buffers):
            # Write back only full pages, because the next part changes the last, partial page.
            pages_end = offset - offset % PAGE_BYTES
            if pages_end > begun:
                _start_writeback(self._fd, begun, pages_end - begun)
                begun = pages_end
            offset = self._pwritev_some(part, sum(map(len, part)), offset)
        return offset - start

    def _pwritev_some(self, buffers: Sequence[Buffer], expected: int, offset: int) -> int:
        """Write all `expected` bytes of `buffers` at `offset`; return `offset` + `expected`."""
        while True:
            written = os.pwritev(self._fd, buffers, offset)
            offset += written
            expected -= written
            if expected == 0:
                return offset
            if written == 0:
                raise OSError(errno.EIO, "a write made no progress", self.path)
            whole = 0
            while written >= len(buffers[whole]):
                written -= len(buffers[whole])
                whole += 1
            buffers = [memoryview(buffers[whole])[written:], *buffers[whole + 1 :]]

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size:
            piece = os.pread(self._fd, size - got, offset + got)
            if not piece:
                break
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        if not self._nowait:
            return None
        buffer = _buffer(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                self._nowait = False
                return None
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                return None
            raise
        return buffer if got == size else None

    def prefetch(self, size: int, offset: int) -> None:
        with suppress(OSError):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def pread_uncached(self, size: int, offset: int) -> Buffer:
        if self._direct is None:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT
            try:
                # Open the file by its descriptor, because the file may have no name any more.
                self._direct = os.open(f"/proc/self/fd/{self._fd}", flags)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = -1
        if self._direct >= 0:
            # The buffer is aligned to pages, as the device requires.
            buffer = mmap.mmap(-1, size)
            got = os.preadv(self._direct, [buffer], offset)
            return memoryview(buffer)[:got]
        data = self.pread_cached(size, offset)
        if data is None:
            data = self.pread(size, offset)
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)
        return data

    def fdatasync(self, *, in_place: bool = False) -> None:
        os.fdatasync(self._fd)
        if not in_place:
            check_takes_changes(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, offset: int, size: int) -> None:
        allocate(self._fd, size, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def drop_cache(self) -> None:
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def forget(self, offset: int, size: int) -> None:
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)
        direct, self._direct = self._direct, -1
        if direct is not None and direct >= 0:
            os.close(direct)

    def __del__(self) -> None:
        # An owner may drop the file while a reader still uses it: the last user closes the file.
        if self._fd >= 0:
            self.close()


def _parts(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Yield one list of buffers per pwritev, up to `IOV_MAX` buffers or `WRITEBACK_BYTES` bytes."""
    part: list[Buffer] = []
    size = 0
    for buffer in buffers:
        part.append(buffer)
        size += len(buffer)
        if size >= WRITEBACK_BYTES or len(part) == IOV_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part


def _c_function(name: str, *argument_types: type) -> Callable[..., int] | None:
    """Load a function of the C library; None if the library lacks the function."""
    try:
        function = ctypes.CDLL(None, use_errno=True)[name]
    except (OSError, AttributeError):
        return None
    function.argtypes = argument_types
    return function


_int64 = ctypes.c_int64
_sync_file_range = _c_function("sync_file_range", ctypes.c_int, _int64, _int64, ctypes.c_uint)
_fallocate = _c_function("fallocate", ctypes.c_int, ctypes.c_int, _int64, _int64)


def _start_writeback(fd: int, offset: int, size: int) -> None:
    """Ask the device to begin to write a range of the file; this call makes nothing durable.

    The function does not wait for the write: a flag that makes sync_file_range wait would consume a
    device error that the following fdatasync must report. Some file systems ignore the hint.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, size, _SYNC_FILE_RANGE_WRITE)


def check_takes_changes(fd: int) -> None:
    """Raise an error if the file system of an open, writable file no longer accepts changes.

    Call this after a sync of new blocks, if somebody relies on the success of the sync. If ext4
    turns read-only during such a sync, it may lose the blocks and return success. Measured on Linux
    6.18, with a sync after each write: blocks were lost unnoticed in 15 % of 400 such errors, and
    with this check in 0 of 800.

    The check reserves space for the first byte of the file, which usually has its space already.
    ext4 begins a transaction for the reservation; after the error, ext4 refuses this transaction.
    The call takes about 6 µs, and the next sync of the file commits the transaction.

    If the file system does not support ``fallocate``, the check finds no error.

    Raises:
        OSError: the file system failed; the data of the last sync may be lost.
    """
    while _fallocate is not None and _fallocate(fd, _KEEP_SIZE, 0, 1) != 0:
        number = ctypes.get_errno()
        if number in _FAILED_ERRNOS:
            raise OSError(number, f"the file system failed during a sync: {os.strerror(number)}")
        if number != errno.EINTR:
            return  # The file system lacks `fallocate` or has no space; it has not failed.


class PosixDisk:
    """A `Disk` on the real file systems."""

    def create(self, path: str, allocate_bytes: int) -> PosixFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        file = PosixFile(os.open(path, flags, 0o600), path)
        try:
            if allocate_bytes:
                allocate(file._fd, allocate_bytes)
        except OSError:
            file.close()
            self.unlink(path)
            raise
        return file

    def open(self, path: str, *, writable: bool = False) -> PosixFile:
        mode = os.O_RDWR if writable else os.O_RDONLY
        return PosixFile(os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW), path)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def make_directory(self, path: str) -> None:
        parent = os.path.dirname(path)
        if os.path.isdir(path):
            # A killed process may have created the directory without making its name durable. If
            # this process may not read the parent, an operator made the directory.
            with suppress(PermissionError):
                self.sync_directory(parent)
            return
        if parent != path:
            self.make_directory(parent)
        os.mkdir(path, 0o700)
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> PosixFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise DirectoryLockedError(
                f"another process uses {os.path.dirname(path)}; stop it first"
            ) from error
        return PosixFile(fd, path)

    def usage(self, directory: str) -> DiskUsage:
        status = os.statvfs(directory)
        return DiskUsage(
            total_bytes=status.f_blocks * status.f_frsize,
            free_bytes=status.f_bavail * status.f_frsize,
            device=os.stat(directory).st_dev,
        )


def _buffer(size: int) -> Buffer:
    if size < _FILLED_BYTES_MAX:
        return bytearray(size)
    # Python fills a bytearray with zeros: for 1 MiB, this takes half as long as the read. Import
    # numpy here, because many commands use the disk without arrays.
    from numpy import empty, uint8

    return empty(size, uint8).data


def allocate(fd: int, size_bytes: int, offset: int = 0) -> None:
    """Reserve `size_bytes` of a file from `offset` on; the file's content does not change."""
    try:
        os.posix_fallocate(fd, offset, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        # The file system cannot reserve space, so only extend the file to the new size.
        os.ftruncate(fd, max(offset + size_bytes, os.fstat(fd).st_size))
