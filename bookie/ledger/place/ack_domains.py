"""True if the bookies that acknowledged span enough failure domains.

With a minimum of two, an acknowledged entry survives the loss of any one rack, zone or region. This
comes on top of the ack quorum and is strict: while the answering bookies span too few domains,
nothing is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from bookie.ledger.place.spread import UNKNOWN


@dataclass(frozen=True, slots=True)
class AckDomains:
    """The domains of the slots of one ensemble, as masks, and how many an acknowledgement needs."""

    masks: tuple[int, ...]
    """The slots of each known domain. Slots in unknown domains are in none."""
    minimum: int
    """Domains that the acknowledging slots of each write set must span; 1 asks for nothing."""

    @classmethod
    def of(cls, domains: Sequence[str], minimum: int) -> Self:
        """From the domain of each slot, `UNKNOWN` where the bookie has no label."""
        masks: dict[str, int] = {}
        for slot, domain in enumerate(domains):
            if domain != UNKNOWN:
                masks[domain] = masks.get(domain, 0) | 1 << slot
        return cls(tuple(masks.values()), minimum)

    def is_enough(self, acked: int, windows: Iterable[int]) -> bool:
        """True if `acked` spans enough domains inside of each window.

        With all slots that still work as `acked` it says whether it can ever be enough.

        Args:
            acked: the slots that acknowledged, as a mask.
            windows: the write sets of the entries, as masks (`Quorum.windows`).
        """
        if self.minimum <= 1:
            return True
        return all(self._spanned(acked & window) >= self.minimum for window in windows)

    def _spanned(self, slots: int) -> int:
        return sum(1 for mask in self.masks if mask & slots)
