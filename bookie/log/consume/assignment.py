"""The rule that assigns partitions to the members of a group: sticky and balanced.

=========== ====================================================================================
rule        meaning
=========== ====================================================================================
complete    each partition is assigned to exactly one member, unless the group has no member
balanced    any two members have the same number of partitions, or numbers that differ by one
sticky      of all complete and balanced assignments, the rule chooses one that takes the fewest
            partitions from members that stay in the group
=========== ====================================================================================

The result depends on the members, the partitions and the former shares, but not on the order of
members or partitions in the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Shares: TypeAlias = Mapping[str, Sequence[str]]
"""The partitions of each member. Partitions and members are given by their names."""


def assign(
    members: Iterable[str], partitions: Iterable[str], before: Shares
) -> dict[str, tuple[str, ...]]:
    """Return the partitions of each member; `before` lists the former partitions of each member."""
    names = sorted(set(members))
    if not names:
        return {}
    free = set(partitions)
    total = len(free)
    kept: dict[str, list[str]] = {}
    for name in names:
        kept[name] = sorted(free.intersection(before.get(name, ())))
        free.difference_update(kept[name])
    sizes = _sizes(kept, total)
    for name in names:
        free.update(kept[name][sizes[name] :])
    rest = iter(sorted(free))
    shares = {}
    for name in names:
        own = kept[name][: sizes[name]]
        own += [next(rest) for _ in range(sizes[name] - len(own))]
        shares[name] = tuple(sorted(own))
    return shares


def _sizes(kept: Mapping[str, Sequence[str]], total: int) -> dict[str, int]:
    """Return the number of partitions that each member gets.

    If the numbers cannot be equal, some members get one partition more than the others: the members
    with the most partitions in `kept`.
    """
    least, more = divmod(total, len(kept))
    by_most = sorted(kept, key=lambda name: (-len(kept[name]), name))
    return {name: least + (index < more) for index, name in enumerate(by_most)}
