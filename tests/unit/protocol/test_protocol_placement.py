"""The default placement."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bookie.errors import NotEnoughBookiesError
from bookie.protocol.placement import choose_ensemble, choose_newcomers


def test_an_ensemble_has_different_bookies() -> None:
    """Every slot gets its own bookie, from the candidates that are not excluded."""
    pick = random.Random(1).randrange
    for _ in range(100):
        ensemble = choose_ensemble({"a", "b", "c", "d"}, 3, pick=pick, excluded={"b"})
        assert sorted(ensemble) == ["a", "c", "d"]


def test_too_few_candidates() -> None:
    """One sentence says how many are wanted and how many are there."""
    with pytest.raises(
        NotEnoughBookiesError, match="ensemble of 3 is wanted, but there are only 2"
    ):
        choose_ensemble(["a", "b", "b"], 3, pick=random.Random(1).randrange)


def test_the_same_choices_give_the_same_ensemble() -> None:
    """The order of the candidates does not matter, only the choices do."""
    one = choose_ensemble(["a", "b", "c", "d"], 2, pick=random.Random(7).randrange)
    two = choose_ensemble({"d", "c", "b", "a"}, 2, pick=random.Random(7).randrange)
    assert one == two


def test_every_slot_sees_every_bookie_equally_often() -> None:
    """Load spreads: over many ledgers no bookie is favoured in any slot."""
    pick = random.Random(3).randrange
    slots = [Counter[str](), Counter[str]()]
    for _ in range(4000):
        for slot, bookie_id in enumerate(choose_ensemble("abcd", 2, pick=pick)):
            slots[slot][bookie_id] += 1
    for counts in slots:
        assert set(counts) == set("abcd")
        assert all(850 < count < 1150 for count in counts.values())


def test_newcomers_stand_outside_the_ensemble_and_each_in_one_slot() -> None:
    """Three slots, two spares: two slots get a bookie, in the order in which they were named."""
    candidates = ["b0", "b1", "b2", "b3", "b4"]
    chosen = choose_newcomers(("b0", "b1", "b2"), [2, 0, 1], candidates, pick=lambda n: n - 1)
    assert chosen == {2: "b4", 0: "b3"}
    assert choose_newcomers(("b0",), [0], ["b0"], pick=lambda n: 0) == {}
