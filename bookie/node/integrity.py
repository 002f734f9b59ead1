"""Before a bookie that may have lost data serves: limbo and fence what it could answer wrong.

A ledger in limbo gets no negative answer from here. Every ledger that names this bookie enters it,
because an entry that was stored here may be gone. A ledger that is not closed and whose *last*
ensemble names this bookie is fenced as well: a fence may be gone, too, and the bookie's answers
decide where the ledger ends. The fragments before the last are committed, and a closed ledger takes
no plain add.

Source: BookKeeper's BP-46, boot sequence of the data integrity check; there only ledgers of the
last kind enter limbo, and a reader of a closed ledger may be told that an entry does not exist.
"""

from __future__ import annotations

from bookie.cluster.ledgers import LedgerManager
from bookie.errors import CorruptionError, StorageFailedError
from bookie.formats.ledger_metadata import LedgerMetadata, LedgerState
from bookie.ids import Status
from bookie.storage.accept import Waiter
from bookie.storage.engine import Engine
from bookie.storage.index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND
from bookie.telemetry import event_log

_log = event_log(__name__)

WAITERS_MAX = 1000
"""Records that are under way at a time; they share the syncs of the journal."""


async def put_ledgers_in_limbo(engine: Engine, ledgers: LedgerManager, bookie_id: str) -> int:
    """Durably limbo every ledger of this bookie, and fence the open ones; returns how many.

    That it was done is durable, too: a later start lists again only if it finds new damage, and
    ledgers that were made meanwhile are not suspected. If no ledger at all names this bookie,
    nothing can be missing and the doubt is over.

    Raises:
        MetadataError: the listing could not be completed; nothing may be served then.
        StorageFailedError: the journal did not take it, or the index is damaged.
    """
    named = 0
    waiters: list[Waiter] = []
    async for found in ledgers.list_all():
        metadata = found.value
        if not names(metadata, bookie_id):
            continue
        named += 1
        fence = is_affected(metadata, bookie_id)
        try:
            state = await engine.load(metadata.ledger_id)
        except CorruptionError as error:
            raise engine.index_is_damaged(error) from error
        if state.limbo and (state.fenced or not fence):
            continue
        waiters.append(engine.admission.set_limbo(state, in_limbo=True, fence=fence))
        if len(waiters) >= WAITERS_MAX:
            await _durable(waiters)
    await _durable(waiters)
    if named:
        await engine.integrity.set(INTEGRITY_IN_LIMBO)
    else:
        await engine.integrity.set(INTEGRITY_SOUND)
    _log.warning("limbo", ledgers=named, reason="this bookie may have lost data")
    return named


async def _durable(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        outcome = await waiter
        if outcome.status is not Status.OK:
            raise StorageFailedError(f"a ledger could not be put in limbo: {outcome.message}")
    waiters.clear()


def names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether any entry of the ledger is, or was, this bookie's to store."""
    return any(bookie_id in fragment.bookies for fragment in metadata.fragments)


def is_affected(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether this bookie's answers could decide where the ledger ends."""
    return metadata.state is not LedgerState.CLOSED and bookie_id in metadata.last_fragment.bookies
