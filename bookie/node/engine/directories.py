"""The directories of one bookie: layout, locks, cookie files and the reserve.

::

    journal_dir/   00000001.journal …        COOKIE  LOCK  (RESERVE, if on its own device)
    ledgers_dir/   index/data.mdb  logs/00000007.log …   COOKIE  LOCK  RESERVE  FAILED  STOPPED
                   READONLY

The file `COOKIE` names the owner. A process locks the file `LOCK`, so that no second process uses
the directory. The file `RESERVE` takes up space that is freed when the device is full. A process
that ends because a disk failed leaves the file `FAILED`. After an orderly stop, the file `STOPPED`
holds the size of the index and a CRC32C of its two meta pages. The file `READONLY` exists if the
bookie must start read-only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from bookie.config import StorageSettings
from bookie.entry.checksum import crc32c
from bookie.env import Disk, is_disk_full
from bookie.errors import CannotStartError, ConfigurationError, StorageFailedError
from bookie.node.engine.files import TEMPORARY_SUFFIX

_COOKIE = "COOKIE"
_LOCK = "LOCK"
_RESERVE = "RESERVE"
_FAILED = "FAILED"
_STOPPED = "STOPPED"
_READ_ONLY = "READONLY"
_META_BYTES = 2 * 4096
"""The number of bytes at the start of the index file that the CRC in `STOPPED` covers.

Each of the two meta pages has at least 4 KiB.
"""
COOKIE_BYTES_MAX = 64 * 1024

_WRONG_PATH_ERRNOS = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
"""Error numbers that mean a wrong path; others (of a mount or a permission) may be temporary."""


class Directories:
    """The paths of one bookie; this process has locked both root directories."""

    def __init__(self, disk: Disk, settings: StorageSettings) -> None:
        self._disk = disk
        self._reserve_bytes = settings.reserve_bytes
        self.journal = os.path.abspath(settings.journal_dir)
        self.ledgers = os.path.abspath(settings.ledgers_dir)
        self.index = os.path.join(self.ledgers, "index")
        self.logs = os.path.join(self.ledgers, "logs")
        _refuse_one_place(self.journal, self.ledgers)

    def roots(self) -> tuple[str, str]:
        """Return the two directories that hold a cookie file: journal and ledgers."""
        return self.journal, self.ledgers

    def read_cookie(self, root: str) -> bytes | None:
        return self._read(root, _COOKIE)

    def _read(self, root: str, name: str) -> bytes | None:
        try:
            with closing(self._disk.open(os.path.join(root, name))) as file:
                return file.pread(COOKIE_BYTES_MAX, 0)
        except FileNotFoundError:
            return None

    def write_cookie(self, root: str, data: bytes) -> None:
        """Write the cookie file of a root directory; durable when this returns."""
        self._write(root, _COOKIE, data)

    def _write(self, root: str, name: str, data: bytes) -> None:
        path = os.path.join(root, name)
        self._disk.unlink(path + TEMPORARY_SUFFIX)
        with closing(self._disk.create(path + TEMPORARY_SUFFIX, 0)) as file:
            file.pwritev([data], 0)
            file.fdatasync()
        self._disk.rename(path + TEMPORARY_SUFFIX, path)
        self._disk.sync_directory(root)

    def is_empty(self, root: str) -> bool:
        """True if a root directory holds no data of any bookie."""
        names = set(self._disk.names(root)) - {
            _LOCK,
            _COOKIE,
            _COOKIE + TEMPORARY_SUFFIX,
            "lost+found",
        }
        if root == self.ledgers:
            for child in ("index", "logs"):
                if child in names and not self._disk.names(os.path.join(root, child)):
                    names.discard(child)
        return not names

    def make_reserve(self) -> None:
        """Allocate a reserve on each device that has no reserve and has enough room."""
        for root in self._reserve_roots():
            self._make_reserve_in(root)

    def _reserve_roots(self) -> list[str]:
        """Return only one root directory for each device.

        All roots on a device share one reserve.
        """
        return list({self._disk.usage(root).device: root for root in self.roots()}.values())

    def _make_reserve_in(self, root: str) -> None:
        if _RESERVE in self._disk.names(root) or not self._reserve_bytes:
            return
        if self._disk.usage(root).free_bytes < 2 * self._reserve_bytes:
            return
        path = os.path.join(root, _RESERVE)
        try:
            self._disk.create(path, self._reserve_bytes).close()
        except OSError as error:
            self._disk.unlink(path)
            if not is_disk_full(error):
                raise

    def has_room(self, step_bytes: int) -> bool:
        """True if each device has room for `step_bytes` of entries and twice the size of a reserve.

        The space of a reserve that still exists counts as free.
        """
        held = {
            self._disk.usage(root).device: self._held_bytes(root) for root in self._reserve_roots()
        }
        wanted = step_bytes + 2 * self._reserve_bytes
        usages = [self._disk.usage(root) for root in self.roots()]
        return all(usage.free_bytes + held[usage.device] >= wanted for usage in usages)

    def _held_bytes(self, root: str) -> int:
        try:
            with closing(self._disk.open(os.path.join(root, _RESERVE))) as file:
                return file.size()
        except FileNotFoundError:
            return 0

    def release_reserve(self) -> None:
        """Free the reserved space, so that fences, recovery adds and checkpoints can continue."""
        for root in self._reserve_roots():
            self._disk.unlink(os.path.join(root, _RESERVE))

    def mark_failed(self) -> None:
        """Create the file `FAILED`, to record that a disk failed; ignore errors."""
        with suppress(OSError):
            self._disk.create(os.path.join(self.ledgers, _FAILED), 0).close()

    def was_failed(self) -> bool:
        """True if the last process ended because a disk failed."""
        return _FAILED in self._disk.names(self.ledgers)

    def clear_failed(self) -> None:
        self._disk.unlink(os.path.join(self.ledgers, _FAILED))

    def is_read_only(self) -> bool:
        """True if the bookie must start read-only."""
        return _READ_ONLY in self._disk.names(self.ledgers)

    def keep_read_only(self, keep: bool) -> None:
        """With `keep`, make later starts read-only, else writable; durable when this returns."""
        if keep:
            self._write(self.ledgers, _READ_ONLY, b"")
        else:
            self._disk.unlink(os.path.join(self.ledgers, _READ_ONLY))
            self._disk.sync_directory(self.ledgers)

    def mark_stopped(self) -> None:
        """Write the file `STOPPED`, durably; the caller has closed the index."""
        self._write(self.ledgers, _STOPPED, self._index_summary())

    def take_stopped(self) -> bool:
        """Remove the file `STOPPED`, durably; True if the file existed and matches the index."""
        summary = self._read(self.ledgers, _STOPPED)
        if summary is None:
            return False
        self._disk.unlink(os.path.join(self.ledgers, _STOPPED))
        self._disk.sync_directory(self.ledgers)
        return summary == self._index_summary()

    def _index_summary(self) -> bytes:
        if "data.mdb" not in self._disk.names(self.index):
            return b"none"
        with closing(self._disk.open(os.path.join(self.index, "data.mdb"))) as file:
            return b"%d %08x" % (file.size(), crc32c(file.pread(_META_BYTES, 0)))

    def set_index_aside(self, why: str) -> str:
        """Rename the index to ``index.WHY``, so that a new index is built; return the new path."""
        aside = f"{self.index}.{why}"
        self._disk.rename(self.index, aside)
        self._disk.make_directory(self.index)
        self._disk.sync_directory(self.ledgers)
        return aside


def _refuse_one_place(journal: str, ledgers: str) -> None:
    """Refuse two paths to one directory (also through a link), or to nested directories.

    Without this check, a later step of the start would fail, and its error would give the operator
    a wrong reason. For example, the process would lock one directory twice. Or a new directory
    would not be empty, because it contains the other directory.

    Raises:
        ConfigurationError: the paths name one directory, or one directory contains the other.
    """
    first, second = os.path.realpath(journal), os.path.realpath(ledgers)
    with suppress(OSError):
        if os.path.samefile(first, second):  # a mount may also give one directory two paths
            second = first
    if first == second:
        links = "" if journal == ledgers else f": {journal} and {ledgers} are both {first}"
        raise ConfigurationError(f"journal_dir and ledgers_dir must be two directories{links}")
    if os.path.commonpath([first, second]) in (first, second):
        raise ConfigurationError(
            f"journal_dir and ledgers_dir must not lie in each other: {journal} and {ledgers}"
        )


@contextmanager
def locked_directories(disk: Disk, settings: StorageSettings) -> Iterator[Directories]:
    """Create missing directories, and lock both roots until the end of the ``with`` block.

    Raises:
        DirectoryLockedError: another process uses one of the directories.
        CannotStartError: a directory cannot be created or written now.
        ConfigurationError: a path cannot be the path of a directory.
        StorageFailedError: the disk of a directory failed.
    """
    directories = Directories(disk, settings)
    with ExitStack() as locks:
        for root in directories.roots():
            with _usable(root):
                disk.make_directory(root)
                locks.enter_context(closing(disk.lock(os.path.join(root, _LOCK))))
        for path in (directories.index, directories.logs):
            with _usable(path):
                disk.make_directory(path)
        yield directories


@contextmanager
def _usable(path: str) -> Iterator[None]:
    """Turn disk errors in the ``with`` block into errors that name the directory `path`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:
            raise StorageFailedError(f"the disk of {path} failed: {error}") from error
        reason = error.strerror or str(error)
        kind = ConfigurationError if error.errno in _WRONG_PATH_ERRNOS else CannotStartError
        raise kind(f"cannot use the directory {path}: {reason}") from error
