"""Quorum arithmetic against brute force, for every E <= 7 and every set of answers."""

from __future__ import annotations

from itertools import combinations

import pytest

from bookie.ledger.quorum import Quorum, mask_of, slots_of

ALL_SIZES = [
    (ensemble, write, ack)
    for ensemble in range(1, 8)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def write_set_by_hand(entry_id: int, ensemble: int, write: int) -> set[int]:
    """The definition, word for word: Qw slots starting at entry_id % E."""
    return {(entry_id % ensemble + i) % ensemble for i in range(write)}


@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_coverage_is_the_absence_of_a_hidden_ack_quorum(sizes: tuple[int, int, int]) -> None:
    """`covers` is false exactly when some Qa silent slots lie within one write set."""
    ensemble, write, ack = sizes
    quorum = Quorum(*sizes)
    for answered in range(1 << ensemble):
        silent = {slot for slot in range(ensemble) if not answered >> slot & 1}
        hidden = any(
            set(group) <= write_set_by_hand(entry_id, ensemble, write)
            for group in combinations(sorted(silent), ack)
            for entry_id in range(ensemble)
        )
        assert quorum.covers(answered) is not hidden


@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_acknowledged_means_an_ack_quorum_for_every_entry(sizes: tuple[int, int, int]) -> None:
    """`is_acknowledged` over a run is the same as testing each of its entries."""
    ensemble, write, ack = sizes
    quorum = Quorum(*sizes)
    for first, count in [(0, 1), (1, 1), (3, 2), (5, 3), (2, 9)]:
        classes = quorum.classes_in(first, count)
        for acked in range(1 << ensemble):
            by_hand = all(
                len(write_set_by_hand(e, ensemble, write) & set(slots_of(acked))) >= ack
                for e in range(first, first + count)
            )
            assert quorum.is_acknowledged(acked, classes) is by_hand
    assert quorum.is_acknowledged(quorum.every_slot, range(len(quorum.windows)))
    assert not quorum.is_acknowledged(0, range(len(quorum.windows)))


@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_stripes_name_exactly_the_write_sets(sizes: tuple[int, int, int]) -> None:
    """A slot's stripe holds an id exactly when the slot is in that id's write set."""
    ensemble, write, _ = sizes
    quorum = Quorum(*sizes)
    for entry_id in range(3 * ensemble):
        by_hand = write_set_by_hand(entry_id, ensemble, write)
        assert set(quorum.write_set(entry_id)) == by_hand
        assert quorum.write_mask(entry_id) == mask_of(by_hand)
        holders = {s for s in range(ensemble) if quorum.stripe_of(s).contains(entry_id)}
        assert holders == by_hand
        assert quorum.stripe_of_class(entry_id % len(quorum.windows)).contains(entry_id)
        for slot in range(ensemble):
            stripe = quorum.stripe_of(slot)
            ahead = (i for i in range(entry_id, entry_id + ensemble) if stripe.contains(i))
            assert stripe.next_id(entry_id) == next(ahead)


@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_enough_denials_leave_no_room_for_an_ack_quorum(sizes: tuple[int, int, int]) -> None:
    """With Qw-Qa+1 denials fewer than Qa members are left; with one fewer denial Qa are."""
    _, write, ack = sizes
    needed = Quorum(*sizes).negatives_needed
    assert write - needed < ack
    assert write - (needed - 1) >= ack
