"""The plan of copies: cut into pieces and balanced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.ledger.copies.replica_plan import (
    COPY_RANGE_COST_BYTES,
    AuditItem,
    EntryRange,
    count_of,
    difference,
    duties,
    fragment_ends,
    intersection,
    merged,
    pack_items,
    plan_ledger,
    quorum_of,
    ranges_of,
    stripe_ranges,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState

MEGABYTE = 1 << 20


def _ledger(
    fragments: tuple[Fragment, ...] = (Fragment(0, ("a", "b", "c")),),
    *,
    last: int = 99,
    length: int = 100_000,
    copies: int = 3,
) -> LedgerMetadata:
    size = len(fragments[0].bookies)
    open_ledger = LedgerMetadata(7, size, copies, 2, LedgerState.OPEN, fragments)
    return open_ledger.closed(last, length)


def _ids(ranges: list[EntryRange]) -> set[int]:
    return {entry_id for first, last in ranges for entry_id in range(first, last + 1)}


def _entries_by_bookie(metadata: LedgerMetadata) -> dict[str, set[int]]:
    """By the definition, entry by entry."""
    quorum = quorum_of(metadata)
    found: dict[str, set[int]] = {}
    for entry_id in range(metadata.last_entry_id + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        for slot in quorum.write_set(entry_id):
            found.setdefault(bookies[slot], set()).add(entry_id)
    return found


STRIPED = _ledger(
    (Fragment(0, ("a", "b", "c", "d")), Fragment(11, ("a", "b", "e", "d"))), copies=2, last=39
)


@pytest.mark.parametrize("metadata", [_ledger(), STRIPED], ids=["whole", "striped"])
@pytest.mark.parametrize("item_bytes", [1, 300_000, MEGABYTE, 64 * MEGABYTE])
def test_the_items_of_a_ledger_hold_every_copy_once(
    metadata: LedgerMetadata, item_bytes: int
) -> None:
    found: dict[str, list[int]] = {}
    for item in plan_ledger(metadata, b"", item_bytes):
        for copy in item.copies:
            assert copy.last_entry_id is not None
            stripe = quorum_of(metadata).stripe_of(copy.slot)
            ranges = stripe_ranges(stripe, copy.first_entry_id, copy.last_entry_id)
            found.setdefault(copy.bookie_id, []).extend(sorted(_ids(ranges)))
    assert {name: set(ids) for name, ids in found.items()} == _entries_by_bookie(metadata)
    assert all(len(ids) == len(set(ids)) for ids in found.values())


def test_a_large_ledger_is_cut_into_items_of_the_wanted_size() -> None:
    items = list(plan_ledger(_ledger(last=9999, length=100 * MEGABYTE), b"m", 16 * MEGABYTE))
    assert len(items) > 3 * 100 // 16
    # One entry range beyond the limit at most: ranges are cut by their own size.
    assert all(item.cost_bytes <= 17 * MEGABYTE for item in items)


def test_fragments_end_where_the_next_begins_or_the_ledger_ends() -> None:
    two = (Fragment(0, ("a", "b", "c")), Fragment(50, ("a", "b", "d")))
    assert [last for _, _, last in fragment_ends(_ledger(two))] == [49, 99]
    assert [last for _, _, last in fragment_ends(_ledger(two, last=10))] == [10]
    opened = replace(_ledger(two), state=LedgerState.OPEN, last_entry_id=-1, length=0)
    assert [last for _, _, last in fragment_ends(opened)] == [49, None]
    assert list(fragment_ends(_ledger(last=-1, length=0))) == []


def test_an_empty_ledger_has_one_item_without_copies() -> None:
    (item,) = plan_ledger(_ledger(last=-1, length=0), b"m", MEGABYTE)
    assert item == AuditItem(7, b"m", (), COPY_RANGE_COST_BYTES)


@given(st.lists(st.integers(1, 10**9), max_size=60), st.integers(1, 10**9), st.integers(1, 20))
def test_bins_are_balanced(costs: list[int], bin_bytes: int, bins_min: int) -> None:
    items = [AuditItem(number, b"", (), cost) for number, cost in enumerate(costs)]
    bins = pack_items(items, bin_bytes, bins_min)
    assert sorted(one.ledger_id for some in bins for one in some) == list(range(len(costs)))
    assert all(bins)
    assert len(bins) >= min(len(costs), bins_min)
    if bins:
        loads = [sum(one.cost_bytes for one in some) for some in bins]
        # No bin is more than its dearest item above the cheapest one.
        assert max(loads) - min(loads) <= max(costs)


RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


@given(RANGES, RANGES)
def test_ranges_are_sets(one: list[EntryRange], other: list[EntryRange]) -> None:
    assert _ids(merged(one)) == _ids(one)
    assert _ids(intersection(one, other)) == _ids(one) & _ids(other)
    assert _ids(difference(one, other)) == _ids(one) - _ids(other)
    assert count_of(merged(one)) == len(_ids(one))
    assert ranges_of(sorted(_ids(one))) == merged(one)


@given(RANGES)
def test_duties_follow_the_definition(wanted: list[EntryRange]) -> None:
    for bookie, ids in _entries_by_bookie(STRIPED).items():
        assert _ids(duties(STRIPED, bookie, wanted)) == _ids(wanted) & ids
    assert duties(STRIPED, "stranger", wanted) == []
