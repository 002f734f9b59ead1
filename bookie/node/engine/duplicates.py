"""Handles plain adds whose entry ids are already stored: a resent request, or a second writer.

After a broken stream, a writer resends unanswered entries byte for byte. If all entries of a batch
are stored with equal bytes, the batch is acknowledged once the stored copies are durable. If some
entries of the batch are not stored and the others are equal, the whole batch is stored. A batch
with different bytes is refused and reported: the cause is corruption, or two writers without a
fence. Recovery adds are stored without a comparison, and the newest copy of an entry wins.
"""

from __future__ import annotations

import numpy as np

from bookie.entry.batch import EntryBatch
from bookie.errors import CorruptionError
from bookie.ids import Status
from bookie.node.engine.admission import Admission
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.reader import EntryReader
from bookie.telemetry import Metrics, event_log
from bookie.wire.commands import AddCommand, Reply

_log = event_log(__name__)

COMPARE_SPAN_MAX = 4096
"""The widest range of entry ids that one look-up of stored entries may cover."""


class DuplicateAdds:
    """Compares adds with stored bytes; accepts or refuses each add in a synchronous section."""

    def __init__(self, admission: Admission, reader: EntryReader, metrics: Metrics) -> None:
        self._admission = admission
        self._reader = reader
        self._metrics = metrics

    async def add(self, state: LocalLedger, command: AddCommand, max_lac: int) -> Reply:
        """Add entries whose ids may be stored: acknowledge equal bytes, refuse different bytes.

        If another add changed entries with these ids meanwhile, the comparison is repeated.

        Raises:
            CorruptionError: stored entries with these ids cannot be read.
        """
        batch = command.batch
        assert batch is not None
        while True:
            before = (state.comparisons, state.last_entry_id)
            same, missing = await self._compare(state, batch)
            refusal = self._admission.refusal(state, command.master_key, recovery=False)
            if refusal is not None:
                return refusal
            unchanged = state.comparisons == before[0] and (
                batch.last_entry_id <= before[1] or state.last_entry_id == before[1]
            )
            if not unchanged:
                continue
            if not same:
                self._metrics.errors_total.labels("conflict").inc()
                _log.error(
                    "conflicting_add",
                    ledger_id=state.ledger_id,
                    first_entry_id=batch.first_entry_id,
                )
                return Reply(
                    Status.CONFLICT,
                    f"other bytes are stored for an entry of ledger {state.ledger_id} "
                    f"between {batch.first_entry_id} and {batch.last_entry_id}",
                )
            if not missing:
                # Every entry of the batch is already queued or written, with equal bytes; wait
                # until all are durable. If the journal refused an entry meanwhile, compare again.
                outcome = await self._admission.force()
                if outcome.status is Status.OK and state.comparisons != before[0]:
                    continue
                return outcome
            return await self._admission.add(state, command, max_lac)

    async def _compare(self, state: LocalLedger, batch: EntryBatch) -> tuple[bool, bool]:
        """Compare the batch with the stored entries that have the same ids.

        Returns:
            (True if all stored entries are equal, True if some ids are not stored).
        """
        ids, offsets = batch.entry_ids(), batch.offsets()
        view = memoryview(batch.payload)
        missing = False
        start = 0
        while start < len(ids):
            stop = int(np.searchsorted(ids, int(ids[start]) + COMPARE_SPAN_MAX, "left"))
            present, stored = await self._reader.stored(state.ledger_id, ids[start:stop])
            if stored is None:
                raise CorruptionError(
                    f"stored entries of ledger {state.ledger_id} cannot be read for comparison"
                )
            if present.all():
                ours: bytes | memoryview = view[int(offsets[start]) : int(offsets[stop])]
            else:
                missing = True
                where = np.flatnonzero(present) + start
                ours = b"".join(view[int(offsets[i]) : int(offsets[i + 1])] for i in where)
            if ours != stored:
                return False, missing
            start = stop
        return True, missing
