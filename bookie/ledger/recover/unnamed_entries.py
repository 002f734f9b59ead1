"""Finds entries of an open ledger that the bookies of the ledger's last fragment do not have.

The metadata store may be restored from a backup that was made before a writer replaced bookies.
After such a restore, the ledger's last fragment names former bookies, which correctly deny later
entries. A recovery asks only the bookies of the last fragment, so it would close the ledger too
early. `find_unnamed_entries` also asks the other registered bookies, which may have the later
entries.

A bookie that was replaced may be the only bookie with some entries that were never acknowledged.
Unacknowledged entries look like acknowledged entries. So a program must not drop unacknowledged
entries without an operator's decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.env import gather
from bookie.errors import BookieError
from bookie.ids import NO_ENTRY
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.verification import list_stored

BOOKIES_AT_ONCE = 16


async def find_unnamed_entries(
    pool: BookiePool, registered: Iterable[str], metadata: LedgerMetadata
) -> str:
    """Describe an entry that is later than all entries on the last ensemble; "" if none is.

    A bookie that does not answer, or is not registered, is ignored.

    Args:
        pool: the pool whose connections are used.
        registered: the bookies to ask, besides the bookies of the last ensemble.
        metadata: the metadata of a ledger that is not closed.
    """
    members = metadata.last_fragment.bookies
    # Ask the members last: a live writer may add entries on them meanwhile, and an older answer
    # would miss these entries.
    others = await _last_entries(pool, sorted(set(registered) - set(members)), metadata)
    bookie_id, last = max(others.items(), key=lambda one: one[1], default=("", NO_ENTRY))
    if last == NO_ENTRY:
        return ""
    known = max((await _last_entries(pool, members, metadata)).values(), default=NO_ENTRY)
    if last <= known:
        return ""
    return (
        f"bookie {bookie_id} has entry {last}, and the last ensemble does not name it and knows "
        f"entries up to {known}: the metadata may come from an old backup"
    )


async def _last_entries(
    pool: BookiePool, names: Iterable[str], metadata: LedgerMetadata
) -> dict[str, int]:
    """Return the last entry of the last fragment that each bookie lists; -1 if it lists none."""

    async def last_of(bookie_id: str) -> int:
        try:
            ranges = await list_stored(pool, bookie_id, metadata, first)
        except BookieError:
            return NO_ENTRY
        return max((last for _, last in ranges), default=NO_ENTRY)

    first, asked = metadata.last_fragment.first_entry_id, list(names)
    found: dict[str, int] = {}
    for start in range(0, len(asked), BOOKIES_AT_ONCE):
        some = asked[start : start + BOOKIES_AT_ONCE]
        found |= zip(some, await gather(map(last_of, some)), strict=True)
    return found
