"""Finds the entries that a bookie must store according to metadata, and counts the missing ones."""

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
    """A group of entries that the bookie must store: the ids of `stripe` in ``first … last``."""

    first: int
    last: int
    stripe: Stripe

    @property
    def entries(self) -> int:
        """The number of entry ids that the bookie must store."""
        modulus, count = self.stripe.modulus, self.stripe.count
        if modulus == 0:
            return self.last - self.first + 1
        first, end = (at - self.stripe.first_residue for at in (self.first, self.last + 1))
        rounds = (end // modulus - first // modulus) * count
        return rounds + min(end % modulus, count) - min(first % modulus, count)

    def holds_any(self, ids: Ids) -> bool:
        """True if the bookie must store at least one of `ids`."""
        ids = ids[(self.first <= ids) & (ids <= self.last)]
        modulus, count = self.stripe.modulus, self.stripe.count
        if modulus:
            ids = ids[(ids - self.stripe.first_residue) % modulus < count]
        return bool(len(ids))

    def count_below(self, ids: Ids) -> Ids:
        """For each of `ids`, count the stripe's ids in ``0 … id - 1``."""
        modulus, count = self.stripe.modulus, self.stripe.count
        if modulus == 0:
            return ids
        # From the first residue on, each group of `modulus` ids begins with `count` ids of the
        # stripe.
        shifted = np.append(ids, 0) - self.stripe.first_residue
        totals = shifted // modulus * count + np.minimum(shifted % modulus, count)
        below: Ids = totals[:-1] - totals[-1]
        return below


@dataclass(frozen=True, slots=True)
class Missing:
    """The number of entries that are missing here, and the lowest of their ids, or -1 for none."""

    count: int = 0
    first: int = -1

    def plus(self, other: Missing) -> Missing:
        """Add the results of two id ranges; `other` has the higher ids."""
        return Missing(self.count + other.count, self.first if self.count else other.first)


def holdings(metadata: LedgerMetadata, bookie_id: str) -> Iterator[Holding]:
    """Yield the entries that the ledger's ensembles and write quorum assign to `bookie_id`.

    The holdings are in ascending order. For a ledger that is not closed, the last fragment is
    omitted, because its end is unknown.
    """
    # Metadata may have an ack quorum of 0, which does not matter here.
    ack = max(1, metadata.ack_quorum_size)
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum_size, ack)
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    # Leave out MAX_ID, because the number after it would exceed 64 bits.
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
    """Count the entries of `holding` that are in no range of `stored`.

    The ranges in `stored` are ascending and disjoint.
    """
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
    """Yield no ranges, like the listing of a ledger without stored entries."""
    nothing: tuple[tuple[Ids, Ids], ...] = ()
    for ranges in nothing:
        yield ranges
