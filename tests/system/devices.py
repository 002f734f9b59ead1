"""File systems of our own that lose their power, fill up or refuse writes; root only.

Each is an image in memory behind a loop device. Power is cut with the shutdown ioctl of ext4. From
then on every write and sync fails. The next mount finds only what had reached the device, and the
page cache is gone.

Every mount is made in a mount namespace of this process and its children. The kernel removes it
when the last of them ends, even after a SIGKILL. Loop devices free themselves when they are
unmounted. Nothing else on the machine sees them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import struct
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 2**20

_CLONE_NEWNS = 0x20000
_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def enter_private_mounts() -> None:
    """From now on, mounts of this thread and what it starts are seen by nobody else.

    Raises:
        OSError: not root, or a sandbox that forbids it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNS) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"no mount namespace (root?): {os.strerror(error)}")
    run("mount", "--make-rprivate", "/")


def run(*command: str | Path) -> str:
    """Run one command; its output. What it says about a failure is in the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def memory(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory at `path`, which is made, until the end of the block."""
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path)
    try:
        yield path
    finally:
        # Lazily: a process that a failed test left behind must not keep the rest from ending.
        run("umount", "--lazy", path)


class Volume:
    """One ext4 file system on a device of its own, mounted at `path` or not."""

    def __init__(self, image: Path, path: Path, options: str) -> None:
        self._image = image
        self.path = path
        self._options = options
        self._mounted = False

    def mount(self) -> None:
        """Put the device in; a journal of ext4 that needs it is replayed."""
        run("mount", "-o", f"loop,{self._options}", self._image, self.path)
        self._mounted = True

    def unmount(self) -> None:
        """Take the device out; no process may have a file open on it."""
        run("umount", self.path)
        self._mounted = False

    def cut(self) -> None:
        """Cut the power: nothing reaches the device any more, every write and sync fails."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Power is back: what is mounted now is what the device holds."""
        self.unmount()
        self.mount()

    def turn_read_only(self) -> None:
        """An error of the file system, after which ext4 lets nobody write any more.

        The mount needs the option ``errors=remount-ro``.
        """
        device = os.minor(self.path.stat().st_dev)
        trigger = Path(f"/sys/fs/ext4/loop{device}/trigger_fs_error")
        trigger.write_text("an error that a test made\n", encoding="ascii")

    def close(self) -> None:
        """Leave nothing mounted, whatever happened before."""
        if self._mounted:
            run("umount", "--lazy", self.path)
            self._mounted = False

    def write_back_some(self, choose: random.Random) -> None:
        """Have the kernel write some dirty pages, as it may at any time and in any order."""
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        if not files:
            return
        try:
            descriptor = os.open(choose.choice(files), os.O_RDONLY)
        except FileNotFoundError:
            return  # a temporary file that has its name by now
        try:
            size = os.fstat(descriptor).st_size
            start = choose.randrange(size + 1)
            # Starts writing the dirty pages of the range and returns at once. ext4's journal is not
            # told, so sizes and extents become durable by chance.
            os.posix_fadvise(descriptor, start, choose.randrange(MIB), os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(path: Path, leave_bytes: int = 0) -> Path:
    """Take all room of the file system of `path` but `leave_bytes`; the file that has it."""
    junk = path / "junk"
    with junk.open("wb") as file:
        size, step = 0, MIB
        while step >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, step)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2
            else:
                size += step
        file.truncate(max(size - leave_bytes, 0))
        os.fsync(file.fileno())
    return junk


def use_up_inodes(path: Path) -> list[Path]:
    """Make empty files until there can be no other; the files."""
    made: list[Path] = []
    while True:
        try:
            (path / f"empty-{len(made)}").touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return made
        made.append(path / f"empty-{len(made)}")


@contextmanager
def volume(
    ram: Path, name: str, size_bytes: int, *, options: str = "commit=1", make: tuple[str, ...] = ()
) -> Iterator[Volume]:
    """A new mounted volume below `ram` until the end of the block.

    Args:
        ram: where the image and the mount point are made; a `memory` for speed.
        name: of the mount point.
        size_bytes: of the device, ext4's own structures included.
        options: of the mount.
        make: more options of mkfs.ext4.
    """
    image, path = ram / f"{name}.image", ram / name
    with image.open("wb") as file:
        file.truncate(size_bytes)
    path.mkdir()
    run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,nodiscard", *make, image)
    made = Volume(image, path, options)
    made.mount()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def restarts_of_the_kernel(directory: Path) -> Iterator[Path]:
    """A file whose content is the boot id that everybody in these mounts reads.

    A power cut is also a restart of the machine; write another id to have had one.
    """
    pretended = directory / "boot_id"
    pretended.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    run("mount", "--bind", pretended, _BOOT_ID)
    try:
        yield pretended
    finally:
        run("umount", "--lazy", _BOOT_ID)
