"""A disk that records what is asked of it, fails when told to, waits when told to, loses power.

It stands behind the same protocol as the real one and uses the real one for the bytes. A sync is
only noted, which makes tests fast. The disk knows which bytes were not synced, so `lose_power` can
copy the directories as a power cut would leave them.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bookie.env import DiskUsage, PosixDisk
from bookie.env.disk import Buffer, PosixFile

HOLD_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what, on which path, and at which offset if it was a write."""

    name: str
    path: str
    offset: int = 0
    size: int = 0
    in_place: bool = False


@dataclass(slots=True)
class Fault:
    """An error for calls of `name` on paths that contain `part`, after `passes` good ones.

    Paths that contain `but_not` are spared; `struck` counts the calls that failed.
    """

    name: str
    part: str
    errno: int
    passes: int
    times: int
    but_not: str = "\0"
    struck: int = 0

    def strikes(self, name: str, path: str) -> bool:
        """True if this call fails."""
        if self.times <= 0 or name != self.name or self.part not in path or self.but_not in path:
            return False
        if self.passes:
            self.passes -= 1
            return False
        self.times -= 1
        self.struck += 1
        return True


@dataclass(slots=True)
class Hold:
    """A gate before calls of `name` on paths that contain `part`."""

    name: str
    part: str
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def wait_reached(self) -> None:
        """Until somebody stands before the gate; the caller's thread may be the event loop's."""
        assert self.reached.wait(HOLD_SECONDS_MAX), f"nobody called {self.name}"

    def release(self) -> None:
        """Open the gate for good."""
        self.opened.set()

    def pass_through(self) -> None:
        """Stand before the gate until it is open."""
        if not self.opened.is_set():
            self.reached.set()
            assert self.opened.wait(HOLD_SECONDS_MAX), "nobody released the hold"


@dataclass(frozen=True, slots=True)
class _Overwritten:
    offset: int
    before: bytes
    size_before: int


class FaultyFile:
    """An open file of a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, file: PosixFile, path: str) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        disk.opened(self)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write; a fault here leaves the first half written, as a real device may."""
        size = sum(map(len, buffers))
        try:
            self._disk.called(Call("pwritev", self.path, offset, size))
        except OSError:
            data = b"".join(buffers)
            self._disk.remember(self.path, self._file, offset, size)
            self._file.pwritev([data[: len(data) // 2]], offset)
            raise
        self._disk.remember(self.path, self._file, offset, size)
        return self._file.pwritev(buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        """Read."""
        self._disk.called(Call("pread", self.path, offset, size))
        return self._file.pread(size, offset)

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        """Read if in memory, unless the disk was told to be cold."""
        self._disk.called(Call("pread_cached", self.path, offset, size))
        return None if self._disk.cold else self._file.pread_cached(size, offset)

    def prefetch(self, size: int, offset: int) -> None:
        """Take note."""
        self._disk.called(Call("prefetch", self.path, offset, size))
        self._file.prefetch(size, offset)

    def pread_uncached(self, size: int, offset: int) -> Buffer:
        """Read from the device."""
        self._disk.called(Call("pread_uncached", self.path, offset, size))
        return self._file.pread_uncached(size, offset)

    def fdatasync(self, *, in_place: bool = False) -> None:
        """Take note; nothing here has to outlive the machine."""
        self._disk.called(Call("fdatasync", self.path, in_place=in_place))
        self._disk.synced(self.path)

    def size(self) -> int:
        """Size."""
        return self._file.size()

    def allocate(self, offset: int, size: int) -> None:
        """Reserve."""
        self._disk.called(Call("allocate", self.path, offset, size))
        self._file.allocate(offset, size)

    def truncate(self, size: int) -> None:
        """Cut."""
        self._disk.called(Call("truncate", self.path, size))
        self._file.truncate(size)

    def drop_cache(self) -> None:
        """Take note."""
        self._disk.called(Call("drop_cache", self.path))
        self._disk.synced(self.path)

    def forget(self, offset: int, size: int) -> None:
        """Take note."""
        self._disk.called(Call("forget", self.path, offset, size))
        self._file.forget(offset, size)

    def close(self) -> None:
        """Close."""
        self._disk.called(Call("close", self.path))
        self._file.close()


class FaultyDisk:
    """The real disk with a log, faults, gates and a memory of what was synced."""

    def __init__(self) -> None:
        self._disk = PosixDisk()
        self.calls: list[Call] = []
        self.cold = False
        """True if the page cache never has anything."""
        self.free_bytes: int | None = None
        """The free bytes that `usage` reports; None for the truth."""
        self._faults: list[Fault] = []
        self._holds: list[Hold] = []
        self._unsynced: dict[str, list[_Overwritten]] = {}
        self._unsynced_names: dict[str, str] = {}
        self._files: weakref.WeakSet[FaultyFile] = weakref.WeakSet()

    # --- for the test --------------------------------------------------------------------

    def fail(
        self,
        name: str,
        part: str,
        errno: int,
        *,
        passes: int = 0,
        times: int = 1,
        but_not: str = "\0",
    ) -> Fault:
        """Fail calls of `name` on paths that contain `part`; returns the armed fault."""
        fault = Fault(name, part, errno, passes, times, but_not)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def hold(self, name: str, part: str) -> Hold:
        """Make calls of `name` on paths that contain `part` wait until the hold is released."""
        hold = Hold(name, part)
        self._holds.append(hold)
        return hold

    def names_called(self, part: str) -> list[str]:
        """The names of the calls on paths that contain `part`, in order."""
        return [call.name for call in self.calls if part in call.path]

    def lose_power(self, root: Path, copy: Path, kept: int = 0) -> None:
        """Copy `root` as it would be found after a power cut now: what is not synced is gone.

        The device may have written some of it by itself, in any order: bit n of `kept` keeps every
        eighth unsynced write, the nth first.
        """
        shutil.copytree(root, copy, copy_function=copy_if_there)
        for path, changes in self._unsynced.items():
            target = _moved(path, root, copy)
            if target is None or not target.exists():
                continue
            with target.open("r+b") as file:
                for number, change in reversed(list(enumerate(changes))):
                    if kept >> number % 8 & 1:
                        continue
                    file.seek(change.offset)
                    file.write(change.before)
                    if not kept:
                        file.truncate(change.size_before)
        for new, old in self._unsynced_names.items():
            target = _moved(new, root, copy)
            if target is not None and target.exists():
                if old:
                    target.rename(target.with_name(Path(old).name))
                else:
                    target.unlink()

    # --- for the files -------------------------------------------------------------------

    def called(self, call: Call) -> None:
        """Log the call, wait at a gate, fail if told to."""
        self.calls.append(call)
        for hold in self._holds:
            if call.name == hold.name and hold.part in call.path:
                hold.pass_through()
        for fault in self._faults:
            if fault.strikes(call.name, call.path):
                raise OSError(fault.errno, os.strerror(fault.errno), call.path)

    def remember(self, path: str, file: PosixFile, offset: int, size: int) -> None:
        """The bytes at the place of the next write."""
        before = _Overwritten(offset, file.pread(size, offset), file.size())
        self._unsynced.setdefault(path, []).append(before)

    def opened(self, file: FaultyFile) -> None:
        """Follow the file when it is renamed."""
        self._files.add(file)

    def synced(self, path: str) -> None:
        """Everything in the file is durable."""
        self._unsynced.pop(path, None)

    # --- the protocol --------------------------------------------------------------------

    def create(self, path: str, allocate_bytes: int) -> FaultyFile:
        """Create."""
        self.called(Call("create", path, size=allocate_bytes))
        self._unsynced_names[path] = ""
        return FaultyFile(self, self._disk.create(path, allocate_bytes), path)

    def open(self, path: str, *, writable: bool = False) -> FaultyFile:
        """Open."""
        self.called(Call("open", path))
        return FaultyFile(self, self._disk.open(path, writable=writable), path)

    def names(self, directory: str) -> list[str]:
        """List."""
        return self._disk.names(directory)

    def rename(self, source: str, target: str) -> None:
        """Rename."""
        self.called(Call("rename", target))
        self._disk.rename(source, target)
        self._unsynced_names.pop(source, None)
        self._unsynced_names[target] = source
        for file in self._files:
            if file.path == source:
                file.path = target
        if source in self._unsynced:
            self._unsynced[target] = self._unsynced.pop(source)

    def unlink(self, path: str) -> None:
        """Unlink."""
        self.called(Call("unlink", path))
        self._disk.unlink(path)

    def make_directory(self, path: str) -> None:
        """Make."""
        self._disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        """Take note."""
        self.called(Call("sync_directory", path))
        for name in [name for name in self._unsynced_names if os.path.dirname(name) == path]:
            del self._unsynced_names[name]

    def lock(self, path: str) -> PosixFile:
        """Lock."""
        self.called(Call("lock", path))
        return self._disk.lock(path)

    def usage(self, directory: str) -> DiskUsage:
        """Sizes."""
        usage = self._disk.usage(directory)
        if self.free_bytes is None:
            return usage
        return DiskUsage(usage.total_bytes, self.free_bytes, usage.device)


def copy_if_there(source: str, target: str) -> None:
    """Copy a file, which another thread may be about to remove."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _moved(path: str, root: Path, copy: Path) -> Path | None:
    try:
        return copy / Path(path).relative_to(root)
    except ValueError:
        return None
