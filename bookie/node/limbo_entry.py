"""Puts ledgers in limbo before the bookie serves requests, if the bookie may have lost data.

The bookie gives no negative answer about a ledger in limbo. Every ledger that names this bookie
enters limbo, because an entry that was stored here may be gone. A ledger with unreadable metadata
also enters limbo, because its metadata may name this bookie. Limbo does no harm to a complete
ledger: the bookie only gives no denials about it.

This module fences no ledger. A fence may be lost, too, but the bookie refuses a fenced writer that
names an earlier incarnation. A writer that names no incarnation is refused while the ledger is in
limbo. After limbo, such a writer is refused because of the fence that the integrity check wrote.

Source: BookKeeper's BP-46, boot sequence of the data integrity check. In BookKeeper, only open
ledgers enter limbo, and these ledgers are fenced. So in BookKeeper a reader of a closed ledger may
get a wrong denial, and writers that could continue are fenced, too.
"""

from __future__ import annotations

from bookie.errors import CorruptionError, StorageFailedError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata
from bookie.node.engine.admission import Waiter
from bookie.node.engine.engine import Engine
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND
from bookie.telemetry import event_log

_log = event_log(__name__)

WAITERS_MAX = 1000
"""The largest number of pending limbo records; pending records share the journal's syncs."""


async def put_ledgers_in_limbo(engine: Engine, ledgers: LedgerManager, bookie_id: str) -> int:
    """Put each ledger that names, or may name, this bookie in limbo; return the ledger count.

    Limbo is durable when this returns. The engine also durably records that all these ledgers are
    in limbo. Because of this record, a later start of the bookie skips this function, unless the
    bookie may have lost data again. If no ledger names this bookie, the bookie is no longer in
    doubt.

    Raises:
        MetadataError: the listing failed, so the bookie must not serve.
        StorageFailedError: the journal failed, or the index is damaged.
    """
    named = 0
    waiters: list[Waiter] = []

    async def put(ledger_id: int) -> None:
        nonlocal named
        named += 1
        try:
            state = await engine.load(ledger_id)
        except CorruptionError as error:
            raise engine.index_is_damaged(error) from error
        if state.limbo:
            return
        waiters.append(engine.set_limbo(state, in_limbo=True, fence=False))
        if len(waiters) >= WAITERS_MAX:
            await _durable(waiters)

    unreadable: list[int] = []
    async for found in ledgers.list_readable(unreadable.append):
        if names(found.value, bookie_id):
            await put(found.value.ledger_id)
    for ledger_id in unreadable:
        await put(ledger_id)
    await _durable(waiters)
    if named:
        await engine.set_verdict(INTEGRITY_IN_LIMBO)
        _log.warning("limbo", ledgers=named, reason="this bookie may have lost data")
    else:
        await engine.set_verdict(INTEGRITY_SOUND)
    return named


async def _durable(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        outcome = await waiter
        if outcome.status is not Status.OK:
            raise StorageFailedError(f"a ledger could not be put in limbo: {outcome.message}")
    waiters.clear()


def names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """True if any fragment of the ledger names the bookie in its ensemble."""
    return any(bookie_id in fragment.bookies for fragment in metadata.fragments)
