"""A sorted, transactional key-value store in a directory; the real one is LMDB.

One writer at a time, any number of readers, each on the snapshot of its begin. A write transaction
is durable when its `with` block has ended without an error; after an error nothing of it happened.
LMDB has no checksums: a sum over all pairs is kept with them and compared when the store is opened.
Source: LMDB's documentation; opened with sync and metasync, without writemap.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, cast

import lmdb

from bookie.env.disk import allocate
from bookie.env.kv_check import (
    SUM_KEY,
    SUM_TABLE,
    check_lmdb_file,
    decode_sum,
    encode_sum,
    seed_of,
    sum_of_pair,
)
from bookie.errors import ConfigurationError, CorruptionError, DiskFullError
from bookie.formats.checksum import crc32c

if TYPE_CHECKING:
    from lmdb import _Database


_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
)
_REFUSED_BY_THE_MACHINE = (lmdb.MemoryError, lmdb.ReadonlyError, lmdb.LockError, lmdb.DiskError)
"""Opening failed, and that says nothing about what the file holds."""

_READERS_MAX = 126
_LOCK_HEADER_BYTES = 192
_LOCK_READER_BYTES = 64

_SHORT_WRITE_FREE_BYTES = 1024 * 1024
"""A device with less room than this has cut off the write that failed."""


class ReadTransaction(Protocol):
    """A snapshot. Values are valid until the transaction ends."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of `key`, or None."""
        ...

    def range(
        self, table: str, start: bytes, stop: bytes, pairs_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Up to `pairs_max` pairs with ``start <= key < stop``, in key order."""
        ...

    def count(self, table: str) -> int:
        """How many keys there are."""
        ...


class WriteTransaction(ReadTransaction, Protocol):
    """A snapshot with changes on top."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None; for keys that are then put, and not looked up again."""
        ...

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set `key`."""
        ...

    def put_many(self, table: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many keys; fastest when they ascend."""
        ...

    def delete(self, table: str, key: bytes) -> bool:
        """Remove `key`; whether it was there."""
        ...


class KeyValueStore(Protocol):
    """An open store."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """A read transaction. It must not live across an await.

        Raises:
            CorruptionError: the store noticed that its file is damaged.
        """
        ...

    def write(self) -> AbstractContextManager[WriteTransaction]:
        """A write transaction, committed and durable at the end of its block.

        Raises:
            DiskFullError: the map or the device is full and nothing was synced; nothing happened.
            CorruptionError: the store noticed that its file is damaged; nothing happened.
            OSError: the device failed.
        """
        ...

    def close(self) -> None:
        """Close; no transaction may be open."""
        ...


class _LmdbTransaction:
    __slots__ = ("_delta", "_seen", "_tables", "_transaction")

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, _Database]) -> None:
        self._transaction = transaction
        self._tables = tables
        self._delta = 0
        """What the changes so far add to the sum over all pairs."""
        self._seen: dict[str, dict[bytes, bytes | None]] = {name: {} for name in tables}
        """What `get_many` found, as long as it is so: changing the sum needs it again."""

    def get(self, table: str, key: bytes) -> bytes | None:
        return cast("bytes | None", self._transaction.get(key, db=self._tables[table]))

    def range(
        self, table: str, start: bytes, stop: bytes, pairs_max: int
    ) -> list[tuple[bytes, bytes]]:
        pairs: list[tuple[bytes, bytes]] = []
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            if pairs_max > 0 and cursor.set_range(start):
                for pair in cast("Iterator[tuple[bytes, bytes]]", cursor.iternext()):
                    if pair[0] >= stop:
                        break
                    pairs.append(pair)
                    if len(pairs) == pairs_max:
                        break
        return pairs

    def count(self, table: str) -> int:
        return int(self._transaction.stat(self._tables[table])["entries"])

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            found = dict(cast("list[tuple[bytes, bytes]]", cursor.getmulti(keys)))
        values = list(map(found.get, keys))
        self._seen[table].update(zip(keys, values, strict=True))
        return values

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._seen[table].pop(key, None)
        before = self.get(table, key)
        self._count(table, {key: value}, {} if before is None else {key: before})
        self._transaction.put(key, value, db=self._tables[table])

    def put_many(self, table: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        # The newest wins, as it does in the table.
        unique = dict(pairs)
        seen = self._seen[table]
        known = {key: seen.pop(key) for key in unique.keys() & seen.keys()} if seen else {}
        before = {key: value for key, value in known.items() if value is not None}
        new = [key for key in unique if key not in known] if known else list(unique)
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            before.update(cast("list[tuple[bytes, bytes]]", cursor.getmulti(new)))
            self._count(table, unique, before)
            cursor.putmulti(unique.items())

    def delete(self, table: str, key: bytes) -> bool:
        self._seen[table].pop(key, None)
        before = self.get(table, key)
        if before is not None:
            self._delta -= sum_of_pair(seed_of(table), key, before)
        return bool(self._transaction.delete(key, db=self._tables[table]))

    def _count(self, table: str, pairs: dict[bytes, bytes], before: dict[bytes, bytes]) -> None:
        """Note what the sum becomes when `pairs` are put where `before` is what they replace."""
        of_keys = list(map(crc32c, pairs, repeat(seed_of(table))))
        added = sum(map(crc32c, pairs.values(), of_keys))
        removed = 0
        if before:
            of_key = dict(zip(pairs, of_keys, strict=True))
            removed = sum(map(crc32c, before.values(), map(of_key.__getitem__, before)))
        self._delta += added - removed

    def finish(self) -> None:
        """Bring the sum up to date, at the end of everything else."""
        if self._delta:
            handle = self._tables[SUM_TABLE]
            stored = self._transaction.get(SUM_KEY, db=handle)
            before = 0 if stored is None else decode_sum(bytes(stored))
            self._transaction.put(SUM_KEY, encode_sum(before + self._delta), db=handle)


class LmdbStore:
    """One LMDB environment with named tables."""

    def __init__(
        self, environment: lmdb.Environment, tables: dict[str, _Database], path: str
    ) -> None:
        self._environment = environment
        self._tables = tables
        self._path = path
        self._witness = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        """The kernel tells each open file once of a failed write-back; this one is never asked
        before something failed, so it knows whether a sync has ever lost anything."""

    @contextmanager
    def read(self) -> Iterator[_LmdbTransaction]:
        """See `KeyValueStore.read`."""
        try:
            with self._environment.begin(buffers=False) as transaction:
                yield _LmdbTransaction(transaction, self._tables)
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged: {error}") from error

    @contextmanager
    def write(self) -> Iterator[_LmdbTransaction]:
        """See `KeyValueStore.write`."""
        try:
            with self._environment.begin(write=True) as transaction:
                changes = _LmdbTransaction(transaction, self._tables)
                yield changes
                changes.finish()
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged: {error}") from error
        except lmdb.Error as error:
            if isinstance(error, lmdb.MapFullError) or self._is_out_of_room(error):
                raise DiskFullError(f"the index cannot grow: {error}") from error
            raise OSError(5, f"the index failed: {error}") from error

    def close(self) -> None:
        """See `KeyValueStore.close`."""
        self._environment.close()
        os.close(self._witness)

    def _is_out_of_room(self, error: lmdb.Error) -> bool:
        """Whether a commit failed before its first sync, because the device is full.

        LMDB reports a write that the device cut off as EIO, which may as well be a failed sync.
        """
        text = str(error)
        if "No space" not in text and os.strerror(errno.EIO) not in text:
            return False
        try:
            os.fsync(self._witness)
            status = os.statvfs(self._path)
        except OSError:
            return False
        free = status.f_bavail * status.f_frsize
        return "No space" in text or free < _SHORT_WRITE_FREE_BYTES


def allocate_lock_file(directory: str, readers_max: int) -> None:
    """Give the lock file of an LMDB environment its blocks, before the environment is opened.

    LMDB maps the file with holes, and whoever writes into a hole on a full device is killed.
    The content stays, if there is any. Not for an environment that this process has open: its locks
    would be dropped.

    Raises:
        OSError: there is no room, or the file cannot be opened.
    """
    wanted = _LOCK_HEADER_BYTES + (readers_max - 1) * _LOCK_READER_BYTES
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, "lock.mdb"), flags, 0o600)
    try:
        allocate(descriptor, max(wanted, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def open_lmdb(directory: str, map_bytes: int, tables: tuple[str, ...]) -> LmdbStore:
    """Open (or create) the LMDB environment in `directory`, which must exist.

    The file is read once, because LMDB believes everything that stands in it.

    Raises:
        CorruptionError: the files there are not a readable LMDB environment.
        ConfigurationError: this process may not open them, or has no address space for them.
        OSError: there is no room for its lock file, or the device failed.
    """
    path = os.path.join(directory, "data.mdb")
    check_lmdb_file(path, tables)
    allocate_lock_file(directory, _READERS_MAX)
    try:
        environment = lmdb.open(
            directory,
            map_size=map_bytes,
            subdir=True,
            mode=0o600,
            sync=True,
            metasync=True,
            writemap=False,
            max_dbs=len(tables) + 1,
            max_readers=_READERS_MAX,
            # Entry pages are read at random; read-ahead would only evict others.
            readahead=False,
        )
    except _REFUSED_BY_THE_MACHINE as error:
        raise ConfigurationError(f"{path} cannot be opened as an index: {error}") from error
    except lmdb.Error as error:
        kind = ConfigurationError if "already open" in str(error) else CorruptionError
        raise kind(f"{path} cannot be opened as an index: {error}") from error
    try:
        handles = {name: environment.open_db(name.encode()) for name in (*tables, SUM_TABLE)}
    except lmdb.Error as error:
        environment.close()
        raise CorruptionError(f"{path} cannot be opened as an index: {error}") from error
    return LmdbStore(environment, handles, path)
