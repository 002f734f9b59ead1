"""Plans the audit of a ledger's copies, in pieces of work of about equal cost. No I/O.

A *copy range* is the entries that one bookie should store in a range of ids of one fragment. An
`AuditItem` contains copy ranges of one ledger that are checked together. The cost of an item is the
bytes of its copy ranges, and a fixed cost for each copy range. Items are packed into bins of about
equal cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bookie.ids import MAX_ID, NO_ENTRY
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.quorum import Quorum, Stripe

COPY_RANGE_COST_BYTES = 256 * 1024
"""The fixed cost of one copy range, because one call takes about as long as reading this number of
bytes."""

OPEN_LEDGER_BYTES = 64 * 1024 * 1024
"""Assumed size of an open ledger; only its bookies know the true size."""

WINDOW_ENTRIES = 1 << 16
"""The largest number of ids in a window; a repair handles one window at a time."""

EntryRange = tuple[int, int]
"""First and last entry id, both inclusive."""


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Entries that one bookie should store: the ids of its slot's stripe in a range of ids."""

    fragment: int
    """The first entry id of the fragment."""
    slot: int
    bookie_id: str
    first_entry_id: int
    last_entry_id: int | None
    """The last entry, inclusive; None means the last add confirmed of an open ledger."""


@dataclass(frozen=True, slots=True)
class AuditItem:
    """Copy ranges of one ledger that are checked together."""

    ledger_id: int
    metadata: bytes
    """The ledger's metadata, encoded as in the metadata store."""
    copies: tuple[CopyRange, ...]
    cost_bytes: int


def quorum_of(metadata: LedgerMetadata) -> Quorum:
    """Return the quorum of a ledger; an ack quorum of 0 in its metadata counts as 1 here."""
    return Quorum(
        metadata.ensemble_size, metadata.write_quorum_size, max(1, metadata.ack_quorum_size)
    )


def fragment_ends(metadata: LedgerMetadata) -> Iterator[tuple[int, tuple[str, ...], int | None]]:
    """Yield first entry id, bookies and last entry id of each fragment that has entries.

    For the last fragment of an open ledger, the last entry id is None.
    """
    end = metadata.last_entry_id if metadata.is_closed else None
    for fragment, following in pairwise([*metadata.fragments, None]):
        assert fragment is not None
        last = end if following is None else following.first_entry_id - 1
        if following is not None and end is not None:
            last = min(following.first_entry_id - 1, end)
        if last is None or last >= fragment.first_entry_id:
            yield fragment.first_entry_id, fragment.bookies, last


def windows(first: int, last: int) -> Iterator[EntryRange]:
    """Cut a range of ids into windows that are small enough to need little memory and time."""
    for start in range(first, last + 1, WINDOW_ENTRIES):
        yield start, min(start + WINDOW_ENTRIES - 1, last)


def settled_fragments(metadata: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
    """Yield each *settled* fragment, whose entries no longer change, and its last entry.

    All fragments of a closed ledger are settled. In any other ledger, all fragments before the last
    fragment are settled, because their entries were confirmed before the next fragment began. If a
    fragment has no entries, its last entry is below its first entry.
    """
    for fragment, following in pairwise([*metadata.fragments, None]):
        assert fragment is not None
        last = MAX_ID if following is None else following.first_entry_id - 1
        if metadata.is_closed:
            yield fragment, min(last, metadata.last_entry_id)
        elif following is not None:
            yield fragment, last


def with_newcomers(
    metadata: LedgerMetadata, first_entry_id: int, newcomers: Mapping[int, str]
) -> LedgerMetadata:
    """Return the metadata with new bookies in the fragment that begins at `first_entry_id`.

    `newcomers` maps slots of this fragment to their new bookies.
    """
    fragments = tuple(
        replace(
            one,
            bookies=tuple(newcomers.get(slot, name) for slot, name in enumerate(one.bookies)),
        )
        if one.first_entry_id == first_entry_id
        else one
        for one in metadata.fragments
    )
    return replace(metadata, fragments=fragments)


def plan_ledger(metadata: LedgerMetadata, encoded: bytes, item_bytes: int) -> Iterator[AuditItem]:
    """Cut one ledger into audit items; each item costs at most about `item_bytes`.

    An empty closed ledger has one item without copies: only its metadata is checked.
    """
    quorum = quorum_of(metadata)
    entry_bytes = 0.0
    if metadata.is_closed and metadata.last_entry_id != NO_ENTRY:
        entry_bytes = metadata.length / (metadata.last_entry_id + 1) + 64
    copies: list[CopyRange] = []
    cost = 0
    for first, bookies, last in fragment_ends(metadata):
        for slot, bookie_id in enumerate(bookies):
            share = metadata.write_quorum_size / metadata.ensemble_size
            for start, end in _cut(first, last, entry_bytes * share, item_bytes):
                size = OPEN_LEDGER_BYTES
                if end is not None:
                    size = round((end - start + 1) * entry_bytes * share)
                size += COPY_RANGE_COST_BYTES
                if end is not None and not _has_any(quorum.stripe_of(slot), start, end):
                    continue
                if copies and cost + size > item_bytes:
                    yield AuditItem(metadata.ledger_id, encoded, tuple(copies), cost)
                    copies, cost = [], 0
                copies.append(CopyRange(first, slot, bookie_id, start, end))
                cost += size
    yield AuditItem(metadata.ledger_id, encoded, tuple(copies), cost or COPY_RANGE_COST_BYTES)


def _has_any(stripe: Stripe, first: int, last: int) -> bool:
    return stripe.next_id(first) <= last


def _cut(
    first: int, last: int | None, entry_bytes: float, item_bytes: int
) -> Iterator[tuple[int, int | None]]:
    if last is None or entry_bytes == 0:
        yield first, last
        return
    step = max(1, int(item_bytes / entry_bytes))
    for start in range(first, last + 1, step):
        yield start, min(start + step - 1, last)


def pack_items(
    items: Iterable[AuditItem], bin_bytes: int, bins_min: int = 1
) -> list[list[AuditItem]]:
    """Pack items into bins of about equal cost; no bin is empty.

    The number of bins is the cost of all items divided by `bin_bytes`, rounded up. There are at
    least `bins_min` bins, but never more bins than items. The most expensive item is placed first;
    each item goes into the bin that costs least so far.
    """
    ordered = sorted(items, key=lambda item: (-item.cost_bytes, item.ledger_id))
    whole = sum(item.cost_bytes for item in ordered)
    count = min(len(ordered), max(bins_min, -(-whole // bin_bytes)))
    bins: list[list[AuditItem]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for item in ordered:
        load, number = heapq.heappop(loads)
        bins[number].append(item)
        heapq.heappush(loads, (load + item.cost_bytes, number))
    return bins


def stripe_ranges(stripe: Stripe, first: int, last: int) -> list[EntryRange]:
    """Return the ids of a stripe that lie between `first` and `last`, inclusive, as ranges."""
    if last < first:
        return []
    if stripe.modulus == 0:
        return [(first, last)]
    ids = np.arange(first, last + 1, dtype=np.int64)
    return ranges_of(ids[(ids - stripe.first_residue) % stripe.modulus < stripe.count].tolist())


def ranges_of(ids: Sequence[int]) -> list[EntryRange]:
    """Join ascending ids into ranges."""
    ranges: list[EntryRange] = []
    for entry_id in ids:
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1] = (ranges[-1][0], entry_id)
        else:
            ranges.append((entry_id, entry_id))
    return ranges


def runs_by_residue(
    stripe: Stripe, wanted: Sequence[EntryRange]
) -> Iterator[tuple[Stripe, int, int]]:
    """Yield the `wanted` ids of a stripe as runs: a stripe of one residue, first id and last id.

    All ids with the same residue have the same write set. So a bookie stores all entries of a run
    or none, and one read can return a whole run.
    """
    if stripe.modulus == 0:
        for first, last in wanted:
            yield stripe, first, last
        return
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in wanted]
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    for number in range(stripe.count):
        residue = (stripe.first_residue + number) % stripe.modulus
        ranks = ids[ids % stripe.modulus == residue] // stripe.modulus
        for first, last in ranges_of(ranks.tolist()):
            one = Stripe(stripe.modulus, residue, 1)
            yield one, first * stripe.modulus + residue, last * stripe.modulus + residue


def merged(ranges: Iterable[EntryRange]) -> list[EntryRange]:
    """Sort ranges, and join ranges that touch or overlap."""
    joined: list[EntryRange] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def intersection(one: Collection[EntryRange], other: Iterable[EntryRange]) -> list[EntryRange]:
    """Return the ids that are in both `one` and `other`, as ranges, in linear time."""
    return difference(one, difference(one, other))


def difference(one: Iterable[EntryRange], other: Iterable[EntryRange]) -> list[EntryRange]:
    """Return the ids of `one` that are not in `other`, as ranges, in linear time."""
    mine, others = merged(one), merged(other)
    rest: list[EntryRange] = []
    at = 0
    for first, last in mine:
        start = first
        while at < len(others) and others[at][1] < start:
            at += 1
        seen = at
        while seen < len(others) and others[seen][0] <= last:
            begin, end = others[seen]
            if begin > start:
                rest.append((start, begin - 1))
            start = end + 1
            seen += 1
        if start <= last:
            rest.append((start, last))
        at = max(at, seen - 1)
    return rest


def count_of(ranges: Iterable[EntryRange]) -> int:
    """Count the ids in `ranges`."""
    return sum(last - first + 1 for first, last in ranges)


def duties(
    metadata: LedgerMetadata, bookie_id: str, wanted: Sequence[EntryRange]
) -> list[EntryRange]:
    """Return the part of `wanted` that a bookie should store according to the metadata."""
    quorum = quorum_of(metadata)
    owed: list[EntryRange] = []
    for first, bookies, last in fragment_ends(metadata):
        if bookie_id not in bookies:
            continue
        stripe = quorum.stripe_of(bookies.index(bookie_id))
        for begin, end in intersection(wanted, [(first, MAX_ID if last is None else last)]):
            owed += stripe_ranges(stripe, begin, end)
    return merged(owed)
