"""Images of a simulated file system, with changes that are not durable yet, and crashes.

An `Image` is a frozen copy of a whole file system. For each file, an image has the bytes on the
device (`durable`), and in order the operations since the last sync (`pending`). An image also has
the bytes of the page cache before these operations (`base`), which differ from `durable` only after
a failed sync or a lost write. For each directory, an image has the durable names and the operations
since the last sync. Images share all unchanged parts, so that thousands of images are cheap.

`power_cut` returns an image that may remain after a power loss, by these rules:

* Of the unsynced operations on a file, any subset may have reached the device. Of a write, only
  some sectors of 512 bytes may have reached the device; the last sector may be torn.
* A file may have its new size, although not all new bytes reached the device. The missing bytes are
  zeros, or garbage, mostly old bytes of other files.
* A sync of a file makes its bytes and its size durable, but not its name.
* Of the unsynced operations on names, either the first few took effect, as in a journaling file
  system, or any subset. An operation that needs an earlier operation takes effect only if the
  earlier operation took effect.

After a *kill*, the page cache and all names survive.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

SECTOR = 512
ROOT = 0

GARBAGE_BYTES_MAX = 64 * 1024

FORMER_MAX = 8
"""The number of deleted files, and of older states of a file, that the device remembers."""


class Table:
    """The keys and values of one table of a store; a committed table never changes."""

    __slots__ = ("_order", "rows")

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows = rows
        self._order: list[bytes] | None = None

    def order(self) -> list[bytes]:
        if self._order is None or len(self._order) != len(self.rows):
            self._order = sorted(self.rows)
        return self._order

    def changed(self) -> None:
        """Record that the keys have changed, so that `order` sorts them again."""
        self._order = None


Tables: TypeAlias = dict[str, Table]
"""A committed state of a key-value store, which never changes after the commit."""


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A write of bytes at an offset of a file."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of a file's size; the new bytes begin with `filled`, and the rest are zeros."""

    size: int
    filled: bytes = b""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """An unfinished commit of a key-value store; a crash keeps the new or the old state."""

    tables: Tables


Operation: TypeAlias = FileWrite | Resize | TableCommit


@dataclass(frozen=True, slots=True)
class Content:
    """One file; the file of a key-value store has `tables` instead of bytes."""

    durable: bytes = b""
    base: bytes = b""
    pending: tuple[Operation, ...] = ()
    tables: Tables | None = None
    earlier: tuple[bytes, ...] = ()
    """Older states on the device, oldest first; a damaged sector may contain their bytes."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """One operation on a directory: `name` gets `inode`, or is removed if `inode` is None.

    A rename also removes the name `former`.
    """

    directory: int
    name: str
    inode: int | None
    former: str = ""
    moved: int = -1
    """The inode that a rename moves, or whose name this operation removes."""


Names: TypeAlias = dict[int, dict[str, int]]
"""By a directory's inode: the inode of each name in it. Every directory has an item here."""


@dataclass(frozen=True, slots=True)
class Image:
    """A whole file system at one moment."""

    contents: dict[int, Content] = field(default_factory=dict)
    directories: frozenset[int] = frozenset({ROOT})
    names: Names = field(default_factory=lambda: {ROOT: {}})
    """The durable names of all directories."""
    changes: tuple[NameChange, ...] = ()
    """The operations on names since the directories' last syncs, in order."""
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
    """Return the bytes of a file in the page cache."""
    if not content.pending:
        return content.base
    data = bytearray(content.base)
    for operation in content.pending:
        apply(data, operation)
    return bytes(data)


def rename(names: Names, change: NameChange) -> None:
    """Apply `change` to `names` in place; an image must not share the inner dictionaries."""
    entries = names.setdefault(change.directory, {})
    if change.former:
        entries.pop(change.former, None)
    if change.inode is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.inode


def live_names(image: Image) -> Names:
    """Return the names that a running process sees, including names that are not durable yet."""
    names = {number: dict(image.names.get(number, {})) for number in sorted(image.directories)}
    for change in image.changes:
        rename(names, change)
    return names


# --- crashes ------------------------------------------------------------------------------------


def kill(image: Image, choose: random.Random | None = None) -> Image:
    """Return the image after a kill of the process, with all bytes that the process wrote.

    A commit in progress at the kill is kept or dropped at random.
    """
    contents = image.contents
    for number, content in image.contents.items():
        if content.pending and isinstance(content.pending[-1], TableCommit):
            kept = choose is None or choose.random() < 0.5
            tables = content.pending[-1].tables if kept else content.tables
            contents = {**contents, number: replace(content, pending=(), tables=tables)}
    return replace(image, contents=contents)


class Cut:
    """The random decisions of one power cut: which unsynced operations survive."""

    def __init__(self, choose: random.Random, kept: str = "any") -> None:
        """`kept` is ``nothing``, ``everything``, ``prefix`` or ``sectors``; ``any`` is random."""
        self.choose = choose
        if kept == "any":
            kept = choose.choice(("prefix", "sectors", "sectors", "nothing", "everything"))
        self.kept = kept
        self.garbage = choose.random() < 0.3
        self.names_in_order = choose.random() < 0.5

    def garbage_of(self, others: Sequence[bytes]) -> bytes:
        """Return garbage for new bytes of a file: bytes of one of `others`, or random bytes."""
        if others and self.choose.random() < 0.7:
            old = self.choose.choice(others)
            start = self.choose.randrange(len(old) // SECTOR) * SECTOR
            return old[start : start + GARBAGE_BYTES_MAX]
        return self.choose.randbytes(SECTOR)

    def operations(self, pending: tuple[Operation, ...]) -> Iterator[Operation]:
        """Yield the operations in `pending`, or parts of them, that reached the device."""
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
        """Yield the first part of a write, as if the device stopped in the middle of the write."""
        assert isinstance(write, FileWrite)
        length = self.choose.randint(0, len(write.data))
        if self.choose.random() < 0.7:
            length -= length % SECTOR
        if length:
            yield FileWrite(write.offset, write.data[:length])
        if self.choose.random() < 0.3:
            yield _Grow(write.offset + len(write.data))

    def _sectors(self, write: FileWrite) -> Iterator[Operation]:
        """Yield some sectors of a write; all have the same probability, which is random."""
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
        """Yield the operations on names that reached the device."""
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
    """A growth of a file whose new bytes did not reach the device; they are zeros or garbage."""


def _reached(number: int, image: Image, cut: Cut) -> Content:
    """Return the state of one file after the power cut."""
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
    """Return the bytes of each other file on the device, including deleted files."""
    others = [
        content.durable
        for other, content in image.contents.items()
        if other != number and content.tables is None
    ]
    return [old for old in (*others, *image.former) if len(old) >= SECTOR]


def power_cut(image: Image, cut: Cut) -> Image:
    """Return an image that may remain after a power cut at the moment of `image`."""
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
