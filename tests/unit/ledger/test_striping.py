"""Batches against stripes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.ledger.quorum import EVERY_ID, Quorum
from bookie.ledger.striping import is_run, run_from, select
from tests.unit.ledger.ledgers import packed

SIZES = st.sampled_from([(3, 2, 2), (4, 2, 1), (5, 3, 2), (5, 4, 3), (7, 2, 2)])


@given(SIZES, st.integers(0, 1000), st.integers(1, 40))
def test_slots_hold_what_the_quorum_says(
    sizes: tuple[int, int, int], first: int, count: int
) -> None:
    """`select` gives each slot exactly the entries whose write set it is in, byte for byte."""
    quorum = Quorum(*sizes)
    batch = packed(first, count)
    packets = dict(zip(range(first, first + count), batch.packets(), strict=True))
    for slot in range(sizes[0]):
        part = select(batch, quorum.stripe_of(slot))
        expected = [e for e in packets if slot in quorum.write_set(e)]
        assert (part.entry_ids().tolist() if part else []) == expected
        if part is not None:
            part.check_bounds()
            assert [bytes(p) for p in part.packets()] == [bytes(packets[e]) for e in expected]
            assert is_run(part, quorum.stripe_of(slot), first)


@given(SIZES, st.integers(0, 1000), st.integers(1, 40), st.sets(st.integers(0, 6), min_size=1))
def test_a_run_is_what_the_slots_hold_together(
    sizes: tuple[int, int, int], first: int, count: int, slots: set[int]
) -> None:
    """`run_from` gives consecutive entries up to the first one that no slot holds."""
    quorum = Quorum(*sizes)
    batch = packed(first, count)
    slots = {slot for slot in slots if slot < sizes[0]}
    parts = [select(batch, quorum.stripe_of(slot)) for slot in slots]
    run = run_from(first, [part for part in parts if part is not None])
    length = 0
    while length < count and slots & set(quorum.write_set(first + length)):
        length += 1
    if length == 0:
        assert run is None
    else:
        assert run is not None
        assert bytes(run.payload) == bytes(batch.clip(first, first + length - 1).payload)
        assert run.is_contiguous


def test_a_run_with_a_hole_is_no_run() -> None:
    """A missing id of the stripe, another stripe, or another start is noticed."""
    quorum = Quorum(5, 3, 2)
    stripe = quorum.stripe_of(2)  # residues 0, 1, 2
    part = select(packed(0, 15), stripe)
    assert part is not None
    assert part.entry_ids().tolist() == [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert is_run(part, stripe, 0)
    assert not is_run(part, stripe, 1)
    assert not is_run(part, quorum.stripe_of(3), 0)
    holey = select(part, quorum.stripe_of_class(1))
    assert holey is not None
    assert not is_run(holey, stripe, 1)
    assert is_run(packed(3, 4), EVERY_ID, 3)
    assert not is_run(part, EVERY_ID, 0)


def test_a_run_clips_what_lies_before_it() -> None:
    """One contiguous batch is clipped without copying. A run that lacks the start is empty."""
    run = run_from(4, [packed(2, 5)])
    assert run is not None
    assert (run.first_entry_id, run.count) == (4, 3)
    assert run_from(9, [packed(2, 5)]) is None
    assert run_from(0, []) is None
    assert select(packed(0, 1), Quorum(3, 2, 2).stripe_of(2)) is None
