"""A key-value store on a simulated disk, with the promises and the failures of LMDB.

The content of the store is a Python object that belongs to the file ``data.mdb``. A read
transaction sees the content at its start, and a commit replaces the content. A commit is durable
when it returns; a crash before that leaves the old or the new content. As with LMDB, the first
pages and the name of a new file are written without a sync, and the first commit makes them
durable.

Source: the system calls of LMDB 0.9 when it opens, commits and fails.
"""

from __future__ import annotations

import errno
import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from bookie.env import KeyValueStore
from bookie.errors import CorruptionError, DiskFullError, StorageFailedError
from bookie.testing.simulation.disk import Inode, SimulatedDisk, store_bytes
from bookie.testing.simulation.platter import FileWrite, Table, Tables

FIRST_PAGES = b"meta page of lmdb".ljust(8192, b"\x01")
"""The bytes that represent LMDB's two meta pages; a file with other first bytes is not a store."""


class SimulatedTransaction:
    """A snapshot of the store; a write transaction also sees its own changes."""

    __slots__ = ("_mine", "tables")

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._mine: set[str] = set()

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables[table].rows.get(key)

    def range(
        self, table: str, start: bytes, stop: bytes, pairs_max: int
    ) -> list[tuple[bytes, bytes]]:
        found = self.tables[table]
        keys = found.order()
        low = bisect_left(keys, start)
        high = min(bisect_left(keys, stop, low), low + max(pairs_max, 0))
        return [(key, found.rows[key]) for key in keys[low:high]]

    def around(self, table: str, key: bytes) -> list[tuple[bytes, bytes]]:
        found = self.tables[table]
        keys = found.order()
        at = bisect_left(keys, key)
        return [(near, found.rows[near]) for near in keys[max(at - 1, 0) : at + 1]]

    def count(self, table: str) -> int:
        return len(self.tables[table].rows)

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.tables[table].rows.get, keys))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._own(table).rows[key] = bytes(value)
        self.tables[table].changed()

    def put_many(self, table: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        mine = self._own(table)
        mine.rows.update((key, bytes(value)) for key, value in pairs)
        mine.changed()

    def delete(self, table: str, key: bytes) -> bool:
        mine = self._own(table)
        mine.changed()
        return mine.rows.pop(key, None) is not None

    def _own(self, table: str) -> Table:
        if table not in self._mine:
            self.tables = {**self.tables, table: Table(dict(self.tables[table].rows))}
            self._mine.add(table)
        return self.tables[table]


class SimulatedStore:
    """The open store on the simulated disk."""

    def __init__(self, disk: SimulatedDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._writing = False
        self._failed = False
        self._panicked = False

    @contextmanager
    def read(self) -> Iterator[SimulatedTransaction]:
        assert self._inode.tables is not None
        if self._panicked:
            raise StorageFailedError("the index failed: MDB_PANIC")
        self._disk.look("kv_read", self._inode.path)
        yield SimulatedTransaction(self._inode.tables)

    @contextmanager
    def write(self) -> Iterator[SimulatedTransaction]:
        """Yield a write transaction, which is durable when the block has ended without an error.

        The fault ``kv_write`` makes the write of the pages fail; with ENOSPC, the device is full.
        The fault ``kv_sync`` makes the sync of the pages fail. The fault ``kv_meta`` makes the
        write of the meta page fail; after it, nobody knows the state on the device, so reads fail,
        too. After any fault except a full device, all later write transactions fail.
        """
        assert self._inode.tables is not None
        assert not self._writing, "one writer at a time"
        if self._failed:
            raise OSError(errno.EIO, "the index failed before", self._inode.path)
        self._writing = True
        try:
            before = self._inode.tables
            transaction = SimulatedTransaction(before)
            yield transaction
            if transaction.tables is not before:
                self._commit(transaction.tables)
        finally:
            self._writing = False

    def close(self) -> None:
        """Do nothing, because nothing is left to close."""

    def _commit(self, tables: Tables) -> None:
        disk, inode = self._disk, self._inode
        more = store_bytes(tables) - store_bytes(inode.tables or {})
        try:
            # Until the meta page is written, new pages change nothing after a crash.
            disk.look("kv_write", inode.path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFullError("the index cannot grow: No space left on device") from error
            raise self._failure() from error
        fault = disk.enter("kv_sync", inode.path)
        if not disk.fits(inode, max(0, more)):
            raise DiskFullError("the index cannot grow: MDB_MAP_FULL")
        if fault is not None:
            raise self._failure()
        fault = disk.enter("kv_meta", inode.path)
        if fault is not None:
            self._panicked = True
            if fault.kind == "revert":
                # The new state reached the device despite the error.
                inode.tables = tables
            raise self._failure()
        disk.commit(inode, tables)

    def _failure(self) -> OSError:
        self._failed = True
        return OSError(errno.EIO, "the index failed: mdb_txn_commit", self._inode.path)


def open_store(disk: SimulatedDisk, directory: str, tables: tuple[str, ...]) -> KeyValueStore:
    """Open (or create) the store in `directory`, like `bookie.env.open_lmdb`.

    Raises:
        CorruptionError: the file in the directory is not a store.
    """
    for name in ("lock.mdb", "data.mdb"):
        if name not in disk.names(directory):
            disk.create(posixpath.join(directory, name), 0)
    inode = disk.inode_of(posixpath.join(directory, "data.mdb"))
    if inode.tables is None:
        if inode.data not in (b"", FIRST_PAGES):
            raise CorruptionError(f"{inode.path} cannot be opened as an index: MDB_INVALID")
        disk.enter("kv_format", inode.path)
        inode.change(FileWrite(0, FIRST_PAGES))
        disk.entered(inode)
        disk.enter("kv_tables", inode.path)
        inode.sync()
        disk.commit(inode, {name: Table({}) for name in tables})
    elif missing := [name for name in tables if name not in inode.tables]:
        raise CorruptionError(f"{inode.path} has no table {missing[0]}")
    return SimulatedStore(disk, inode)
