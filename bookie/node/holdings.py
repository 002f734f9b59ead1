"""The entries that a bookie should hold by a ledger's metadata, and those that are missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import numpy as np

from bookie.ids import MAX_ID
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum, Stripe
from bookie.node.engine.format.arrays import Ids


@dataclass(frozen=True, slots=True)
class Holding:
    """The ids of `stripe` in ``first … last`` are this bookie's to store."""

    first: int
    last: int
    stripe: Stripe

    @property
    def entries(self) -> int:
        """The number of these ids."""
        modulus, count = self.stripe.modulus, self.stripe.count
        if modulus == 0:
            return self.last - self.first + 1
        first, end = (at - self.stripe.first_residue for at in (self.first, self.last + 1))
        rounds = (end // modulus - first // modulus) * count
        return rounds + min(end % modulus, count) - min(first % modulus, count)

    def count_below(self, ids: Ids) -> Ids:
        """The number of ids of the stripe in ``0 … id - 1``, for each of `ids`."""
        modulus, count = self.stripe.modulus, self.stripe.count
        if modulus == 0:
            return ids
        # Seen from the first residue on, each round of the modulus begins with `count` ids.
        shifted = np.append(ids, 0) - self.stripe.first_residue
        totals = shifted // modulus * count + np.minimum(shifted % modulus, count)
        below: Ids = totals[:-1] - totals[-1]
        return below


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries that should be here and are missing. `first` is -1 if all are here."""

    count: int = 0
    first: int = -1

    def plus(self, other: Missing) -> Missing:
        """Both together; `other` has the higher ids."""
        return Missing(self.count + other.count, self.first if self.count else other.first)


def holdings(metadata: LedgerMetadata, bookie_id: str) -> Iterator[Holding]:
    """The entries that `bookie_id` should hold by ensembles and write sets, ascending.

    Of a ledger that is not closed these are the fragments before the last, whose ends are known.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    # The number after the largest id would exceed 64 bits.
    end = (
        metadata.last_entry_id if metadata.is_closed else metadata.last_fragment.first_entry_id - 1
    )
    end = min(end, MAX_ID - 1)
    lasts = [*(min(first - 1, end) for first in firsts[1:]), end]
    for fragment, last in zip(metadata.fragments, lasts, strict=True):
        for slot, name in enumerate(fragment.bookies):
            if name == bookie_id and fragment.first_entry_id <= last:
                yield Holding(fragment.first_entry_id, last, quorum.stripe_of(slot))


async def missing_of(holding: Holding, stored: AsyncIterator[tuple[Ids, Ids]]) -> Missing:
    """The part of `holding` that is missing in `stored`, which are ascending, disjoint ranges."""
    count, first, cursor = 0, -1, holding.first
    async for firsts, lasts in stored:
        starts = np.concatenate(([cursor], lasts[:-1] + 1))
        gaps = holding.count_below(firsts) - holding.count_below(starts)
        count += int(gaps.sum())
        if first < 0 and gaps.any():
            first = holding.stripe.next_id(int(starts[int(np.flatnonzero(gaps)[0])]))
        cursor = int(lasts[-1]) + 1
    if cursor <= holding.last:
        ends = holding.count_below(np.array([cursor, holding.last + 1], np.int64))
        tail = int(ends[1] - ends[0])
        count += tail
        if first < 0 and tail:
            first = holding.stripe.next_id(cursor)
    return Missing(count, first)


async def nothing_stored() -> AsyncIterator[tuple[Ids, Ids]]:
    """The ranges of a bookie that stores nothing of a ledger."""
    nothing: tuple[tuple[Ids, Ids], ...] = ()
    for ranges in nothing:
        yield ranges
