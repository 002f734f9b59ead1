"""Before a bookie that may have lost data registers: fence and limbo what it could answer wrong.

Only ledgers that are not closed and whose last ensemble names this bookie matter: the fragments
before the last are committed, and a closed ledger needs no answer from here to know its end. Such a
ledger takes no plain add any more, and every negative answer about it is "unknown".

Source: BookKeeper's BP-46, boot sequence of the data integrity check.
"""

from __future__ import annotations

from bookie.cluster.ledgers import LedgerManager
from bookie.errors import NoSuchLedgerError, StorageFailedError
from bookie.formats.ledger_metadata import LedgerMetadata, LedgerState
from bookie.ids import Status
from bookie.storage.engine import Engine
from bookie.telemetry import event_log

_log = event_log(__name__)


async def put_open_ledgers_in_limbo(engine: Engine, ledgers: LedgerManager, bookie_id: str) -> int:
    """Durably fence and limbo every open ledger of this bookie; returns how many.

    If no ledger at all names this bookie, nothing can be missing and the check is over.

    Raises:
        MetadataError: the listing could not be completed; nothing may be served then.
        StorageFailedError: the journal did not take it.
    """
    count = 0
    named = False
    async for ledger_id in ledgers.list_ids():
        try:
            metadata = (await ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            continue
        named = named or any(bookie_id in fragment.bookies for fragment in metadata.fragments)
        if not is_affected(metadata, bookie_id):
            continue
        state = await engine.load(ledger_id)
        if state.limbo:
            continue
        outcome = await engine.admission.set_limbo(state, in_limbo=True)
        if outcome.status is not Status.OK:
            raise StorageFailedError(f"ledger {ledger_id} could not be fenced: {outcome.message}")
        count += 1
    if not named:
        await engine.clear_integrity_check()
    _log.warning("limbo", ledgers=count, reason="this bookie may have lost data")
    return count


def is_affected(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether this bookie's answers could decide where the ledger ends."""
    return metadata.state is not LedgerState.CLOSED and bookie_id in metadata.last_fragment.bookies
