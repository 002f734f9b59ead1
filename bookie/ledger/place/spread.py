"""Searches a failure domain for each slot, so that write sets span as many domains as possible.

The cost of a choice of domains is the sum of the costs of its write sets. A write set costs ``(E +
1) ** (Qw - span)``, where its span is its number of domains. There are at most E write sets. So a
write set that spans one more domain reduces the cost by more than the total cost of all write sets
with larger spans. So in the cheapest choice, the smallest span is as large as possible. Then the
number of write sets with this span is as small as possible, and so on.

The search fills one slot after the other, and tries the best domain first. The search skips a
partial choice that cannot become cheaper than the best complete choice so far. The search ends as
soon as it finds a choice of the lowest possible cost. Small ensembles are searched completely. For
large ensembles the search ends after `STEPS_MAX` steps, and a second search follows:

- For a new ensemble, the second search tries the domain with the most bookies first among equally
  good domains, because bookies of large domains are hard to place late.
- For newcomers, the second search fills slot by slot, while the later slots keep their bookies.
  This second search always finds a choice if each slot can be filled alone. The first search may
  end without a choice.

The cheaper result of the two searches is used; a still cheaper choice may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

UNKNOWN = ""
"""The domain of a bookie without a label; such a domain does not count in a write set's span."""

STEPS_MAX = 5_000
"""The largest number of steps of a search, at most 0.1 s; up to 7 bookies needed half of it."""


def write_sets(ensemble_size: int, write_quorum_size: int) -> list[tuple[int, ...]]:
    """Return the different write sets as tuples of slots; without striping there is only one."""
    count = 1 if ensemble_size == write_quorum_size else ensemble_size
    return [
        tuple((first + i) % ensemble_size for i in range(write_quorum_size))
        for first in range(count)
    ]


def span(domains: Sequence[str]) -> int:
    """Count the known domains in `domains`; the result is at least 1."""
    return max(1, len(set(domains) - {UNKNOWN}))


class Spread:
    """One search for the domains of some slots.

    Args:
        domains: the current domain in each slot, or None if the slot is empty.
        free: the slots to fill, most urgent first.
        write_quorum_size: Qw.
        capacity: the number of available bookies of each domain.
        weights: the probability weight of each domain in the random choice among equally good
            domains; a missing weight is 1.
        pick: ``pick(n)`` returns a number in ``0 … n-1``.
        least: the smallest span allowed for each write set. A free slot keeps its bookie if any
            change would break this rule, or if no bookie is available. If `least` is None, every
            slot must be filled.
    """

    def __init__(
        self,
        domains: Sequence[str | None],
        free: Sequence[int],
        write_quorum_size: int,
        *,
        capacity: Mapping[str, int],
        weights: Mapping[str, int],
        pick: Callable[[int], int],
        least: Sequence[int] | None = None,
    ) -> None:
        self._size = len(domains)
        self._now = domains
        self._free = free
        self._write_quorum_size = write_quorum_size
        self._left = dict(capacity)
        self._weights = weights
        self._pick = pick
        self._least = least
        self._sets = write_sets(self._size, write_quorum_size)
        self._sets_of: list[list[int]] = [[] for _ in domains]
        for index, slots in enumerate(self._sets):
            for slot in slots:
                self._sets_of[slot].append(index)
        # During the search, None marks a slot whose domain is not chosen yet.
        self._chosen: list[str | None] = list(domains)
        for slot in free:
            self._chosen[slot] = None
        self._known = self._count_known()
        self._costs = [self._cost(index) for index in range(len(self._sets))]
        self._bound = self._find_bound()
        self.steps = 0
        self.is_given_up = False
        """True if a better choice than the returned choice may exist."""
        self._takes_largest = False
        self._best: tuple[int, int] | None = None
        self._found: list[str | None] = []

    def run(self) -> dict[int, str]:
        """Search; return the domain of each free slot that gets a bookie."""
        self._descend(0, 0, frozenset())
        if self._is_at_its_limit():
            if self._least is None:
                self._takes_largest, self.steps = True, 0
                self._descend(0, 0, frozenset())
            else:
                self._fill_one_by_one()
            self.is_given_up = self._is_at_its_limit()
        return {
            slot: domain
            for slot, domain in zip(self._free, self._found, strict=False)
            if domain is not None
        }

    def _count_known(self) -> int:
        """Return the largest number of domains that any write set can span."""
        found = {*self._left, *(domain for domain in self._now if domain)}
        return max(1, len(found - {UNKNOWN}))

    def _find_bound(self) -> int:
        """Compute a lower bound of the cost of any choice; call this before the search."""
        if len(self._free) < self._size:
            return sum(self._costs)
        # A slot adds its domain to Qw write sets. In the best case, the slots of a domain have no
        # write set in common.
        alone, rest = divmod(self._size, self._write_quorum_size)
        gains: list[int] = []
        for domain, count in self._left.items():
            if domain != UNKNOWN:
                gains += [self._write_quorum_size] * min(count, alone)
                gains += [rest] if count > alone else []
        total = sum(sorted(gains, reverse=True)[: self._size])
        each, more = divmod(total, self._size)
        if len(self._sets) == 1:
            return self._price(max(1, each))
        spans = [each + 1] * more + [each] * (self._size - more)
        if each < 2 and self._left.get(UNKNOWN, 0):
            # A write set whose domains are all unknown also has span 1, without any known domain.
            spans = [2] * (total // 2) + [1] * (self._size - total // 2)
            spans[0] += total % 2
        return sum(self._price(min(max(1, one), self._write_quorum_size)) for one in spans)

    def _price(self, spanned: int) -> int:
        power: int = (self._size + 1) ** (self._write_quorum_size - spanned)
        return power

    def _cost(self, index: int) -> int:
        return self._price(self._reach(index))

    def _reach(self, index: int) -> int:
        """Return the largest number of domains that a partly filled write set can span."""
        inside = [self._chosen[slot] for slot in self._sets[index]]
        certain = len(set(inside) - {None, UNKNOWN})
        return max(1, min(certain + inside.count(None), self._known))

    def _descend(self, depth: int, loss: int, kept: frozenset[int]) -> None:
        """Fill the free slots from index `depth` on; the slots in `kept` keep their bookies."""
        so_far = (loss, sum(self._costs))
        if self._best is not None and so_far >= self._best:
            return
        if depth == len(self._free):
            self._best = so_far
            self._found = [None if slot in kept else self._chosen[slot] for slot in self._free]
            return
        slot = self._free[depth]
        for domain in self._in_order(slot):
            if self._is_done():
                return
            self.steps += 1
            before = self._put(slot, domain)
            if self._is_allowed(slot):
                self._left[domain] -= 1
                self._descend(depth + 1, loss, kept)
                self._left[domain] += 1
            self._take_back(slot, before)
        if self._least is not None and not self._is_done():
            before = self._put(slot, self._now[slot])
            if self._is_allowed(slot):
                self._descend(depth + 1, loss + self._need(depth), kept | {slot})
            self._take_back(slot, before)

    def _fill_one_by_one(self) -> None:
        """Give each slot in turn the best allowed domain; later slots keep their current domains.

        The new choice is used only if it is cheaper than the best choice found before.
        """
        for slot in self._free:
            self._put(slot, self._now[slot])
        loss, found = 0, list[str | None]()
        for depth, slot in enumerate(self._free):
            taken = None
            for domain in self._in_order(slot):
                self._put(slot, domain)
                if self._is_allowed(slot):
                    taken = domain
                    self._left[domain] -= 1
                    break
            else:
                self._put(slot, self._now[slot])
                loss += self._need(depth)
            found.append(taken)
        cost = loss, sum(self._costs)
        if self._best is None or cost < self._best:
            self._best, self._found = cost, found

    def _need(self, depth: int) -> int:
        """Return the cost of a slot that gets no bookie.

        A choice that fills more slots costs less. If two choices fill the same number of slots, the
        choice that fills more urgent slots costs less.
        """
        return (1 << len(self._free)) + (1 << (len(self._free) - 1 - depth))

    def _is_done(self) -> bool:
        return self.steps >= STEPS_MAX or self._is_cheapest()

    def _is_at_its_limit(self) -> bool:
        """True if the search ended at its limit of steps, so that a better choice may exist."""
        return self.steps >= STEPS_MAX and not self._is_cheapest()

    def _is_cheapest(self) -> bool:
        return self._best is not None and self._best <= (0, self._bound)

    def _put(self, slot: int, domain: str | None) -> list[int]:
        self._chosen[slot] = domain
        before = [self._costs[index] for index in self._sets_of[slot]]
        for index in self._sets_of[slot]:
            self._costs[index] = self._cost(index)
        return before

    def _take_back(self, slot: int, before: list[int]) -> None:
        self._chosen[slot] = None
        for index, cost in zip(self._sets_of[slot], before, strict=True):
            self._costs[index] = cost

    def _is_allowed(self, slot: int) -> bool:
        least = self._least
        return least is None or all(
            self._reach(index) >= least[index] for index in self._sets_of[slot]
        )

    def _in_order(self, slot: int) -> list[str]:
        """Return the domains to try in a slot, best first; of equivalent domains, only one."""
        shuffled = self._shuffled([domain for domain, left in self._left.items() if left > 0])
        used = {domain for domain in self._chosen if domain is not None}
        used.update(domain for domain in self._now if domain is not None)
        seen: set[int] = set()
        ordered: list[tuple[int, int, str]] = []
        for domain in shuffled:
            if domain not in used and domain != UNKNOWN:
                alike = min(self._left[domain], len(self._free))
                if alike in seen:
                    continue
                seen.add(alike)
            before = self._put(slot, domain)
            cost = sum(self._costs[index] for index in self._sets_of[slot])
            ordered.append((cost, -self._left[domain] if self._takes_largest else 0, domain))
            self._take_back(slot, before)
        ordered.sort(key=lambda item: item[:2])
        return [domain for _, _, domain in ordered]

    def _shuffled(self, domains: list[str]) -> list[str]:
        pool, shuffled = sorted(domains), []
        while pool:
            shuffled.append(draw(pool, self._weights, self._pick))
        return shuffled


def draw(pool: list[str], weights: Mapping[str, int], pick: Callable[[int], int]) -> str:
    """Remove a random name from `pool`, in proportion to the weights (default 1); return it."""
    if not weights:
        return pool.pop(pick(len(pool)))
    at = pick(sum(weights.get(name, 1) for name in pool))
    for index, name in enumerate(pool):
        at -= weights.get(name, 1)
        if at < 0:
            return pool.pop(index)
    raise AssertionError("the number picked is beyond the sum of the weights")
