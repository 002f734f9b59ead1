"""Reads the index: looks up pages, lists all pages, and reads ``meta`` values by prefix.

The store finds a key by comparisons, so a flipped bit in a key can hide a page. A search for the
original key ends beside the hidden page. The checksum of a page covers its original key, so the
hidden page fails a check with its present key. So a page counts as missing only if the pages beside
its place are intact.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import product

import numpy as np

from bookie.env import KeyValueStore, ReadTransaction
from bookie.errors import ChecksumError, CorruptionError
from bookie.node.engine.format.arrays import distinct
from bookie.node.engine.format.index_rows import (
    LEDGER_KEY_SIZE_BYTES,
    ledger_keys_above,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import (
    COLUMNS,
    EMPTY_SLOTS,
    SLOTS_PER_PAGE,
    Slots,
    decode_pages,
    is_page,
    page_key,
    parse_page_key,
)

PAGES_TRIED_MAX = 4096
"""The widest range in which each page number is tried as the original key of a damaged page."""


def stored_pages(
    txn: ReadTransaction, ledger_id: int, first_page: int, last_page: int, pages_max: int
) -> list[tuple[bytes, bytes]]:
    """Return up to `pages_max` pages of the ledger from `first_page` to `last_page`, unchecked.

    Raises:
        ChecksumError: a page of the range is stored under a wrong key. If the range is wide, each
            damaged page beside it counts as such a page.
    """
    start, stop = page_key(ledger_id, first_page), page_key(ledger_id, last_page + 1)
    pairs = txn.range("locations", start, stop, pages_max)
    end = last_page + 1 if len(pairs) < pages_max else parse_page_key(pairs[-1][0])[1] + 1
    if len(pairs) < end - first_page:
        beside = txn.around("locations", start) + txn.around("locations", stop)
        damaged = [value for key, value in beside if not is_page(key, value)]
        # A listing of a wide range does not know which pages must exist.
        pages = range(first_page, end) if end - first_page <= PAGES_TRIED_MAX else ()
        if damaged and not pages:
            raise ChecksumError(f"a page beside those of ledger {ledger_id} is damaged")
        for page, value in product(pages, damaged):
            if is_page(page_key(ledger_id, page), value):
                raise ChecksumError(f"page {page} of ledger {ledger_id} has another key")
    return pairs


def look_up(txn: ReadTransaction, ledger_id: int, first_page: int, last_page: int) -> list[bytes]:
    """Return the slots of each page, in order; `EMPTY_SLOTS` for a page that is not stored.

    Raises:
        ChecksumError: a page is damaged; the caller may not conclude that an entry is missing.
    """
    count = last_page - first_page + 1
    pages = [EMPTY_SLOTS] * count
    pairs = stored_pages(txn, ledger_id, first_page, last_page, count)
    if pairs:
        numbers, slots = decode_pages(pairs)
        data, size = slots.tobytes(), len(EMPTY_SLOTS)
        for index, number in enumerate(numbers.tolist()):
            pages[number - first_page] = data[index * size : (index + 1) * size]
    return pages


PAGES_PER_STEP = 1024
_BEHIND_ALL = b"\xff" * 17


def pages_from(store: KeyValueStore, start: bytes) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the next pages from the key `start` on; empty at the end."""
    with store.read() as txn:
        return txn.range("locations", start, _BEHIND_ALL, PAGES_PER_STEP)


def some_of(
    store: KeyValueStore, table: str, start: bytes
) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Read some pairs of a table in sequence, from the key `start` on.

    Returns:
        the pairs, and the keys of the pairs that a look-up by key does not find. A look-up can miss
        a key because of a damaged key in a leaf page or a branch page.
    """
    with store.read() as txn:
        pairs = txn.range(table, start, _BEHIND_ALL, PAGES_PER_STEP)
        return pairs, [key for key, _ in pairs if txn.get(table, key) is None]


def behind(pairs: Sequence[tuple[bytes, bytes]], start: bytes) -> bytes | None:
    """Return the `start` for the next call of `some_of`; None at the end, or at a damaged key."""
    following = pairs[-1][0] + b"\0" if pairs else b""
    return following if following > start else None


def verify_all_pages(store: KeyValueStore, files: Container[int]) -> int:
    """Check the CRC, the ledger and the files of each page; return the number of pages.

    Raises:
        CorruptionError: a page is damaged, its ledger has no row, or it points to a file that is
            not in `files`.
    """
    pages, start = 0, b""
    while pairs := pages_from(store, start):
        slots = decode_pages(pairs)[1]
        named = slots[:, :, 0][slots[:, :, 2] > 0]
        # Neighbouring slots mostly point into the same file, so few numbers need sorting.
        first = np.append(True, named[1:] != named[:-1])[: len(named)]
        for number in distinct(named[first]).tolist():
            if number not in files:
                raise CorruptionError(f"the index has entries in file {number}, but no row of it")
        _check_rows(store, pairs)
        pages += len(pairs)
        start = pairs[-1][0] + b"\x00"
    return pages


def _check_rows(store: KeyValueStore, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that the ledger of each of these pages has a row."""
    with store.read() as txn:
        for key in dict.fromkeys([key[:LEDGER_KEY_SIZE_BYTES] for key, _ in pairs]):
            if txn.get("ledgers", key) is None:
                ledger_id = parse_ledger_key(key)
                raise CorruptionError(f"ledger {ledger_id} has pages in the index, but no row")


def first_ledger_with_pages(store: KeyValueStore, after: int) -> int | None:
    """Return the lowest ledger id above `after` that has pages; raise FormatError for a bad key."""
    with store.read() as txn:
        pairs = txn.range("locations", ledger_keys_above(after), _BEHIND_ALL, 1)
    return parse_page_key(pairs[0][0])[0] if pairs else None


def sound_slots(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[Slots, list[bytes]]:
    """Return the slots of the intact pages, and the keys of the damaged pages."""
    try:
        return decode_pages(pairs)[1], []
    except CorruptionError:
        if len(pairs) == 1:
            return np.zeros((0, SLOTS_PER_PAGE, COLUMNS), np.uint32), [pairs[0][0]]
    middle = len(pairs) // 2
    left, damaged_left = sound_slots(pairs[:middle])
    right, damaged_right = sound_slots(pairs[middle:])
    return np.concatenate((left, right)), damaged_left + damaged_right


def values_of(store: KeyValueStore, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return the ``meta`` values whose names begin with `prefix`, as pairs of name and value.

    The returned names do not include the prefix.
    """
    with store.read() as txn:
        pairs = txn.range("meta", prefix, prefix + b"\xff" * 16, 2**31)
    return [(name[len(prefix) :], value) for name, value in pairs]


def delete_values(store: KeyValueStore, names: Sequence[bytes]) -> None:
    """Remove values from the ``meta`` table, durably."""
    with store.write() as txn:
        for name in names:
            txn.delete("meta", name)
