"""A disk in memory that implements `bookie.env.Disk`, with page cache, device, locks and faults.

The disk starts from an `Image`, and `freeze` returns its image at any moment. Each method that
changes data first calls `pause`, in which the simulation may run other threads. Then the method
calls `moments`, in which a test may examine the image. After `die`, every method fails, so that
`finally` blocks of cancelled tasks change nothing.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from bookie.env.disk import Buffer, DiskUsage
from bookie.errors import DirectoryLockedError
from bookie.testing.simulation.disk_faults import Fault, Room
from bookie.testing.simulation.platter import (
    FORMER_MAX,
    ROOT,
    SECTOR,
    Content,
    FileWrite,
    Image,
    NameChange,
    Operation,
    Resize,
    TableCommit,
    Tables,
    apply,
    cached,
    live_names,
    rename,
)


def _nothing(*_: object) -> None: ...


class Inode:
    """One file in the page cache and on the device."""

    __slots__ = ("_data", "base", "durable", "earlier", "number", "path", "pending", "tables")

    def __init__(self, number: int, path: str, content: Content) -> None:
        self.number = number
        self.path = path
        self.durable = content.durable
        self.base = content.base
        self.pending = content.pending
        self.tables = content.tables
        self.earlier = content.earlier
        self._data: bytes | bytearray = content.base if not content.pending else cached(content)

    @property
    def data(self) -> bytes | bytearray:
        return self._data

    def frozen(self) -> Content:
        """Return the file as a part of an image."""
        return Content(self.durable, self.base, self.pending, self.tables, self.earlier)

    def change(self, operation: Operation, *, forget: bool = False) -> None:
        """Apply `operation` to the cache; with `forget`, no sync writes it to the device."""
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        apply(self._data, operation)
        if forget:
            base = bytearray(self.base)
            apply(base, operation)
            self.base = bytes(base)
        else:
            self.pending = (*self.pending, operation)

    def on_device(self, operation: Operation) -> None:
        """Apply `operation` only to the device; readers see the new bytes after `drop`."""
        durable = bytearray(self.durable)
        apply(durable, operation)
        self.durable = bytes(durable)

    def astray(self, offset: int, data: bytes) -> None:
        """Apply to the device a write that was meant for another place; never grow the file."""
        start, stop = max(offset, 0), min(offset + len(data), len(self.durable))
        if start < stop:
            self.on_device(FileWrite(start, data[start - offset : stop - offset]))

    def sync(self) -> None:
        if not self.pending:
            return
        self.earlier = (*self.earlier, self.durable)[-FORMER_MAX:]
        if self.base is self.durable:
            self.durable = self.base = bytes(self._data)
        else:
            durable = bytearray(self.durable)
            for operation in self.pending:
                apply(durable, operation)
            self.durable, self.base = bytes(durable), bytes(self._data)
        self.pending = ()

    def lose(self, *, revert: bool) -> None:
        """Simulate a failed sync: no change stays pending, and `revert` restores the old bytes."""
        if revert:
            self._data = self.base = self.durable
        else:
            self.base = bytes(self._data)
        self.pending = ()

    def drop(self) -> None:
        """Drop the cache, so that later reads return the device's bytes."""
        self._data = self.base = self.durable


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    __slots__ = ("_disk", "inode", "locked")

    def __init__(self, disk: SimulatedDisk, inode: Inode) -> None:
        self._disk = disk
        self.inode = inode
        self.locked = False

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        inode = self.inode
        fault = self._disk.enter("pwritev", inode.path, f"{offset} {crc32(data)}")
        if fault is not None and fault.kind == "error":
            inode.change(FileWrite(offset, data[: len(data) // 2]))
            raise OSError(fault.errno, os.strerror(fault.errno), inode.path)
        fits = self._disk.fits(inode, max(0, offset + len(data) - len(inode.data)))
        if not fits:
            inode.change(FileWrite(offset, data[: len(data) // 2]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), inode.path)
        if fault is not None:
            self._disk.lied(inode.path)
        if fault is None:
            inode.change(FileWrite(offset, data))
        elif fault.kind == "lost":
            inode.change(FileWrite(offset, data), forget=True)
        elif fault.kind == "misdirected":
            inode.change(FileWrite(offset, data), forget=True)
            target = self._disk.inode_of(self._disk.lands_in(inode.path))
            target.astray(offset + fault.shift, data)
        elif fault.kind == "flip":
            where = crc32(data) % len(data)
            flipped = data[:where] + bytes([data[where] ^ 0x10]) + data[where + 1 :]
            inode.change(FileWrite(offset, flipped))
        self._disk.entered(inode)
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.look("pread", self.inode.path)
        return bytes(self.inode.data[offset : offset + size])

    def pread_cached(self, size: int, offset: int) -> bytes | None:
        if self._disk.cold():
            return None
        self._disk.look("pread_cached", self.inode.path)
        data = bytes(self.inode.data[offset : offset + size])
        return data if len(data) == size else None

    def prefetch(self, size: int, offset: int) -> None:
        """Do nothing, because all bytes of this disk are equally fast."""

    def pread_uncached(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def fdatasync(self, *, in_place: bool = False) -> None:
        inode = self.inode
        fault = self._disk.enter("fdatasync", inode.path)
        if fault is not None:
            inode.lose(revert=fault.kind == "revert")
            raise OSError(fault.errno, os.strerror(fault.errno), inode.path)
        self._disk.sync_file(inode)

    def size(self) -> int:
        self._disk.look("size", self.inode.path)
        return len(self.inode.data)

    def allocate(self, offset: int, size: int) -> None:
        """Extend the file; the new bytes are zeros, or old bytes of the device."""
        inode = self.inode
        fault = self._disk.enter("allocate", inode.path, f"{offset} {size}")
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), inode.path)
        more = max(0, offset + size - len(inode.data))
        if not self._disk.fits(inode, more):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), inode.path)
        if more:
            inode.change(Resize(offset + size, self._disk.left_in_room(inode, more)))
            self._disk.entered(inode)

    def truncate(self, size: int) -> None:
        fault = self._disk.enter("truncate", self.inode.path, str(size))
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), self.inode.path)
        self.inode.change(Resize(size))
        self._disk.entered(self.inode)

    def drop_cache(self) -> None:
        fault = self._disk.enter("drop_cache", self.inode.path)
        if fault is not None:
            self.inode.lose(revert=fault.kind == "revert")
            raise OSError(fault.errno, os.strerror(fault.errno), self.inode.path)
        if self._disk.sync_files:
            self.inode.sync()
            self.inode.drop()

    def forget(self, offset: int, size: int) -> None:
        """Drop the cache of the whole file, unless the file has unsynced changes."""
        self._disk.look("forget", self.inode.path)
        if not self.inode.pending:
            self.inode.drop()

    def close(self) -> None:
        if self.locked:
            self._disk.locks.discard(self.inode.path)


@dataclass(slots=True)
class SimulatedDisk:
    """A disk in memory with page cache, device, locks and faults."""

    image: Image = field(default_factory=Image)
    rooms: tuple[Room, ...] = (Room(""),)
    moments: Callable[[str, str], None] = _nothing
    """Called with the call's name and the path, before each call that changes data."""
    inside: Callable[[str, str, int], None] = _nothing
    """Called with the call's name, path and inode in the middle of each write."""
    pause: Callable[[], None] = _nothing
    block: Callable[[float], None] = _nothing
    """Makes the calling thread wait for this number of seconds."""
    note: Callable[[str], None] = _nothing
    lied: Callable[[str], None] = _nothing
    """Called when a write is lost or corrupted without an error."""
    lands_in: Callable[[str], str] = str
    """Returns the file in which a misdirected write to a path ends up."""
    old_room: random.Random | None = None
    """If set, newly allocated space contains older bytes; if None, it contains zeros."""
    refused: int = 0
    """The number of calls for which the device had no room."""
    cold: Callable[[], bool] = bool
    """Returns True if the next cached read misses the page cache."""
    faults: list[Fault] = field(default_factory=list)
    sync_files: bool = True
    """False for a device that falsely reports syncs as done."""
    sync_directories: bool = True
    locks: set[str] = field(default_factory=set)
    calls: int = 0
    dead: bool = False
    _names: dict[int, dict[str, int]] = field(init=False)
    _inodes: dict[int, Inode] = field(init=False, default_factory=dict)
    _durable_names: dict[int, dict[str, int]] = field(init=False)
    _changes: tuple[NameChange, ...] = field(init=False)
    _directories: frozenset[int] = field(init=False)
    _next: int = field(init=False)

    def __post_init__(self) -> None:
        self._names = live_names(self.image)
        self._durable_names = self.image.names
        self._changes = self.image.changes
        self._directories = self.image.directories
        self._next = self.image.next_inode

    # --- for the simulation --------------------------------------------------------------

    def freeze(self) -> Image:
        contents = dict(self.image.contents)
        for number, inode in self._inodes.items():
            contents[number] = inode.frozen()
        return Image(
            contents,
            self._directories,
            self._durable_names,
            self._changes,
            self._next,
            self.image.former,
        )

    def die(self) -> None:
        """Make all later calls fail, because the process is dead."""
        self.dead = True

    def fail(self, name: str, part: str, kind: str = "error", **more: int | float) -> Fault:
        fault = Fault(name, part, kind, **more)  # type: ignore[arg-type]  # the fields' own types
        self.faults.append(fault)
        return fault

    def look(self, name: str, path: str) -> None:
        """Begin a call that only reads: raise an error after `die`; for a fault, raise or stall."""
        if self.dead:
            raise OSError(errno.EIO, "the process is dead", path)
        for fault in self.faults:
            if fault.strikes(name, path):
                if fault.kind == "stall":
                    self.block(fault.seconds)
                else:
                    raise OSError(fault.errno, os.strerror(fault.errno), path)

    def enter(self, name: str, path: str, detail: str = "") -> Fault | None:
        """Begin a call that changes data; return the fault that the call must simulate, or None."""
        if self.dead:
            raise OSError(errno.EIO, "the process is dead", path)
        self.calls += 1
        self.note(f"{name} {path} {detail}")
        self.pause()
        self.moments(name, path)
        if self.dead:
            raise OSError(errno.EIO, "the process is dead", path)
        for fault in self.faults:
            if fault.strikes(name, path):
                if fault.kind != "stall":
                    return fault
                self.block(fault.seconds)
        return None

    def entered(self, inode: Inode) -> None:
        """Call `inside` and `pause`, between a change of the cache and the end of the call."""
        self.inside("change", inode.path, inode.number)
        self.pause()

    def sync_file(self, inode: Inode) -> None:
        if self.sync_files:
            inode.sync()
        self.pause()

    def fits(self, inode: Inode, more: int) -> bool:
        """True if the file's device has room for `more` bytes; otherwise count the refusal."""
        room = self._room(inode.path)
        fits = more == 0 or self._used(room) + more <= room.total_bytes
        self.refused += not fits
        return fits

    def left_in_room(self, owner: Inode, size: int) -> bytes:
        """Return the old bytes in newly allocated space, often of another or a deleted file.

        Bytes of the file `owner` are never used. An old block of the same file would look like a
        misplaced write, which the bookie must not accept as the result of a crash.
        """
        choose = self.old_room
        if choose is None or choose.random() < 0.3:
            return b""
        used = [inode.durable for inode in self._inodes.values() if inode is not owner]
        unread = [
            item for number, item in self.image.contents.items() if number not in self._inodes
        ]
        others = [*used, *(item.durable for item in unread), *self.image.former]
        others = [old for old in others if len(old) >= SECTOR]
        if not others:
            return b""
        old = choose.choice(others)
        start = choose.choice((0, choose.randrange(len(old) // SECTOR) * SECTOR))
        return old[start : start + size]

    def inode_of(self, path: str) -> Inode:
        """Return the file at `path`.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        directory, name = posixpath.split(path)
        number = self._names[self._directory(directory)].get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._inode(number, path)

    def paths(self, directory: str = "/") -> list[str]:
        found = []
        for name, number in sorted(self._names[self._directory(directory)].items()):
            path = posixpath.join(directory, name)
            found += self.paths(path) if number in self._directories else [path]
        return found

    def commit(self, inode: Inode, tables: Tables) -> None:
        """Make a new state of a key-value store durable; a crash keeps the new or the old state."""
        before = inode.pending
        inode.pending = (*before, TableCommit(tables))
        self.inside("commit", inode.path, inode.number)
        self.pause()
        if self.dead:
            raise OSError(errno.EIO, "the process is dead", inode.path)
        inode.pending = before
        inode.tables = tables

    def forgets(self, path: str, operation: Operation) -> None:
        """Apply `operation` as damage to a file's bytes on the device; drop the file's cache."""
        inode = self.inode_of(path)
        inode.on_device(operation)
        inode.drop()

    # --- the protocol --------------------------------------------------------------------

    def create(self, path: str, allocate_bytes: int) -> SimulatedFile:
        fault = self.enter("create", path, str(allocate_bytes))
        directory, name = posixpath.split(path)
        parent = self._directory(directory)
        room = self._room(path)
        full = allocate_bytes and self._used(room) + allocate_bytes > room.total_bytes
        if full or fault is not None:
            self.refused += fault is None
            number = errno.ENOSPC if fault is None else fault.errno
            raise OSError(number, os.strerror(number), path)
        number = self._names[parent].get(name, -1)
        if number < 0:
            number = self._next
            self._next += 1
            self._inodes[number] = Inode(number, path, Content())
            self._rename(NameChange(parent, name, number))
        inode = self._inode(number, path)
        if len(inode.data):
            inode.change(Resize(0))
        if allocate_bytes:
            inode.change(Resize(allocate_bytes, self.left_in_room(inode, allocate_bytes)))
        self.entered(inode)
        return SimulatedFile(self, inode)

    def open(self, path: str, *, writable: bool = False) -> SimulatedFile:
        self.look("open", path)
        return SimulatedFile(self, self.inode_of(path))

    def names(self, directory: str) -> list[str]:
        self.look("names", directory)
        return sorted(self._names[self._directory(directory)])

    def rename(self, source: str, target: str) -> None:
        fault = self.enter("rename", target, source)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), target)
        directory, name = posixpath.split(target)
        parent = self._directory(directory)
        former = posixpath.basename(source)
        number = self._names[parent].get(former)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        replaced = self._names[parent].get(name, -1)
        self._rename(NameChange(parent, name, number, former, replaced))
        for inode in self._inodes.values():
            if inode.path == source or inode.path.startswith(source + "/"):
                inode.path = target + inode.path.removeprefix(source)
        self.pause()

    def unlink(self, path: str) -> None:
        fault = self.enter("unlink", path)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), path)
        directory, name = posixpath.split(path)
        parent = self._directory(directory)
        number = self._names[parent].get(name)
        if number is not None:
            self._rename(NameChange(parent, name, None, "", number))
            self.pause()

    def make_directory(self, path: str) -> None:
        parent, name = posixpath.split(path)
        if self._find(path) is not None:
            self.sync_directory(parent)
            return
        self.make_directory(parent)
        fault = self.enter("mkdir", path)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), path)
        number = self._next
        self._next += 1
        self._directories |= {number}
        self._names[number] = {}
        self._rename(NameChange(self._directory(parent), name, number))
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        fault = self.enter("sync_directory", path)
        directory = self._directory(path)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), path)
        if not self.sync_directories:
            return
        durable = {number: dict(entries) for number, entries in self._durable_names.items()}
        durable[directory] = dict(self._names[directory])
        self._durable_names = durable
        self._changes = tuple(item for item in self._changes if item.directory != directory)
        self.pause()

    def lock(self, path: str) -> SimulatedFile:
        if path in self.locks:
            raise DirectoryLockedError(
                f"another process uses {posixpath.dirname(path)}; stop it first"
            )
        directory, name = posixpath.split(path)
        if name not in self._names[self._directory(directory)]:
            self.create(path, 0)
        self.locks.add(path)
        file = SimulatedFile(self, self.inode_of(path))
        file.locked = True
        return file

    def usage(self, directory: str) -> DiskUsage:
        self.look("usage", directory)
        room = self._room(directory)
        free = max(0, room.total_bytes - self._used(room))
        return DiskUsage(room.total_bytes, free, self.rooms.index(room))

    # --- inside --------------------------------------------------------------------------

    def _rename(self, change: NameChange) -> None:
        self._changes = (*self._changes, change)
        rename(self._names, change)

    def _inode(self, number: int, path: str) -> Inode:
        inode = self._inodes.get(number)
        if inode is None:
            inode = Inode(number, path, self.image.contents[number])
            self._inodes[number] = inode
        return inode

    def _find(self, path: str) -> int | None:
        number = ROOT
        for name in path.strip("/").split("/"):
            if not name:
                continue
            following = self._names[number].get(name)
            if following is None or following not in self._directories:
                return None
            number = following
        return number

    def _directory(self, path: str) -> int:
        number = self._find(path)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return number

    def _room(self, path: str) -> Room:
        if len(self.rooms) == 1:
            return self.rooms[0]
        return next(room for room in self.rooms if path.startswith(room.prefix))

    def _used(self, room: Room) -> int:
        used, left = 0, [(ROOT, "/")]
        while left:
            directory, parent = left.pop()
            for name, number in self._names[directory].items():
                path = f"{parent}{name}"
                if number in self._directories:
                    left.append((number, f"{path}/"))
                elif self._room(path) is room:
                    inode = self._inode(number, path)
                    used += len(inode.data)
                    if inode.tables:
                        used += store_bytes(inode.tables)
        return used


def store_bytes(tables: Tables) -> int:
    """Return the approximate size in bytes of a key-value store's state on the device."""
    pairs = [pair for table in tables.values() for pair in table.rows.items()]
    return 32 * 1024 + 2 * sum(len(key) + len(value) for key, value in pairs)
