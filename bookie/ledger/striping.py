"""Selects the entries of a batch that one slot stores, and joins the parts of several slots.

Only striped ledgers (E > Qw) need this module. The functions compute ids with numpy, visit each
packet once in Python, and copy each payload once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bookie.entry.batch import EntryBatch
from bookie.ledger.quorum import Stripe

Ids = NDArray[np.int64]


def select(batch: EntryBatch, stripe: Stripe) -> EntryBatch | None:
    """Return the entries of `batch` that belong to `stripe`; None if no entry belongs to it."""
    if stripe.modulus == 0:
        return batch
    ids = batch.entry_ids()
    wanted = (ids - stripe.first_residue) % stripe.modulus < stripe.count
    if wanted.all():
        return batch
    positions = np.flatnonzero(wanted)
    if not len(positions):
        return None
    packets = batch.packets()
    return _batch_of(
        batch.ledger_id,
        ids[positions],
        batch.sizes[positions].astype(np.int64, copy=False),
        [packets[position] for position in positions.tolist()],
    )


def is_run(batch: EntryBatch, stripe: Stripe, first_entry_id: int) -> bool:
    """True if the batch has exactly the ids of `stripe` from `first_entry_id` to its last id."""
    if batch.first_entry_id != stripe.next_id(first_entry_id):
        return False
    if stripe.modulus == 0:
        return batch.is_contiguous
    # Check that all ids lie in the stripe, and that no id of the stripe is missing between them.
    relative = batch.entry_ids() - stripe.first_residue
    if not (relative % stripe.modulus < stripe.count).all():
        return False
    ranks = relative // stripe.modulus * stripe.count + relative % stripe.modulus
    return bool((np.diff(ranks) == 1).all())


def run_from(first_entry_id: int, batches: Sequence[EntryBatch]) -> EntryBatch | None:
    """Join `batches` into the longest run of consecutive entries that begins at `first_entry_id`.

    Batches may overlap; if several batches hold an entry, the result has one copy of the entry. The
    result is None if no batch holds `first_entry_id`.
    """
    if len(batches) == 1 and batches[0].is_contiguous:
        clipped = batches[0].clip(first_entry_id, batches[0].last_entry_id)
        starts_there = clipped.count and clipped.first_entry_id == first_entry_id
        return clipped if starts_there else None
    if not batches:
        return None
    # `positions` are the packets' positions in all batches together; `unique` keeps the first
    # packet of each id.
    ids, positions = np.unique(
        np.concatenate([batch.entry_ids() for batch in batches]), return_index=True
    )
    start = int(np.searchsorted(ids, first_entry_id))
    ids, positions = ids[start:], positions[start:]
    in_run = ids == np.arange(len(ids), dtype=np.int64) + first_entry_id
    length = len(ids) if in_run.all() else int(in_run.argmin())
    if length == 0:
        return None
    packets = [packet for batch in batches for packet in batch.packets()]
    sizes = np.concatenate([batch.sizes.astype(np.int64, copy=False) for batch in batches])
    chosen = positions[:length]
    return _batch_of(
        batches[0].ledger_id,
        ids[:length],
        sizes[chosen],
        [packets[position] for position in chosen.tolist()],
    )


def _batch_of(ledger_id: int, ids: Ids, sizes: Ids, packets: list[memoryview]) -> EntryBatch:
    steps = np.diff(ids)
    contiguous = bool((steps == 1).all())
    return EntryBatch(
        ledger_id, int(ids[0]), None if contiguous else steps, sizes, b"".join(packets)
    )
