"""The choice of bookies by each policy; `property/ledger/place` compares with brute force."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from bookie.errors import NotEnoughBookiesError
from bookie.ids import is_vacant
from bookie.ledger.place import (
    ANYWHERE,
    Placement,
    PlacementPolicy,
    vacant_slots,
    weights_by_free_space,
)
from bookie.ledger.quorum import Quorum


def test_an_ensemble_has_different_bookies() -> None:
    """Every slot gets its own bookie, from the candidates that are not excluded."""
    pick = random.Random(1).randrange
    for _ in range(100):
        ensemble = ANYWHERE.ensemble({"a", "b", "c", "d"}, 3, pick=pick, excluded={"b"})
        assert sorted(ensemble) == ["a", "c", "d"]


def test_too_few_candidates() -> None:
    """One sentence says how many are wanted and how many are there."""
    with pytest.raises(
        NotEnoughBookiesError, match="ensemble of 3 is wanted, but there are only 2"
    ):
        ANYWHERE.ensemble(["a", "b", "b"], 3, pick=random.Random(1).randrange)


def test_the_same_choices_give_the_same_ensemble() -> None:
    """The order of the candidates does not matter, only the choices do."""
    one = ANYWHERE.ensemble(["a", "b", "c", "d"], 2, pick=random.Random(7).randrange)
    two = ANYWHERE.ensemble({"d", "c", "b", "a"}, 2, pick=random.Random(7).randrange)
    assert one == two


def test_every_slot_sees_every_bookie_equally_often() -> None:
    """Load spreads: over many ledgers no bookie is favoured in any slot."""
    pick = random.Random(3).randrange
    slots = [Counter[str](), Counter[str]()]
    for _ in range(4000):
        for slot, bookie_id in enumerate(ANYWHERE.ensemble("abcd", 2, pick=pick)):
            slots[slot][bookie_id] += 1
    for counts in slots:
        assert set(counts) == set("abcd")
        assert all(850 < count < 1150 for count in counts.values())


def test_newcomers_stand_outside_the_ensemble_and_each_in_one_slot() -> None:
    """Three slots, two spares: two slots get a bookie, in the order in which they were named."""
    candidates = ["b0", "b1", "b2", "b3", "b4"]
    chosen = ANYWHERE.newcomers(("b0", "b1", "b2"), [2, 0, 1], candidates, pick=lambda n: n - 1)
    assert chosen == {2: "b4", 0: "b3"}
    assert ANYWHERE.newcomers(("b0",), [0], ["b0"], pick=lambda n: 0) == {}


def labelled(policy: PlacementPolicy, **bookies: str) -> Placement:
    """A placement whose bookies have these labels, ``b1="zone=a,rack=r1"``."""
    labels = {
        bookie_id: dict(pair.split("=") for pair in text.split(",") if pair)
        for bookie_id, text in bookies.items()
    }
    return Placement(policy=policy, labels=labels)


def test_each_policy_goes_by_its_label() -> None:
    """Two bookies of each region, zone and rack; the default sees none of them."""
    places = {"b1": "region=eu,zone=a,rack=r1", "b2": "region=eu,zone=b,rack=r1", "b3": ""}
    found = {
        policy.value: labelled(policy, **places).domains(["b1", "b2", "b3", "b4"])
        for policy in PlacementPolicy
    }
    assert found == {
        "default": ("", "", "", ""),
        "rack": ("r1", "r1", "", ""),
        "zone": ("a", "b", "", ""),
        "region": ("eu", "eu", "", ""),
    }


def test_a_striped_ensemble_spans_domains_in_each_write_set() -> None:
    """E=4, Qw=2, two racks: they take turns, because r1 r1 r2 r2 has write sets in one rack."""
    placement = labelled(
        PlacementPolicy.RACK, a="rack=r1", b="rack=r1", c="rack=r2", d="rack=r2", e="rack=r2"
    )
    for seed in range(50):
        ensemble = placement.ensemble(
            "abcde", 4, pick=random.Random(seed).randrange, write_quorum_size=2
        )
        assert placement.domains(ensemble) in (("r1", "r2") * 2, ("r2", "r1") * 2)


def test_within_a_region_zones_and_racks_differ_as_far_as_they_can() -> None:
    """Of the bookies of region eu, one that is outside the other's zone for certain is taken."""
    placement = labelled(
        PlacementPolicy.REGION,
        a="region=eu,zone=a,rack=r1",
        b="region=eu,zone=a,rack=r2",
        c="region=eu,zone=b,rack=r1",
        x="region=eu,rack=r3",
        u="region=us,zone=x,rack=r9",
    )
    for seed in range(30):
        pick = random.Random(seed).randrange
        for spares in ("bc", "cx"):
            chosen = placement.newcomers(("a", "u", "z"), [2], spares, pick=pick)
            assert chosen == {2: "c"}


def test_a_bookie_without_the_label_proves_nothing() -> None:
    """It may stand in any rack, so the labelled one is taken; alone it is better than none."""
    placement = labelled(PlacementPolicy.RACK, a="rack=r1", b="rack=r2")
    pick = random.Random(8).randrange
    for _ in range(20):
        assert set(placement.ensemble("abxy", 2, pick=pick)) == {"a", "b"}
    assert placement.spans(("a", "x", "y"), 3) == (1,)
    assert placement.newcomers(("a", "b"), [1], ["x"], pick=pick) == {1: "x"}


def test_labels_that_change_count_from_the_next_choice_on() -> None:
    """A placement is a snapshot; the next one has the labels of then."""
    before = labelled(PlacementPolicy.RACK, a="rack=r1", b="rack=r1", c="rack=r2")
    after = labelled(PlacementPolicy.RACK, a="rack=r1", b="rack=r2", c="rack=r1")
    for seed in range(20):
        pick = random.Random(seed).randrange
        assert before.newcomers(("a", "z"), [1], "bc", pick=pick) == {1: "c"}
        assert after.newcomers(("a", "z"), [1], "bc", pick=pick) == {1: "b"}


def test_enforced_domains_are_kept_or_refused() -> None:
    """Without bookies of another rack, a new ensemble and a newcomer are refused."""
    placement = replace(
        labelled(PlacementPolicy.RACK, a="rack=r1", b="rack=r1", c="rack=r2"), enforce=True
    )
    pick = random.Random(1).randrange
    with pytest.raises(NotEnoughBookiesError, match=r"must span 2 racks, .* allow only 1"):
        placement.ensemble("ab", 2, pick=pick)
    assert placement.newcomers(("a", "c"), [1], ["b"], pick=pick) == {}
    # A placement that is wrong already may be replaced by one that is no worse.
    assert placement.newcomers(("a", "x"), [1], ["b"], pick=pick) == {1: "b"}


def test_more_room_makes_a_bookie_likelier() -> None:
    """By free space, up to three times the median; with and without racks."""
    weights = weights_by_free_space({"a": 100, "b": 100, "c": 10**9, "d": 0})
    assert weights == {"a": 100, "b": 100, "c": 300, "d": 1}
    pick = random.Random(5).randrange
    for policy in (PlacementPolicy.DEFAULT, PlacementPolicy.RACK):
        placement = replace(
            labelled(policy, a="rack=r1", b="rack=r1", c="rack=r1"), weights=weights
        )
        chosen = Counter(placement.ensemble("abcd", 1, pick=pick)[0] for _ in range(5000))
        assert 2.6 < chosen["c"] / chosen["a"] < 3.4
        assert chosen["d"] < 50
    assert weights_by_free_space({}) == {}


def test_vacant_slots_are_named_and_spread() -> None:
    """A name says which slot has no bookie; each write set keeps its ack quorum."""
    quorum = Quorum(6, 3, 2)
    assert vacant_slots(quorum, 0) == ()
    assert vacant_slots(quorum, 2) == (2, 5)
    placement = labelled(PlacementPolicy.RACK, a="rack=r1", b="rack=r1", c="rack=r2", d="rack=r2")
    for seed in range(20):
        ensemble = placement.ensemble(
            "abcd", 6, pick=random.Random(seed).randrange, write_quorum_size=3, vacant=(2, 5)
        )
        assert (ensemble[2], ensemble[5]) == ("vacant.2", "vacant.5")
        assert [is_vacant(bookie_id) for bookie_id in ensemble] == [False, False, True] * 2
        # Two copies of each entry, in two racks.
        assert placement.spans(ensemble, 3) == (2,) * 6
    with pytest.raises(NotEnoughBookiesError, match="only 3 writable bookies of 6"):
        vacant_slots(quorum, 3)
