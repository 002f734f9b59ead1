"""Placement against brute force: no choice of bookies is better than the one that is made."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.errors import NotEnoughBookiesError
from bookie.ledger.place import (
    AckDomains,
    Placement,
    PlacementPolicy,
    vacant_slots,
)
from bookie.ledger.place.spread import STEPS_MAX, Spread
from bookie.ledger.quorum import Quorum, mask_of, slots_of

RACKS = ["", "r1", "r2", "r3"]
"""An empty name stands for a bookie without the label."""


def spans_of(racks: Sequence[str], write_quorum_size: int) -> list[int]:
    """The racks that each write set spans, ascending: computed a second time, on purpose."""
    found = []
    for first in range(len(racks)):
        inside = {racks[(first + i) % len(racks)] for i in range(write_quorum_size)}
        found.append(max(1, len(inside - {""})))
    return sorted(found)


def topology(racks: Sequence[str], *, enforce: bool = False, wanted: int = 2) -> Placement:
    """Bookies b0, b1, … in these racks."""
    return Placement(
        policy=PlacementPolicy.RACK,
        labels={f"b{n}": {"rack": rack} for n, rack in enumerate(racks) if rack},
        domains_min=wanted,
        enforce=enforce,
    )


def racks_of(bookies: Iterable[str], racks: Sequence[str]) -> list[str]:
    """The rack of each bookie by its number."""
    return [racks[int(bookie_id[1:])] for bookie_id in bookies]


@st.composite
def sizes(draw: st.DrawFn, most: int = 5) -> tuple[int, int]:
    """E and Qw."""
    ensemble_size = draw(st.integers(1, most))
    return ensemble_size, draw(st.integers(1, ensemble_size))


@settings(max_examples=max(100, settings().max_examples))
@given(
    sizes(),
    st.lists(st.sampled_from(RACKS), min_size=1, max_size=7),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_no_ensemble_spans_more(
    size: tuple[int, int], racks: list[str], wanted: int, seed: int
) -> None:
    """The smallest span is as large as it can be, then the next; `enforce` refuses only in need."""
    ensemble_size, write_quorum_size = size
    names = [f"b{n}" for n in range(len(racks))]
    pick = random.Random(seed).randrange
    if len(racks) < ensemble_size:
        try:
            topology(racks).ensemble(names, ensemble_size, pick=pick)
        except NotEnoughBookiesError:
            return
        raise AssertionError("too few bookies made an ensemble")
    best = max(
        spans_of(choice, write_quorum_size) for choice in set(permutations(racks, ensemble_size))
    )
    chosen = topology(racks).ensemble(
        names, ensemble_size, pick=pick, write_quorum_size=write_quorum_size
    )
    assert len(set(chosen)) == ensemble_size
    assert set(chosen) <= set(names)
    assert spans_of(racks_of(chosen, racks), write_quorum_size) == best
    strict = topology(racks, enforce=True, wanted=wanted)
    try:
        chosen = strict.ensemble(
            names, ensemble_size, pick=pick, write_quorum_size=write_quorum_size
        )
    except NotEnoughBookiesError:
        assert best[0] < min(wanted, write_quorum_size)
    else:
        assert min(strict.spans(chosen, write_quorum_size)) == best[0]
        assert best[0] >= min(wanted, write_quorum_size)


@settings(max_examples=max(500, settings().max_examples))
@given(
    sizes(),
    st.lists(st.sampled_from(RACKS), min_size=5, max_size=5),
    st.lists(st.sampled_from(RACKS), max_size=4),
    st.data(),
)
def test_no_newcomers_are_better(
    size: tuple[int, int], standing: list[str], spare: list[str], data: st.DataObject
) -> None:
    """As many slots as possible get a bookie, those of greater need first, and span the most."""
    ensemble_size, write_quorum_size = size
    standing = standing[:ensemble_size]
    slots = data.draw(st.permutations(range(ensemble_size)))[: data.draw(st.integers(1, 3))]
    enforce = data.draw(st.booleans())
    racks = [*standing, *spare]
    names = [f"b{n}" for n in range(len(racks))]
    placement = topology(racks, enforce=enforce)
    chosen = placement.newcomers(
        names[:ensemble_size],
        slots,
        names,
        pick=random.Random(data.draw(st.integers(0, 2**32))).randrange,
        write_quorum_size=write_quorum_size,
    )
    assert chosen.keys() <= set(slots)
    assert len(set(chosen.values())) == len(chosen)
    assert not set(chosen.values()) & set(names[:ensemble_size])

    def after(change: dict[int, str]) -> list[str]:
        return [change.get(slot, rack) for slot, rack in enumerate(standing)]

    def value(change: dict[int, str]) -> tuple[int, list[bool], list[int]]:
        filled = [slot in change for slot in slots]
        return len(change), filled, spans_of(after(change), write_quorum_size)

    def is_allowed(change: dict[int, str]) -> bool:
        if not enforce:
            return True
        wanted, size = min(2, write_quorum_size), range(ensemble_size)
        for first in size:
            inside = [(first + i) % ensemble_size for i in range(write_quorum_size)]
            now = max(1, len({standing[slot] for slot in inside} - {""}))
            then = max(1, len({after(change)[slot] for slot in inside} - {""}))
            if then < min(wanted, now):
                return False
        return True

    changes = [
        dict(zip(some, choice, strict=True))
        for count in range(len(slots) + 1)
        for some in combinations(slots, count)
        for choice in set(permutations(spare, count))
    ]
    best = max(value(change) for change in changes if is_allowed(change))
    found = {slot: racks[int(bookie_id[1:])] for slot, bookie_id in chosen.items()}
    assert is_allowed(found)
    assert value(found) == best


@pytest.mark.parametrize("ensemble_size", range(1, 6))
def test_no_ensemble_spans_more_whatever_racks_have(ensemble_size: int) -> None:
    """Every Qw, and every number of bookies in three racks and outside of them."""
    patterns = [(one, Counter(one)) for one in product(RACKS, repeat=ensemble_size)]
    for write_quorum_size in range(1, ensemble_size + 1):
        values = [(spans_of(one, write_quorum_size), counts) for one, counts in patterns]
        values.sort(key=lambda value: value[0], reverse=True)
        for many in product(range(3), *[range(5)] * 3):
            capacity = Counter(dict(zip(RACKS, many, strict=True)))
            if list(many[1:]) != sorted(many[1:]) or capacity.total() < ensemble_size:
                continue
            best = next(spans for spans, counts in values if counts <= capacity)
            for seed in range(2):
                search = Spread(
                    [None] * ensemble_size,
                    range(ensemble_size),
                    write_quorum_size,
                    capacity=capacity,
                    weights={},
                    pick=random.Random(seed).randrange,
                )
                chosen = list(search.run().values())
                assert Counter(chosen) <= capacity
                assert spans_of(chosen, write_quorum_size) == best, (many, write_quorum_size)


def test_every_ensemble_of_up_to_seven_is_searched_to_the_end() -> None:
    """Whatever four racks and bookies without a rack have to offer, the steps suffice."""
    longest = 0
    for ensemble_size in range(1, 8):
        for write_quorum_size in range(1, ensemble_size + 1):
            for counts in product((0, 1, 2, 7), repeat=4):
                if sum(counts) < ensemble_size or list(counts) != sorted(counts):
                    continue
                capacity = dict(zip(RACKS, counts, strict=True))
                search = Spread(
                    [None] * ensemble_size,
                    range(ensemble_size),
                    write_quorum_size,
                    capacity=capacity,
                    weights={},
                    pick=random.Random(1).randrange,
                )
                search.run()
                longest = max(longest, search.steps)
    assert longest < STEPS_MAX, longest


def test_newcomers_are_found_where_the_search_ends_in_a_dead_end() -> None:
    """The last slot cannot be filled after the first two, and the search does not get back there.

    All spares stand in rack a. Slots 0, 1 and 2 may not all be in it; 20 others may.
    """
    racks = ["a", "b", "b", *(["c", "b"] * 31)][:64]
    slots = [1, 2, *range(6, 46, 2), 0]
    spares = [f"b{64 + n}" for n in range(30)]
    names = [f"b{n}" for n in range(64)]
    placement = topology([*racks, *["a"] * 30], enforce=True)
    chosen = placement.newcomers(
        names, slots, [*names, *spares], pick=random.Random(1).randrange, write_quorum_size=3
    )
    assert len(chosen) == len(slots) - 1
    after = tuple(chosen.get(slot, name) for slot, name in enumerate(names))
    assert min(placement.spans(after, 3)) == 2


@pytest.mark.parametrize("shape", [(64, 3, 4), (64, 3, 5), (63, 3, 3), (61, 4, 5), (64, 4, 8)])
def test_large_ensembles_that_fit_exactly_are_found(shape: tuple[int, int, int]) -> None:
    """Each rack has just as many bookies as a perfect choice needs."""
    ensemble_size, write_quorum_size, count = shape
    racks = planted(ensemble_size, write_quorum_size, count, random.Random(1))
    names = [f"b{n}" for n in range(ensemble_size)]
    for seed in range(5):
        chosen = topology(racks, enforce=True, wanted=write_quorum_size).ensemble(
            names,
            ensemble_size,
            pick=random.Random(seed).randrange,
            write_quorum_size=write_quorum_size,
        )
        assert spans_of(racks_of(chosen, racks), write_quorum_size)[0] == write_quorum_size


def test_a_search_that_was_given_up_says_so() -> None:
    """It is not sure then that the bookies allow no more; often they do."""
    racks = planted(50, 5, 6, random.Random(1))
    messages = set()
    for seed in range(5):
        try:
            topology(racks, enforce=True, wanted=5).ensemble(
                [f"b{n}" for n in range(50)],
                50,
                pick=random.Random(seed).randrange,
                write_quorum_size=5,
            )
        except NotEnoughBookiesError as error:
            messages.add(str(error))
    assert messages, "the search has become better: make this harder"
    assert all("before it was given up" in message for message in messages)


def planted(
    ensemble_size: int, write_quorum_size: int, count: int, rng: random.Random
) -> list[str]:
    """Racks in an order in which each write set spans as many as it has bookies."""
    while True:
        found: list[str] = []
        for slot in range(ensemble_size):
            near = found[max(0, slot - write_quorum_size + 1) :]
            beyond = slot + write_quorum_size - ensemble_size
            near += found[: max(0, beyond)]
            free = [f"r{n}" for n in range(count) if f"r{n}" not in near]
            if not free:
                break
            found.append(rng.choice(free))
        else:
            return found


@given(
    st.integers(1, 7).flatmap(
        lambda e: st.integers(1, e).flatmap(
            lambda w: st.tuples(st.just(e), st.just(w), st.integers(1, w))
        )
    ),
    st.data(),
)
def test_vacancies_are_refused_only_in_need(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """If any choice of vacant slots leaves each write set its ack quorum, the one made does."""
    quorum = Quorum(*shape)
    count = data.draw(st.integers(0, quorum.ensemble_size))

    def is_right(vacant: Iterable[int]) -> bool:
        live = quorum.every_slot & ~mask_of(vacant)
        return all(
            (live & window).bit_count() >= quorum.ack_quorum_size for window in quorum.windows
        )

    possible = any(is_right(some) for some in combinations(range(quorum.ensemble_size), count))
    try:
        vacant = vacant_slots(quorum, count)
    except NotEnoughBookiesError:
        assert not possible
    else:
        assert len(set(vacant)) == count
        assert is_right(vacant)


def test_acknowledgements_span_domains_or_do_not_count() -> None:
    """Counted by hand, write set by write set, for each ensemble of up to four bookies."""
    seen = set()
    for ensemble_size in range(1, 5):
        for racks in product(RACKS, repeat=ensemble_size):
            for write_quorum_size, minimum in product(range(1, ensemble_size + 1), (1, 2, 3)):
                windows = Quorum(ensemble_size, write_quorum_size, 1).windows
                domains = AckDomains.of(racks, minimum)
                for acked in range(1 << ensemble_size):
                    by_hand = all(
                        len({racks[slot] for slot in slots_of(acked & window)} - {""}) >= minimum
                        for window in windows
                    )
                    assert domains.is_enough(acked, windows) is (by_hand or minimum == 1)
                    seen.add((minimum, by_hand))
    assert len(seen) == 6
