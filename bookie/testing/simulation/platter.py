"""A simulated device: its contents, its names, and changes that are not durable yet.

An `Image` is a frozen picture of a whole file system. Of each file it keeps the bytes on the device
(`durable`) and the operations since the last sync in their order. It also keeps the bytes that the
page cache started from (`base`); these differ only after a failed sync. Of the directories it keeps
the durable names and the operations since. Pictures share everything that did not change, so that
thousands are cheap.

`power_cut` makes the image that a machine may find after it lost its power, by these rules:

* Of the unsynced operations on one file any may have reached the device: the first few, or any
  others. A write may be there in part, in sectors of 512 bytes; its last sector may be torn inside.
* A file may have grown to a size whose bytes never came. They are zeros, or garbage that stood on
  the device before: above all the bytes of other files, present or gone.
* A sync of a file makes its bytes and its size durable, but its name stays as it was.
* Of the unsynced operations on names either the first few are there, as a journaling file system
  writes them in order; or any of them. One that needs another only comes with it.

A *kill* is simpler: it leaves the page cache and all names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

SECTOR = 512
ROOT = 0
"""The number of the root directory."""

GARBAGE_BYTES_MAX = 64 * 1024

FORMER_MAX = 8
"""The device remembers so many deleted files, and older states of a file."""


class Table:
    """The pairs of one table of a key-value store; never changed once they are committed."""

    __slots__ = ("_order", "rows")

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows = rows
        self._order: list[bytes] | None = None

    def order(self) -> list[bytes]:
        """The keys, ascending."""
        if self._order is None or len(self._order) != len(self.rows):
            self._order = sorted(self.rows)
        return self._order

    def changed(self) -> None:
        """Note that the keys have changed."""
        self._order = None


Tables: TypeAlias = dict[str, Table]
"""A committed state of a key-value store; never changed once it is one."""


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size, by allocation or truncation; new room is zeros unless it is `filled`."""

    size: int
    filled: bytes = b""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A transaction of a key-value store on its way; all of it is there or nothing."""

    tables: Tables


Operation: TypeAlias = FileWrite | Resize | TableCommit


@dataclass(frozen=True, slots=True)
class Content:
    """One file. `tables` is set instead of bytes for the file of a key-value store."""

    durable: bytes = b""
    base: bytes = b""
    pending: tuple[Operation, ...] = ()
    tables: Tables | None = None
    earlier: tuple[bytes, ...] = ()
    """Older states on the device, oldest first: a sector may come back from there."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """One operation on a directory: `name` now means `inode`, or nothing; a rename frees `former`.

    `made` is set when the inode is a directory that comes into being.
    """

    directory: int
    name: str
    inode: int | None
    former: str = ""
    moved: int = -1
    """The inode that a rename moves or a removal frees."""


Names: TypeAlias = dict[int, dict[str, int]]
"""Directory → name → inode; a directory is an inode with an entry here."""


@dataclass(frozen=True, slots=True)
class Image:
    """A whole file system at one moment."""

    contents: dict[int, Content] = field(default_factory=dict)
    directories: frozenset[int] = frozenset({ROOT})
    names: Names = field(default_factory=lambda: {ROOT: {}})
    """The durable names."""
    changes: tuple[NameChange, ...] = ()
    """Operations on names since, in order."""
    next_inode: int = 1
    former: tuple[bytes, ...] = ()
    """Bytes of deleted files that the device still holds."""

    @property
    def is_settled(self) -> bool:
        return not self.changes and not any(item.pending for item in self.contents.values())


def apply(data: bytearray, operation: Operation) -> None:
    """Apply `operation` to the bytes of a file."""
    if isinstance(operation, FileWrite):
        end = operation.offset + len(operation.data)
        if len(data) < operation.offset:
            data.extend(bytes(operation.offset - len(data)))
        data[operation.offset : end] = operation.data
    elif isinstance(operation, Resize):
        if operation.size < len(data):
            del data[operation.size :]
        else:
            data.extend(operation.filled[: operation.size - len(data)])
            data.extend(bytes(operation.size - len(data)))


def cached(content: Content) -> bytes:
    """The bytes as the page cache shows them."""
    if not content.pending:
        return content.base
    data = bytearray(content.base)
    for operation in content.pending:
        apply(data, operation)
    return bytes(data)


def rename(names: Names, change: NameChange) -> None:
    """Apply `change` to `names`, which own their inner dictionaries."""
    entries = names.setdefault(change.directory, {})
    if change.former:
        entries.pop(change.former, None)
    if change.inode is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.inode


def live_names(image: Image) -> Names:
    """The names as a running process sees them."""
    names = {number: dict(image.names.get(number, {})) for number in sorted(image.directories)}
    for change in image.changes:
        rename(names, change)
    return names


# --- crashes ------------------------------------------------------------------------------------


def kill(image: Image, choose: random.Random | None = None) -> Image:
    """The image that a killed process leaves to the next: everything that it wrote.

    A commit on its way is kept or not.
    """
    contents = image.contents
    for number, content in image.contents.items():
        if content.pending and isinstance(content.pending[-1], TableCommit):
            kept = choose is None or choose.random() < 0.5
            tables = content.pending[-1].tables if kept else content.tables
            contents = {**contents, number: replace(content, pending=(), tables=tables)}
    return replace(image, contents=contents)


def tear_last_write(image: Image, inode: int, share: float) -> Image:
    """The image with only the first part of the last write to a file: killed inside the call."""
    content = image.contents[inode]
    if not content.pending:
        return image
    last = content.pending[-1]
    if not isinstance(last, FileWrite):
        return replace(
            image,
            contents={**image.contents, inode: replace(content, pending=content.pending[:-1])},
        )
    part = FileWrite(last.offset, last.data[: int(len(last.data) * share)])
    torn = replace(content, pending=(*content.pending[:-1], part))
    return replace(image, contents={**image.contents, inode: torn})


class Cut:
    """The decisions of one power cut about unsynced operations."""

    def __init__(self, choose: random.Random, kept: str = "any") -> None:
        """`kept` is ``nothing``, ``everything``, ``prefix``, ``sectors`` or ``any`` of them."""
        self.choose = choose
        if kept == "any":
            kept = choose.choice(("prefix", "sectors", "sectors", "nothing", "everything"))
        self.kept = kept
        self.garbage = choose.random() < 0.3
        self.names_in_order = choose.random() < 0.5

    def garbage_of(self, others: Sequence[bytes]) -> bytes:
        """Garbage in new room of a file: old bytes of `others` from a sector on, or anything."""
        if others and self.choose.random() < 0.7:
            old = self.choose.choice(others)
            start = self.choose.randrange(len(old) // SECTOR) * SECTOR
            return old[start : start + GARBAGE_BYTES_MAX]
        return self.choose.randbytes(SECTOR)

    def operations(self, pending: tuple[Operation, ...]) -> Iterator[Operation]:
        """The part of `pending` that reached the device, in order."""
        choose = self.choose
        if self.kept == "nothing":
            return
        if self.kept == "everything":
            yield from pending
            return
        if self.kept == "prefix":
            count = choose.randint(0, len(pending))
            yield from pending[:count]
            if count < len(pending) and isinstance(pending[count], FileWrite):
                yield from self._torn(pending[count])
            return
        for operation in pending:
            if isinstance(operation, FileWrite):
                yield from self._sectors(operation)
            elif choose.random() < 0.5:
                yield operation

    def _torn(self, write: Operation) -> Iterator[Operation]:
        """The first part of a write; the device or the file system stopped anywhere."""
        assert isinstance(write, FileWrite)
        length = self.choose.randint(0, len(write.data))
        if self.choose.random() < 0.7:
            length -= length % SECTOR
        if length:
            yield FileWrite(write.offset, write.data[:length])
        if self.choose.random() < 0.3:
            yield _Grow(write.offset + len(write.data))

    def _sectors(self, write: FileWrite) -> Iterator[Operation]:
        """Some sectors of a write, each with its own probability of the write."""
        choose = self.choose
        share = choose.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))
        start = write.offset
        end = start + len(write.data)
        if choose.random() < 0.3:
            yield _Grow(end)
        at = start
        while at < end:
            following = min((at // SECTOR + 1) * SECTOR, end)
            if choose.random() < share:
                yield FileWrite(at, write.data[at - start : following - start])
            at = following

    def changes(self, changes: tuple[NameChange, ...]) -> Iterator[NameChange]:
        """The operations on names that reached the device."""
        if self.kept == "nothing":
            return
        if self.kept == "everything":
            yield from changes
            return
        if self.names_in_order or self.kept == "prefix":
            yield from changes[: self.choose.randint(0, len(changes))]
            return
        missing_names: set[tuple[int, str]] = set()
        missing_inodes: set[int] = set()
        for change in changes:
            names = {(change.directory, change.name), (change.directory, change.former)}
            inodes = {change.moved, change.directory, -1 if change.inode is None else change.inode}
            needs = names & missing_names or (inodes - {-1}) & missing_inodes
            if needs or self.choose.random() < 0.5:
                missing_names |= names - {(change.directory, "")}
                missing_inodes |= {change.moved, change.inode or -1} - {-1}
            else:
                yield change


@dataclass(frozen=True, slots=True)
class _Grow(Resize):
    """A size that came without its bytes; they are zeros or garbage, which begins at a sector."""


def _reached(number: int, image: Image, cut: Cut) -> Content:
    """One file after the cut."""
    content = image.contents[number]
    if not content.pending:
        return replace(content, base=content.durable)
    data, tables = bytearray(content.durable), content.tables
    for operation in cut.operations(content.pending):
        if isinstance(operation, TableCommit):
            tables = operation.tables
        if isinstance(operation, _Grow):
            grown = operation.size - len(data)
            if grown <= 0:
                continue
            if cut.garbage:
                garbage = cut.garbage_of(_of_others(number, image))
                begin = len(data) % SECTOR
                repeated = garbage * ((begin + grown) // len(garbage) + 1)
                data.extend(repeated[begin : begin + grown])
                continue
        apply(data, operation)
    durable = bytes(data)
    earlier = (*content.earlier, content.durable)[-FORMER_MAX:]
    return Content(durable, durable, (), tables, earlier)


def _of_others(number: int, image: Image) -> list[bytes]:
    """The bytes of other files on the device, deleted ones included."""
    others = [
        content.durable
        for other, content in image.contents.items()
        if other != number and content.tables is None
    ]
    return [old for old in (*others, *image.former) if len(old) >= SECTOR]


def power_cut(image: Image, cut: Cut) -> Image:
    """A state that the device may have after a power cut in the state `image`."""
    names = {number: dict(entries) for number, entries in image.names.items()}
    for change in cut.changes(image.changes):
        rename(names, change)
    contents: dict[int, Content] = {}
    found: Names = {}
    waiting = [ROOT]
    while waiting:
        directory = waiting.pop()
        found[directory] = names.get(directory, {})
        for inode in found[directory].values():
            if inode in image.directories:
                waiting.append(inode)
            else:
                contents[inode] = _reached(inode, image, cut)
    gone = [
        content.durable
        for number, content in image.contents.items()
        if number not in contents and len(content.durable) >= SECTOR and content.tables is None
    ]
    former = (*image.former, *gone)[-FORMER_MAX:]
    return Image(contents, image.directories, found, (), image.next_inode, former)
