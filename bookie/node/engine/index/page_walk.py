"""Walks over all pages of an index, and over values of ``meta`` with a common prefix."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from bookie.env import KeyValueStore
from bookie.errors import CorruptionError
from bookie.node.engine.format.arrays import distinct
from bookie.node.engine.format.index_rows import (
    LEDGER_KEY_SIZE_BYTES,
    ledger_keys_above,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import (
    COLUMNS,
    SLOTS_PER_PAGE,
    Slots,
    decode_pages,
    parse_page_key,
)

PAGES_PER_STEP = 1024
_BEHIND_ALL = b"\xff" * 17


def pages_from(store: KeyValueStore, start: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of some pages, from the key `start` on; none at the end."""
    with store.read() as txn:
        return txn.range("locations", start, _BEHIND_ALL, PAGES_PER_STEP)


def some_of(
    store: KeyValueStore, table: str, start: bytes
) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Some pairs of a table from the key `start` on, and those of their keys that are not found.

    The pairs are read in sequence. A damaged key, in a leaf or above, misleads a look-up.
    """
    with store.read() as txn:
        pairs = txn.range(table, start, _BEHIND_ALL, PAGES_PER_STEP)
        return pairs, [key for key, _ in pairs if txn.get(table, key) is None]


def behind(pairs: Sequence[tuple[bytes, bytes]], start: bytes) -> bytes | None:
    """The key from which `some_of` goes on; None at the end, or at a damaged key."""
    following = pairs[-1][0] + b"\0" if pairs else b""
    return following if following > start else None


def verify_all_pages(store: KeyValueStore, files: Container[int]) -> int:
    """Check the CRC of every page, its ledger and its files; returns the number of pages.

    Raises:
        CorruptionError: a page is damaged, or its ledger has no row, or an entry is in a file
            outside `files`.
    """
    pages, start = 0, b""
    while pairs := pages_from(store, start):
        slots = decode_pages(pairs)[1]
        named = slots[:, :, 0][slots[:, :, 2] > 0]
        # Neighbours are mostly in the same file, so there is little to sort.
        first = np.append(True, named[1:] != named[:-1])[: len(named)]
        for number in distinct(named[first]).tolist():
            if number not in files:
                raise CorruptionError(f"the index has entries in file {number}, but no row of it")
        _check_rows(store, pairs)
        pages += len(pairs)
        start = pairs[-1][0] + b"\x00"
    return pages


def _check_rows(store: KeyValueStore, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Each of these pages is of a ledger with a row."""
    with store.read() as txn:
        for key in dict.fromkeys([key[:LEDGER_KEY_SIZE_BYTES] for key, _ in pairs]):
            if txn.get("ledgers", key) is None:
                ledger_id = parse_ledger_key(key)
                raise CorruptionError(f"ledger {ledger_id} has pages in the index, but no row")


def first_ledger_with_pages(store: KeyValueStore, after: int) -> int | None:
    """The lowest id above `after` of a ledger with pages; FormatError if the key is damaged."""
    with store.read() as txn:
        pairs = txn.range("locations", ledger_keys_above(after), _BEHIND_ALL, 1)
    return parse_page_key(pairs[0][0])[0] if pairs else None


def sound_slots(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[Slots, list[bytes]]:
    """The slots of the pages that are whole, and the keys of those that are not."""
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
    """Names (without `prefix`) and values of ``meta`` whose names begin with `prefix`."""
    with store.read() as txn:
        pairs = txn.range("meta", prefix, prefix + b"\xff" * 16, 2**31)
    return [(name[len(prefix) :], value) for name, value in pairs]


def delete_values(store: KeyValueStore, names: Sequence[bytes]) -> None:
    """Remove values of ``meta``, durably."""
    with store.write() as txn:
        for name in names:
            txn.delete("meta", name)
