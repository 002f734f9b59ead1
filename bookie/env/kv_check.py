"""Checks the structure of an LMDB file before LMDB maps it.

LMDB has no checksums and follows every offset in the file unchecked. A flipped bit may make LMDB
read beyond the mapped file, which kills the process (SIGBUS) at every start. A flipped bit may also
make LMDB miss a stored key, so that bookie treats the key as missing.

So each start reads the whole file, unless the last stop was orderly. Each check finds damage that
the other checks find too late or never:

- the kind and the bounds of pages and nodes: after such damage, LMDB would crash;
- the order of keys, separators included, and the count of entries: LMDB would miss stored keys;
- pages that are used twice, or both used and free: LMDB would overwrite stored pairs;
- the transactions of the meta pages: LMDB would use an older snapshot as the newest;
- the sum over all pairs, which every write transaction updates: the sum shows lost pairs and
  outdated pages. The checksum of a row shows only damage within the row.

Source: the data structures of LMDB 0.9 (`mdb.c`), 64-bit, little endian.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bookie.entry.checksum import crc32c
from bookie.errors import CorruptionError

UNREADABLE_ERRNOS = (errno.EIO, errno.ENODATA, errno.EBADMSG)
"""Errors of block devices and file systems for a bad sector, which stays bad until rewritten."""

SUM_TABLE = "sum"
"""The table that holds the sum over all pairs of the other tables; its only key is also ``sum``."""
SUM_KEY = SUM_TABLE.encode()
_PAGE = struct.Struct("<QHHHH")
"""Page header: page number, unused, flags, end of the offsets of nodes, start of the nodes."""
_OVERFLOW = struct.Struct("<QHHI")
"""Header of overflow pages: page number, unused, flags, number of pages."""
_NODE = struct.Struct("<HHHH")
"""Node header: value size in two halves (or low parts of a page number), flags, key size."""
_META = struct.Struct("<IIQQ")
"""Start of the data in a meta page: magic, version, address, size of the map."""
_DB = struct.Struct("<IHHQQQQQ")
"""Tree: page size or unused, flags, depth, counts of branch, leaf and overflow pages, count of
entries, page number of the root."""
_META_END = struct.Struct("<QQ")
"""End of the data in a meta page: number of the last page, number of the transaction."""
_U64 = struct.Struct("<Q")

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOWS, _METAS = 0x01, 0x02, 0x04, 0x08
_BIG, _TABLE = 0x01, 0x02
_INTEGER_KEYS = 0x08
_NO_ROOT = 2**64 - 1
_HEADER_BYTES = _PAGE.size
_META_AT = _HEADER_BYTES
_DBS_AT = _META_AT + _META.size
_META_BYTES = _DBS_AT + 2 * _DB.size + _META_END.size
_PAGE_SIZES = (4096, 8192, 16384, 32768, 65536)
_MAP_BYTES_MAX = 2**47


@dataclass(frozen=True, slots=True)
class _Database:
    """The description of a tree, from a meta page or from a row of the main table."""

    flags: int
    depth: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class _Meta:
    page_size: int
    map_bytes: int
    free: _Database
    main: _Database
    last_page: int
    transaction: int


def seed_of(table: str) -> int:
    """Return the checksum seed of a table's pairs; the sum changes if two tables are exchanged."""
    return crc32c(table.encode())


def sum_of_pair(seed: int, key: bytes, value: bytes) -> int:
    """Return the contribution of one pair to the sum over all pairs."""
    return crc32c(value, crc32c(key, seed))


def encode_sum(total: int) -> bytes:
    """Encode the sum as it is stored: 8 bytes, little endian, modulo 2**64."""
    return _U64.pack(total % 2**64)


def decode_sum(data: bytes) -> int:
    """Decode a stored sum."""
    return int(_U64.unpack(data)[0])


def check_lmdb_file(path: str, tables: tuple[str, ...], *, whole: bool = True) -> None:
    """Read and check the LMDB file at `path`; a missing or empty file passes the check.

    If `whole` is False, only the meta pages of the file are checked.

    Raises:
        CorruptionError: the file is damaged or the device cannot read a page; LMDB must not open
            the file.
        OSError: the device failed in another way.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(descriptor).st_size
        if size:
            check = _Check(descriptor, size)
            newest = check.newest_meta()
            if whole:
                check.run(newest, {name.encode() for name in (*tables, SUM_TABLE)})
    except (struct.error, IndexError) as error:
        raise CorruptionError(f"{path} is damaged: it is cut off") from error
    except _DamageError as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
    except OSError as error:
        if error.errno not in UNREADABLE_ERRNOS:
            raise
        raise CorruptionError(f"{path} is damaged: a page cannot be read: {error}") from error
    finally:
        os.close(descriptor)


class _DamageError(Exception):
    """The file is damaged; the message describes the damage."""


class _Check:
    """One walk through a file of `size` bytes."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._page_size = _PAGE_SIZES[0]
        self._last_page = 0
        self._used = bytearray()
        """One byte for each page of the file; 1 means that the page is in use."""
        self._room = 0
        """The number of bytes that the nodes of the current page fill."""

    def newest_meta(self) -> _Meta:
        """Check both meta pages and return the newer meta page."""
        first = self._meta(os.pread(self._descriptor, _META_BYTES, 0), 0)
        self._page_size = first.page_size
        second = self._meta(os.pread(self._descriptor, _META_BYTES, first.page_size), 1)
        if first.page_size != second.page_size:
            raise _DamageError("its two meta pages disagree about the page size")
        _check_transactions(first.transaction, second.transaction)
        newest = max(first, second, key=lambda meta: meta.transaction)
        # The file may end before the last page, because LMDB does not write a new page that it has
        # freed again.
        if newest.last_page >= newest.map_bytes // self._page_size:
            raise _DamageError(f"its last page is {newest.last_page}, outside its map")
        return newest

    def run(self, newest: _Meta, tables: set[bytes]) -> None:
        """Check all pages; the file must have no tables other than `tables`."""
        self._last_page = newest.last_page
        self._used = bytearray(newest.last_page + 1)
        self._used[0] = self._used[1] = 1
        free = self._free_pages(newest)
        total = stored = 0
        for name, table in list(self._tables(newest.main)):
            if name not in tables:
                raise _DamageError(f"there is a table {name!r}")
            seed = crc32c(name)
            for key, _, value in self._nodes(table):
                if name != SUM_KEY:
                    total += crc32c(value, crc32c(key, seed))
                elif key == SUM_KEY and len(value) == _U64.size:
                    stored = decode_sum(value)
                else:
                    raise _DamageError("its sum is invalid")
        if any(self._used[page] for page in free):
            raise _DamageError("a page is used and free at the same time")
        if stored != total % 2**64:
            raise _DamageError("its entries do not add up to its sum")

    # --- meta pages ----------------------------------------------------------------------

    def _meta(self, data: bytes, number: int) -> _Meta:
        page, _, flags, _, _ = _PAGE.unpack_from(data)
        magic, version, _, map_bytes = _META.unpack_from(data, _META_AT)
        if (page, flags, magic) != (number, _METAS, _MAGIC):
            raise _DamageError(f"page {number} is not a meta page")
        if version != _VERSION:
            raise _DamageError(f"meta page {number} has the version {version}")
        page_size = int(_DB.unpack_from(data, _DBS_AT)[0])
        free, main = (_database(data, _DBS_AT + at) for at in (0, _DB.size))
        last_page, transaction = _META_END.unpack_from(data, _DBS_AT + 2 * _DB.size)
        if page_size not in _PAGE_SIZES or not 0 < map_bytes < _MAP_BYTES_MAX:
            raise _DamageError(f"meta page {number} has invalid values")
        if free.flags != _INTEGER_KEYS or main.flags:
            raise _DamageError(f"meta page {number} has unknown flags")
        return _Meta(page_size, map_bytes, free, main, last_page, transaction)

    # --- trees ---------------------------------------------------------------------------

    def _tables(self, main: _Database) -> Iterator[tuple[bytes, _Database]]:
        for name, flags, value in self._nodes(main):
            if flags != _TABLE or len(value) != _DB.size:
                raise _DamageError("a row of the main table is not a table")
            table = _database(value, 0)
            if table.flags:
                raise _DamageError("a table has unknown flags")
            yield name, table

    def _free_pages(self, meta: _Meta) -> list[int]:
        free: list[int] = []
        for key, _, value in self._nodes(meta.free, integers=True):
            (count,) = _U64.unpack_from(value)
            if len(key) != _U64.size or len(value) < _U64.size * (count + 1):
                raise _DamageError("a list of free pages is cut off")
            if not 0 < _U64.unpack(key)[0] <= meta.transaction:
                raise _DamageError("a list of free pages names an unknown transaction")
            pages = struct.unpack_from(f"<{count}Q", value, _U64.size)
            if pages and not 1 < min(pages) <= max(pages) <= self._last_page:
                raise _DamageError("a list of free pages names pages that do not exist")
            free += pages
        if len(set(free)) != len(free):
            raise _DamageError("a page is free twice")
        return free

    def _nodes(
        self, database: _Database, *, integers: bool = False
    ) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield key, flags and value of every entry of a tree; check the entry count at the end.

        The keys must ascend: as numbers if `integers` is True, otherwise as bytes.
        """
        count, before = 0, b""
        if database.root != _NO_ROOT:
            for key, flags, value in self._walk(database.root, database.depth, integers):
                order = key[::-1] if integers else key
                if count and order <= before:
                    raise _DamageError("keys do not ascend")
                before = order
                count += 1
                yield key, flags, value
        elif database.depth:
            raise _DamageError("a table without pages has a depth")
        if count != database.entries:
            raise _DamageError(f"a table counts {database.entries} entries and has {count}")

    def _walk(self, number: int, depth: int, integers: bool) -> Iterator[tuple[bytes, int, bytes]]:
        page, flags, offsets = self._page(number)
        if depth == 1:
            if flags != _LEAF:
                raise _DamageError(f"page {number} should be a leaf")
            self._room = 0
            nodes = [self._leaf_node(page, offset) for offset in offsets]
            self._check_room(page)
            yield from nodes
            return
        if flags != _BRANCH or depth < 1 or len(offsets) < 2:
            raise _DamageError(f"page {number} should be a branch of depth {depth}")
        self._room = 0
        separators = [self._branch_node(page, offset) for offset in offsets]
        self._check_room(page)
        for index, (lowest, child) in enumerate(separators):
            highest = separators[index + 1][0] if index + 1 < len(separators) else None
            found = False
            for item in self._walk(child, depth - 1, integers):
                order = item[0][::-1] if integers else item[0]
                # The first separator is no lower bound: the first child holds all keys below the
                # second.
                if (index and not found and order < lowest[:: -1 if integers else 1]) or (
                    highest is not None and order >= highest[:: -1 if integers else 1]
                ):
                    raise _DamageError(f"a key stands in page {child} outside of its range")
                found = True
                yield item
            if not found:
                raise _DamageError(f"page {child} is empty")

    def _page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        self._use(number, 1)
        if (number + 1) * self._page_size > self._size:
            raise _DamageError(f"it is cut off: page {number} is missing")
        page = os.pread(self._descriptor, self._page_size, number * self._page_size)
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        if own != number:
            raise _DamageError(f"in the place of page {number} stands page {own}")
        if not _HEADER_BYTES <= lower <= upper <= self._page_size or lower % 2:
            raise _DamageError(f"page {number} has wrong bounds")
        offsets = struct.unpack_from(f"<{(lower - _HEADER_BYTES) // 2}H", page, _HEADER_BYTES)
        if offsets and min(offsets) < upper:
            raise _DamageError(f"page {number} has a node outside its bounds")
        return page, flags, offsets

    def _check_room(self, page: bytes) -> None:
        """Check that the nodes fill the page from its upper bound to its end, without gaps."""
        number, _, _, _, upper = _PAGE.unpack_from(page)
        if self._room != self._page_size - upper:
            raise _DamageError(f"the nodes of page {number} do not fill it")

    def _branch_node(self, page: bytes, offset: int) -> tuple[bytes, int]:
        low, high, top, key_size = _NODE.unpack_from(page, offset)
        start = offset + _NODE.size
        if start + key_size > self._page_size:
            raise _DamageError("a key reaches beyond its page")
        self._room += _even(_NODE.size + key_size)
        return page[start : start + key_size], low | high << 16 | top << 32

    def _leaf_node(self, page: bytes, offset: int) -> tuple[bytes, int, bytes]:
        low, high, flags, key_size = _NODE.unpack_from(page, offset)
        value_at = offset + _NODE.size + key_size
        size = low | high << 16
        key = page[offset + _NODE.size : value_at]
        if flags & ~(_BIG | _TABLE):
            raise _DamageError("an entry has unknown flags")
        if not flags & _BIG:
            if value_at + size > self._page_size:
                raise _DamageError("a value reaches beyond its page")
            self._room += _even(value_at + size - offset)
            return key, flags, page[value_at : value_at + size]
        if value_at + _U64.size > self._page_size:
            raise _DamageError("a value reaches beyond its page")
        self._room += _even(value_at + _U64.size - offset)
        return key, flags, self._overflow(_U64.unpack_from(page, value_at)[0], size)

    def _overflow(self, number: int, size: int) -> bytes:
        """Return the value of `size` bytes that begins in page `number`."""
        needed = -(-(_HEADER_BYTES + size) // self._page_size)
        at = number * self._page_size
        own, _, flags, count = _OVERFLOW.unpack(os.pread(self._descriptor, _OVERFLOW.size, at))
        # A value that became smaller keeps all its pages, so `count` may exceed `needed`.
        if (own, flags) != (number, _OVERFLOWS) or count < needed:
            raise _DamageError(f"page {number} does not begin its value")
        self._use(number, count)
        if at + _HEADER_BYTES + size > self._size:
            raise _DamageError(f"it is cut off: page {number} is missing")
        return os.pread(self._descriptor, size, at + _HEADER_BYTES)

    def _use(self, number: int, count: int) -> None:
        if not 1 < number <= self._last_page + 1 - count:
            raise _DamageError(f"page {number} does not exist")
        if any(self._used[number : number + count]):
            raise _DamageError(f"page {number} is used twice")
        self._used[number : number + count] = b"\1" * count


def _database(data: bytes, at: int) -> _Database:
    _, flags, depth, _, _, _, entries, root = _DB.unpack_from(data, at)
    return _Database(flags, depth, entries, root)


def _even(size: int) -> int:
    return size + size % 2


def _check_transactions(first: int, second: int) -> None:
    """Check that the meta pages' transaction numbers are successive, the even one in page 0."""
    newest, oldest = max(first, second), min(first, second)
    if newest == 0:
        return
    if newest - oldest != 1 or newest != (second if newest % 2 else first):
        raise _DamageError(f"its meta pages are those of transactions {first} and {second}")
