"""Quorum arithmetic on the cases that the protocol document and its bug history name."""

from __future__ import annotations

import pytest

from bookie.errors import BadRequestError
from bookie.ledger.quorum import EVERY_ID, Quorum, Stripe, mask_of, slots_of


def test_write_sets_of_the_protocol_document() -> None:
    """E=4, Qw=3: entries 0 … 5 go to the write quorums printed in the protocol document."""
    quorum = Quorum(4, 3, 2)
    expected = [(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1), (0, 1, 2), (1, 2, 3)]
    assert [quorum.write_set(entry_id) for entry_id in range(6)] == expected


def test_there_are_e_write_sets_or_one() -> None:
    """A ledger has E distinct write sets, or one when E == Qw."""
    assert len(Quorum(5, 3, 2).windows) == 5
    assert len(Quorum(3, 3, 2).windows) == 1
    assert not Quorum(3, 3, 2).is_striped


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (65, 3, 2)])
def test_sizes_out_of_order_are_refused(sizes: tuple[int, int, int]) -> None:
    """E >= Qw >= Qa >= 1 is checked at construction."""
    with pytest.raises(BadRequestError, match="must satisfy"):
        Quorum(*sizes)


def test_silent_slots_one_apart_can_still_acknowledge() -> None:
    """E=4, Qw=3, Qa=2, heard from 0 and 2: window 1-2-3 can still acknowledge by 1, 3."""
    quorum = Quorum(4, 3, 2)
    assert not quorum.covers(mask_of([0, 2]))
    assert quorum.covers(mask_of([0, 1, 2]))


@pytest.mark.parametrize(
    ("sizes", "up"),
    [((3, 3, 3), 1), ((3, 3, 2), 2), ((2, 2, 2), 1), ((2, 2, 1), 2), ((5, 5, 3), 3)],
)
def test_how_many_bookies_recovery_needs(sizes: tuple[int, int, int], up: int) -> None:
    """Without striping, any Qw-Qa+1 answers cover the ledger. One fewer is too few."""
    quorum = Quorum(*sizes)
    assert quorum.negatives_needed == up
    assert quorum.covers(mask_of(range(up)))
    assert not quorum.covers(mask_of(range(up - 1)))


def test_classes_of_short_and_long_runs() -> None:
    """A run shorter than the number of classes names only those present."""
    quorum = Quorum(5, 3, 2)
    assert list(quorum.classes_in(8, 3)) == [3, 4, 0]
    assert list(quorum.classes_in(8, 5)) == [0, 1, 2, 3, 4]
    assert list(Quorum(3, 3, 2).classes_in(8, 1)) == [0]


def test_a_stripe_knows_its_next_id() -> None:
    """`next_id` is the smallest id of the stripe that is not below the given one."""
    stripe = Stripe(5, 3, 2)  # residues 3 and 4
    assert [stripe.next_id(i) for i in range(6)] == [3, 3, 3, 3, 4, 8]
    assert EVERY_ID.next_id(7) == 7


def test_masks_and_slots_are_inverse() -> None:
    """`slots_of` lists what `mask_of` was given, ascending."""
    assert list(slots_of(mask_of([4, 0, 2]))) == [0, 2, 4]
    assert list(slots_of(0)) == []


def test_an_entry_needs_its_own_window() -> None:
    """Two acks outside the write set of a class do not acknowledge it."""
    quorum = Quorum(4, 2, 2)
    assert quorum.is_acknowledged(mask_of([0, 1]), [0])
    assert not quorum.is_acknowledged(mask_of([0, 1]), [1])
    assert not quorum.is_acknowledged(mask_of([0, 1]), [0, 1])
    assert quorum.is_acknowledged(mask_of([0, 1, 2]), [0, 1])
