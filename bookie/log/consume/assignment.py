"""The rule that assigns partitions to the members of a group: sticky and balanced.

=========== ====================================================================================
rule        meaning
=========== ====================================================================================
complete    each partition has one member, if there is any
balanced    the numbers of partitions of two members differ by one at most
sticky      among all such assignments, the rule takes the fewest partitions from members that stay
=========== ====================================================================================

The assignment depends only on the members, the partitions and the former shares, but not on their
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Shares: TypeAlias = Mapping[str, Sequence[str]]
"""The partitions of each member. Partitions and members are given by their names."""


def assign(
    members: Iterable[str], partitions: Iterable[str], before: Shares
) -> dict[str, tuple[str, ...]]:
    """Share `partitions` among `members`; `before` lists the former partitions of each member."""
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
    """Return the new size of each share. The largest shares in `kept` get the remainder."""
    least, more = divmod(total, len(kept))
    by_most = sorted(kept, key=lambda name: (-len(kept[name]), name))
    return {name: least + (index < more) for index, name in enumerate(by_most)}
