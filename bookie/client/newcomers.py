"""Bookies that take over slots of open ledgers: who is chosen, and who they are.

A bookie that failed is left alone by this client for a while, whichever ledger noticed it. It is
chosen again when it registers anew. If it lost its data, it may take over its own slot.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.errors import MetadataError
from bookie.protocol.placement import choose_newcomers
from bookie.protocol.quorum import slots_of

QUARANTINE_SECONDS = 30.0
"""How long a bookie that failed is not chosen, on average."""

_REREAD_SECONDS_MIN = 0.05
_REREAD_SECONDS_MAX = 1.0


class Quarantine:
    """The bookies that failed one of this client's ledgers lately, and have not come back since."""

    def __init__(self, directory: BookieDirectory) -> None:
        self._directory = directory
        self._until: dict[str, tuple[float, int]] = {}
        """By bookie: until when, and how often it had arrived."""

    def put(self, bookie_id: str) -> None:
        """Do not choose it for a while; how long is left to chance, so that clients differ."""
        seconds = QUARANTINE_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
        until = asyncio.get_running_loop().time() + seconds
        self._until[bookie_id] = until, self._directory.arrivals(bookie_id)

    def members(self) -> set[str]:
        """Those that must not be chosen now."""
        now, arrivals = asyncio.get_running_loop().time(), self._directory.arrivals
        self._until = {
            bookie_id: (until, arrived)
            for bookie_id, (until, arrived) in self._until.items()
            if until > now and arrivals(bookie_id) == arrived
        }
        return set(self._until)


def find_newcomers(
    directory: BookieDirectory,
    quarantine: Quarantine,
    ensemble: tuple[str, ...],
    slots: int,
    incarnations: Mapping[str, str],
) -> dict[int, str]:
    """Writable bookies for these slots (a mask); those that are missing find none.

    Args:
        directory: who is there.
        quarantine: who must not be chosen.
        ensemble: the bookies that stand in the slots now.
        slots: a mask.
        incarnations: those of the ensemble, as the writer knows them.
    """
    writable = directory.bookies()
    candidates = writable.keys() - quarantine.members()
    pick = random.SystemRandom().randrange
    found = choose_newcomers(ensemble, list(slots_of(slots)), candidates, pick=pick)
    for slot in slots_of(slots):
        bookie_id = ensemble[slot]
        if slot not in found and bookie_id in writable:
            incarnation = writable[bookie_id].incarnation
            if incarnation != incarnations.get(bookie_id, incarnation):
                found[slot] = bookie_id
    return found


async def read_incarnation(cookies: CookieManager, bookie_id: str) -> str | None:
    """The incarnation of a bookie that the metadata names by now; None if it was removed.

    Ask after the ledger's metadata names the bookie. If it loses its state later, it renews its
    incarnation first and then lists the ledgers that name it, so that it finds this one. Asks until
    the store answers.
    """
    pause = _REREAD_SECONDS_MIN
    while True:
        try:
            found = await cookies.read(bookie_id)
        except MetadataError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _REREAD_SECONDS_MAX)
        else:
            return None if found is None else found.value.incarnation
