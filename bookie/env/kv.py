"""A sorted, transactional key-value store in a directory, and its implementation by LMDB.

One write transaction and several read transactions may run concurrently; each transaction reads the
snapshot that was current when the transaction began. A write transaction is durable when its `with`
block ends. If the block raises an error, the transaction changes nothing. LMDB has no checksums, so
the store keeps the sum of the checksums of all pairs. `open_lmdb` checks this sum unless the file
is trusted. LMDB is opened with sync and metasync, without writemap.

Source: LMDB's documentation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, cast

import lmdb

from bookie.entry.checksum import crc32c
from bookie.env.disk import NO_ROOM_ERRNOS, allocate, is_disk_full
from bookie.env.kv_check import (
    SUM_KEY,
    SUM_TABLE,
    check_lmdb_file,
    decode_sum,
    encode_sum,
    seed_of,
    sum_of_pair,
)
from bookie.env.kv_zeros import ZerosAhead
from bookie.errors import ConfigurationError, CorruptionError, DiskFullError, StorageFailedError

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
_REFUSED_BY_THE_MACHINE = (
    lmdb.MemoryError,
    lmdb.ReadonlyError,
    lmdb.LockError,
    lmdb.DiskError,
    lmdb.InvalidParameterError,
)
"""The errors with which LMDB refuses to open a file for other reasons than the file's content."""

_READERS_MAX = 126
_LOCK_HEADER_BYTES = 192
_LOCK_READER_BYTES = 64

_CUT_OFF = (*NO_ROOM_ERRNOS, errno.EIO)
"""LMDB's error codes if the device has no room for a write; LMDB reports a short write as EIO."""
_ROOM_BYTES = 1024 * 1024
"""More bytes than LMDB writes at once, so a device with this much free space is not full."""


class ReadTransaction(Protocol):
    """A snapshot of the store; values are valid until the transaction ends."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""

    def range(
        self, table: str, start: bytes, stop: bytes, pairs_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `pairs_max` pairs with ``start <= key < stop``, in key order."""

    def around(self, table: str, key: bytes) -> list[tuple[bytes, bytes]]:
        """Return the last pair below `key` and the first pair at or above `key`, if they exist."""

    def count(self, table: str) -> int:
        """Return the number of keys in `table`."""


class WriteTransaction(ReadTransaction, Protocol):
    """A snapshot of the store that also shows the transaction's own changes."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return each key's value or None; use this for keys that the transaction will put."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""

    def put_many(self, table: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys; fastest when the keys ascend."""

    def delete(self, table: str, key: bytes) -> bool:
        """Remove `key`; return True if the key existed."""


class KeyValueStore(Protocol):
    """An open key-value store."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """Begin a read transaction, which must end before its caller awaits anything.

        Raises:
            CorruptionError: the store noticed that its file is damaged.
            StorageFailedError: a commit failed, so the newest snapshot is unknown.
        """

    def write(self) -> AbstractContextManager[WriteTransaction]:
        """Begin a write transaction, which is committed and durable at the end of its block.

        Raises:
            DiskFullError: the map or the device is full; the transaction changed nothing.
            CorruptionError: the store noticed that its file is damaged; the transaction changed
                nothing.
            OSError: the device failed, now or in an earlier transaction; the store's content is
                unknown. The errno is always EIO.
        """

    def close(self) -> None:
        """Close the store; no transaction may be open."""


class _LmdbTransaction:
    __slots__ = ("_delta", "_seen", "_tables", "_transaction")

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, _Database]) -> None:
        self._transaction = transaction
        self._tables = tables
        self._delta = 0
        """The amount by which this transaction has changed the sum over all pairs so far."""
        self._seen: dict[str, dict[bytes, bytes | None]] = {name: {} for name in tables}
        """Values that `get_many` read and that did not change since; `put_many` subtracts them from
        the sum."""

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

    def around(self, table: str, key: bytes) -> list[tuple[bytes, bytes]]:
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            above = [cursor.item()] if cursor.set_range(key) else []
            below = [cursor.item()] if (cursor.prev() if above else cursor.last()) else []
        return cast("list[tuple[bytes, bytes]]", below + above)

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
        # If a key occurs twice, its last pair counts, as in LMDB.
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
        """Update the sum over all pairs: the new `pairs` replace the old pairs in `before`."""
        of_keys = list(map(crc32c, pairs, repeat(seed_of(table))))
        added = sum(map(crc32c, pairs.values(), of_keys))
        removed = 0
        if before:
            of_key = dict(zip(pairs, of_keys, strict=True))
            removed = sum(map(crc32c, before.values(), map(of_key.__getitem__, before)))
        self._delta += added - removed

    def finish(self) -> None:
        """Write the updated sum over all pairs, after all other changes of the transaction."""
        if self._delta:
            handle = self._tables[SUM_TABLE]
            stored = self._transaction.get(SUM_KEY, db=handle)
            before = 0 if stored is None else decode_sum(bytes(stored))
            self._transaction.put(SUM_KEY, encode_sum(before + self._delta), db=handle)


class LmdbStore:
    """One LMDB environment with named tables."""

    def __init__(self, environment: lmdb.Environment, directory: str) -> None:
        self._environment = environment
        self._tables: dict[str, _Database] = {}
        self._directory = directory
        self._failure: OSError | None = None
        path = os.path.join(directory, "data.mdb")
        self._witness = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        """The kernel reports a failed write-back once to each open file. After a failure, a sync of
        this extra open file reports whether any write was lost."""
        self._ahead = ZerosAhead(environment, self._witness)

    def open_tables(self, names: tuple[str, ...]) -> None:
        """Open the tables, or create them durably; call this first. Raises errors like `write`."""
        with self._writing() as transaction:
            for name in names:
                try:
                    self._tables[name] = self._environment.open_db(name.encode(), txn=transaction)
                except (lmdb.NotFoundError, lmdb.IncompatibleError, lmdb.DbsFullError) as error:
                    raise CorruptionError(f"the index has no table {name}: {error}") from error

    @contextmanager
    def read(self) -> Iterator[_LmdbTransaction]:
        try:
            with self._environment.begin(buffers=False) as transaction:
                yield _LmdbTransaction(transaction, self._tables)
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged: {error}") from error
        except lmdb.Error as error:
            raise StorageFailedError(f"the index failed: {error}") from error

    @contextmanager
    def write(self) -> Iterator[_LmdbTransaction]:
        with self._writing(is_change=True) as transaction:
            changes = _LmdbTransaction(transaction, self._tables)
            yield changes
            changes.finish()

    def close(self) -> None:
        self._environment.close()
        os.close(self._witness)

    @contextmanager
    def _writing(self, *, is_change: bool = False) -> Iterator[lmdb.Transaction]:
        if self._failure is not None:
            raise OSError(errno.EIO, f"the index failed before: {self._failure}")
        was_full = False
        try:
            with self._environment.begin(write=True) as transaction:
                if is_change:
                    self._check_device(self._ahead.write)
                yield transaction
                was_full = self._free_bytes() < _ROOM_BYTES
            self._check_device(self._ahead.check)
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged: {error}") from error
        except lmdb.MapFullError as error:
            raise DiskFullError(f"the index cannot grow: {error}") from error
        except lmdb.Error as error:
            if error.code in _CUT_OFF and self._is_only_full(was_full=was_full):
                raise DiskFullError(f"the index cannot grow: {error}") from error
            self._failure = OSError(errno.EIO, f"the index failed: {error}")
            raise self._failure from error

    def _check_device(self, check: Callable[[], None]) -> None:
        try:
            check()
        except OSError as error:
            self._failure = error
            raise

    def _is_only_full(self, *, was_full: bool) -> bool:
        """True if a transaction failed only because the device had no room for its data pages.

        LMDB raises the same errors if the write of a data page, a sync or the write of the meta
        page fails. The result is True only if three conditions hold:

        - The device is full now, or was full before the commit.
        - The environment is intact: a failed write of the meta page would have broken it.
        - The kernel reports that every write-back succeeded.
        """
        try:
            if not was_full and self._has_room():
                return False
            with self._environment.begin():
                pass
            os.fsync(self._witness)
        except (lmdb.Error, OSError):
            return False
        return True

    def _has_room(self) -> bool:
        """True if `_ROOM_BYTES` are free, and quotas permit a new file of `_ROOM_BYTES`."""
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            descriptor = os.open(self._directory, flags, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _ROOM_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            # Any other error means that the file system does not support one of these calls, so
            # only `_free_bytes` decides.
            if is_disk_full(error):
                return False
        return self._free_bytes() >= _ROOM_BYTES

    def _free_bytes(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize


def allocate_lock_file(directory: str, readers_max: int) -> None:
    """Allocate the disk blocks of an LMDB environment's lock file, before LMDB opens it.

    If the blocks are not allocated, the lock file has holes. LMDB maps the file, and on a full
    device a write into a hole kills the process. The content of the file does not change. Do not
    call this for an environment that this process has open, because the process would lose its
    locks.

    Raises:
        OSError: the device is full, or the file cannot be opened.
    """
    wanted = _LOCK_HEADER_BYTES + (readers_max - 1) * _LOCK_READER_BYTES
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, "lock.mdb"), flags, 0o600)
    try:
        allocate(descriptor, max(wanted, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def open_lmdb(
    directory: str, map_bytes: int, tables: tuple[str, ...], trusted: bool = False
) -> LmdbStore:
    """Open (or create) the LMDB environment in `directory`, which must exist.

    The data file is read once and checked, because LMDB trusts its content. For a `trusted` file,
    only the two meta pages are read.

    Raises:
        CorruptionError: the files in the directory are not a readable LMDB environment.
        ConfigurationError: LMDB lacks permission, memory, address space or room for a new file, or
            this process has the environment open already.
        DiskFullError: there is no room for the tables.
        OSError: there is no room for the lock file, a file cannot be opened, or the device failed.
    """
    path = os.path.join(directory, "data.mdb")
    check_lmdb_file(path, tables, whole=not trusted)
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
            # Pages are read at random; read-ahead would evict other pages.
            readahead=False,
        )
    except _REFUSED_BY_THE_MACHINE as error:
        raise ConfigurationError(f"{path} cannot be opened as an index: {error}") from error
    except lmdb.Error as error:
        if error.code > 0:
            # Keep the error code of the system: such an error does not mean a damaged file.
            raise OSError(error.code, f"{path} cannot be opened as an index: {error}") from error
        kind = ConfigurationError if "already open" in str(error) else CorruptionError
        raise kind(f"{path} cannot be opened as an index: {error}") from error
    try:
        store = LmdbStore(environment, directory)
    except OSError:
        environment.close()
        raise
    try:
        store.open_tables((*tables, SUM_TABLE))
    except BaseException:
        store.close()
        raise
    return store
