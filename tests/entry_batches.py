"""Batches of entries that tests put together from parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bookie.entry.batch import EntryBatch


def merged(batches: Sequence[EntryBatch]) -> EntryBatch:
    """One batch of all entries of `batches`, which share a ledger and ascend without overlap."""
    first = batches[0]
    steps = np.diff(np.concatenate([batch.entry_ids() for batch in batches]))
    assert all(batch.ledger_id == first.ledger_id for batch in batches)
    assert (steps > 0).all()
    return EntryBatch(
        first.ledger_id,
        first.first_entry_id,
        None if (steps == 1).all() else steps,
        np.concatenate([batch.sizes.astype(np.int64, copy=False) for batch in batches]),
        b"".join([batch.payload for batch in batches]),
    )
