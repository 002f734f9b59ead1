"""A sorted, transactional key-value store in a directory; the real one is LMDB.

One writer at a time, any number of readers, each on the snapshot of its begin. A write transaction
is durable when its `with` block has ended without an error; after an error nothing of it happened.
Source: LMDB's documentation; opened with sync and metasync, without writemap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, cast

import lmdb

from bookie.errors import CorruptionError, DiskFullError

if TYPE_CHECKING:
    from lmdb import _Database


_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)


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
    __slots__ = ("_tables", "_transaction")

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, _Database]) -> None:
        self._transaction = transaction
        self._tables = tables

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

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value, db=self._tables[table])

    def put_many(self, table: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            cursor.putmulti(pairs)

    def delete(self, table: str, key: bytes) -> bool:
        return bool(self._transaction.delete(key, db=self._tables[table]))


class LmdbStore:
    """One LMDB environment with named tables."""

    def __init__(self, environment: lmdb.Environment, tables: dict[str, _Database]) -> None:
        self._environment = environment
        self._tables = tables

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
                yield _LmdbTransaction(transaction, self._tables)
        except _DAMAGE as error:
            raise CorruptionError(f"the index is damaged: {error}") from error
        except lmdb.Error as error:
            # MapFullError and ENOSPC come before the first sync of the transaction.
            if isinstance(error, lmdb.MapFullError) or "No space" in str(error):
                raise DiskFullError(f"the index cannot grow: {error}") from error
            raise OSError(5, f"the index failed: {error}") from error

    def close(self) -> None:
        """See `KeyValueStore.close`."""
        self._environment.close()


def open_lmdb(directory: str, map_bytes: int, tables: tuple[str, ...]) -> LmdbStore:
    """Open (or create) the LMDB environment in `directory`, which must exist.

    Raises:
        CorruptionError: the files there are not a readable LMDB environment.
    """
    path = os.path.join(directory, "data.mdb")
    try:
        environment = lmdb.open(
            directory,
            map_size=map_bytes,
            subdir=True,
            mode=0o600,
            sync=True,
            metasync=True,
            writemap=False,
            max_dbs=len(tables),
            max_readers=126,
            # Entry pages are read at random; read-ahead would only evict others.
            readahead=False,
        )
    except lmdb.Error as error:
        raise CorruptionError(f"{path} cannot be opened as an index: {error}") from error
    try:
        # A look behind the end of the mapped file would kill the process.
        pages = environment.info()["last_pgno"] + 1
        if os.path.getsize(path) < pages * environment.stat()["psize"]:
            raise CorruptionError(f"{path} is cut off: it needs {pages} pages")
        handles = {name: environment.open_db(name.encode()) for name in tables}
    except lmdb.Error as error:
        environment.close()
        raise CorruptionError(f"{path} cannot be opened as an index: {error}") from error
    except CorruptionError:
        environment.close()
        raise
    return LmdbStore(environment, handles)
