"""The content of a log beside entries."""

from __future__ import annotations

import pytest

from bookie.node.engine.boot.replay_batch import ReplayBatch
from bookie.node.engine.entry_log import state_records
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.format.record_arrays import parse_arrays
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.reclaim.compaction_log import STATE_BYTES_MAX


@pytest.mark.parametrize("key", [None, b"", b"k" * 32])
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("limbo", [False, True])
def test_a_rebuild_learns_of_fence_limbo_and_key(
    key: bytes | None, fenced: bool, limbo: bool
) -> None:
    """All three are kept. An unknown key differs from the empty key."""
    row = LedgerIndexRow(fenced=fenced, limbo=limbo, key_digest=key)
    records = state_records(7, row)
    batch = ReplayBatch(lambda ledger_ids: [None] * len(ledger_ids), 10)
    body = memoryview(b"".join(records))
    parsed = parse_arrays(body, len(records))
    batch.take(parsed, 1, parsed.packets)
    state = batch.states.get(7, LocalLedger(7, None))
    assert (state.fenced, state.key_digest) == (fenced, key)
    assert state.limbo or not limbo


def test_the_bound_of_what_is_said_of_a_ledger_holds() -> None:
    """Or a log would ask for less room than it needs."""
    row = LedgerIndexRow(
        fenced=True, limbo=True, key_digest=b"k" * 32, lac_packet=b"p" * 64, deleted_at_ms=1
    )
    assert sum(map(len, state_records(7, row))) <= STATE_BYTES_MAX + 64
