"""Damage to the disk of a bookie that was stopped in order: a hole in its index, a flipped bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bookie.env.kv import KeyValueStore, open_lmdb
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.format.index_rows import encode_ledger_row, ledger_key
from bookie.node.engine.format.pages import decode_pages, encode_pages, page_key
from bookie.node.engine.index.deleted_ledgers import row_of
from bookie.node.engine.index.entry_index import TABLES, Index, _Commit

MAP_BYTES = 1 << 30
PAGES_MAX = 10_000


def punch_hole(ledgers_dir: Path, ledger_id: int, *, keep_ends: bool) -> int:
    """Remove entries of a ledger from the index, as if they had never come; return how many.

    With `keep_ends` the first and the last one stay.
    """
    store = open_lmdb(str(ledgers_dir / "index"), MAP_BYTES, TABLES)
    try:
        return _remove(store, ledger_id, keep_ends=keep_ends)
    finally:
        store.close()


def _remove(store: KeyValueStore, ledger_id: int, *, keep_ends: bool) -> int:
    files = Index(store).files()
    with store.write() as txn:
        row = row_of(txn, ledger_id)
        pairs = txn.range(
            "locations", page_key(ledger_id, 0), page_key(ledger_id, MAX_ID), PAGES_MAX
        )
        if row is None or not pairs:
            return 0
        numbers, found = decode_pages(pairs)
        slots = found.copy()
        chosen = slots[:, :, 2] > 0
        if keep_ends:
            used = np.flatnonzero(chosen)
            chosen.reshape(-1)[used[[0, -1]]] = False
        gone = slots[chosen]
        if not len(gone):
            return 0
        slots[chosen] = 0
        change = _Commit(txn, files)
        change.slots.count_live(gone[:, 0], gone[:, 2], -1)
        for key, _ in pairs:
            txn.delete("locations", key)
        left = slots[:, :, 2].any(axis=1)
        txn.put_many("locations", encode_pages(ledger_id, numbers[left], slots[left]))
        new = replace(
            row,
            entries=row.entries - len(gone),
            payload_bytes=row.payload_bytes - int(gone[:, 2].sum(dtype="int64")),
        )
        if not left.any():
            new = replace(new, first_entry_id=NO_ENTRY, last_entry_id=NO_ENTRY)
        txn.put("ledgers", ledger_key(ledger_id), encode_ledger_row(ledger_id, new))
        change.write_files()
    return len(gone)


def flip_bit(directories: list[Path], payload: bytes) -> int:
    """Flip a bit of a stored payload, once in each file that has it; return how many have."""
    flipped = 0
    for directory in directories:
        for path in sorted([*directory.rglob("*.journal"), *directory.rglob("*.log")]):
            data = path.read_bytes()
            at = data.find(payload)
            if at < 0:
                continue
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            flipped += 1
    return flipped
