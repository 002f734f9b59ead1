"""Shares of a group: complete, balanced, and with as few moves as balance allows."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bookie.log.consume.assignment import assign

_NAMES = st.sets(st.sampled_from("abcdefgh"), max_size=6)
_PARTITIONS = st.sets(st.integers(0, 20).map(lambda n: f"log#{n:02}"), max_size=15)


def _owners(shares: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {one: member for member, share in shares.items() for one in share}


def _fewest_moves(members: set[str], partitions: set[str], before: dict[str, str]) -> int:
    """By trying all choices of the members that get one more."""
    least, more = divmod(len(partitions), len(members))
    kept = dict.fromkeys(members, 0)
    for one in partitions:
        if before.get(one) in members:
            kept[before[one]] += 1
    return min(
        sum(max(0, kept[name] - least - (name in larger)) for name in members)
        for larger in combinations(sorted(members), more)
    )


@given(_NAMES, _PARTITIONS, st.data())
def test_shares_are_complete_balanced_and_sticky(
    members: set[str], partitions: set[str], data: st.DataObject
) -> None:
    former = data.draw(
        st.dictionaries(
            st.sampled_from(sorted(partitions) or ["log#99"]), st.sampled_from("abcdefgh")
        )
    )
    before: dict[str, list[str]] = {}
    for one, member in former.items():
        before.setdefault(member, []).append(one)
    shares = assign(members, partitions, before)
    assert set(shares) == members
    if not members:
        return
    given_out = [one for share in shares.values() for one in share]
    assert sorted(given_out) == sorted(partitions)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    owners = _owners(shares)
    moved = sum(
        former[one] in members and former[one] != owners[one] for one in partitions & former.keys()
    )
    assert moved == _fewest_moves(members, partitions, former)
    # Nothing is due after that, and the order of arguments plays no part.
    backwards = sorted(members, reverse=True), sorted(partitions, reverse=True)
    assert assign(*backwards, shares) == shares


@given(_NAMES.filter(bool), _PARTITIONS)
def test_members_that_come_and_go_move_only_what_they_must(
    members: set[str], partitions: set[str]
) -> None:
    shares = assign(members, partitions, {})
    joined = assign({*members, "z"}, partitions, shares)
    for member in members:
        assert set(joined[member]) <= set(shares[member])
    left = assign(members, partitions, joined)
    for member in members:
        assert set(joined[member]) <= set(left[member])


def test_a_partition_that_two_members_had_goes_to_one() -> None:
    shares = assign(["a", "b"], ["log#0", "log#1"], {"a": ["log#0"], "b": ["log#0"]})
    assert shares == {"a": ("log#0",), "b": ("log#1",)}
