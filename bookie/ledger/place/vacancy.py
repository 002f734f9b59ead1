"""Slots without a bookie: how a ledger is created while fewer bookies live than its ensemble has.

The sizes of a ledger never change, so a ledger that is created smaller stays smaller. A ledger with
vacant slots has the sizes that were wanted from its first entry on. A vacant slot bears a name that
no bookie may take. Writer, readers and recovery treat it as a bookie that is always silent. The
first spare takes its slot over, when a writer claims the ledger or by an ensemble change. The
fragments of the ledger record which entries were written without it.
"""

from __future__ import annotations

from bookie.errors import NotEnoughBookiesError
from bookie.ledger.quorum import Quorum, mask_of


def vacant_slots(quorum: Quorum, count: int) -> tuple[int, ...]:
    """Which `count` slots stay vacant: spread evenly, so that no write set has many of them.

    Raises:
        NotEnoughBookiesError: a write set would be left with fewer bookies than the ack quorum.
    """
    size = quorum.ensemble_size
    vacant = tuple(size - 1 - index * size // count for index in reversed(range(count)))
    occupied = quorum.every_slot & ~mask_of(vacant)
    if not quorum.is_acknowledged(occupied, range(len(quorum.windows))):
        raise NotEnoughBookiesError(
            f"with only {size - count} writable bookies of {size}, some entries would have fewer "
            f"than {quorum.ack_quorum_size} copies"
        )
    return vacant
