"""Look for entries of an open ledger that its last fragment's bookies do not know.

The metadata store may have come back from a backup that was made before a writer replaced bookies.
Then the ledger's last fragment names former bookies, which deny later entries truthfully. A
recovery asks nobody else, so it would close the ledger too early. The bookies that took the later
entries are not named, but they can be asked.

A bookie that was replaced may have entries that were never acknowledged and that nobody else got.
They look the same. So the caller must not decide by itself that they may be dropped.
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
    """A sentence if another bookie has an entry behind those of the last ensemble; else empty.

    A bookie that does not answer is passed over, as one that is away.

    Args:
        pool: whose connections are used.
        registered: the bookies to ask, beside those of the last ensemble.
        metadata: of a ledger that is not closed.
    """
    members = metadata.last_fragment.bookies
    # First the others: what a living writer adds meanwhile is known to the members then.
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
    """The last entry that each bookie lists since the last fragment's first one; -1 if none."""

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
