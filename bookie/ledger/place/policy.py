"""Chooses the bookies of an ensemble, and newcomers for its slots, by a placement policy."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Self

from bookie.errors import NotEnoughBookiesError
from bookie.ids import vacancy
from bookie.ledger.place.spread import UNKNOWN, Spread, draw, span, write_sets
from bookie.ledger.quorum import Quorum, mask_of

LEVELS = ("region", "zone", "rack")
"""The labels that placement knows, from the largest failure domain to the smallest."""

FREE_SPACE_MULTIPLE_MAX = 3
"""The largest ratio of a bookie's weight to the weight of a bookie with median free space."""


class PlacementPolicy(enum.StrEnum):
    """The label that defines failure domains: bookies with the same value may fail together."""

    DEFAULT = "default"
    """No label: any bookies may be together in an ensemble."""
    RACK = "rack"
    ZONE = "zone"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class AckDomains:
    """A rule: the slots of each failure domain, and the number of domains that must acknowledge.

    With a minimum of two, an acknowledged entry survives the loss of any one rack, zone or region.
    An entry is acknowledged only when it has an ack quorum, and the bookies that stored it span
    enough domains.
    """

    masks: tuple[int, ...]
    """The slots of each known domain, as a bit mask; slots in unknown domains are in no mask."""
    minimum: int
    """The number of domains per write set that must acknowledge an entry; 1 adds no condition."""

    @classmethod
    def of(cls, domains: Sequence[str], minimum: int) -> Self:
        """Create the object from the domain of each slot; a slot without a label has `UNKNOWN`."""
        masks: dict[str, int] = {}
        for slot, domain in enumerate(domains):
            if domain != UNKNOWN:
                masks[domain] = masks.get(domain, 0) | 1 << slot
        return cls(tuple(masks.values()), minimum)

    def is_enough(self, acked: int, windows: Iterable[int]) -> bool:
        """True if the slots in `acked` span enough domains inside each window.

        Pass all working slots as `acked` to learn if enough domains are possible at all.

        Args:
            acked: the slots that acknowledged, as a bit mask.
            windows: the write sets of the entries, as bit masks (`Quorum.windows`).
        """
        if self.minimum <= 1:
            return True
        return all(self._spanned(acked & window) >= self.minimum for window in windows)

    def _spanned(self, slots: int) -> int:
        return sum(1 for mask in self.masks if mask & slots)


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy with the current labels and weights; create a new object for each choice."""

    policy: PlacementPolicy = PlacementPolicy.DEFAULT
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Maps a bookie id to the labels of the bookie; a missing bookie has no labels."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """The probability weight of each bookie; empty if all bookies are equally likely."""
    domains_min: int = 2
    """The number of domains that every write set should span, if there are enough bookies."""
    enforce: bool = False
    """If True, a choice is refused when a write set would span too few domains."""
    ack_domains_min: int = 1
    """The number of domains that must store an entry before it is acknowledged."""

    def ack_domains(self, bookies: Iterable[str]) -> AckDomains | None:
        """Return the rule about domains that acknowledgements must span; None without a rule."""
        if self.policy is PlacementPolicy.DEFAULT or self.ack_domains_min <= 1:
            return None
        return AckDomains.of(self.domains(bookies), self.ack_domains_min)

    def domain(self, bookie_id: str) -> str:
        """Return the failure domain of a bookie; `UNKNOWN` if the bookie lacks the label."""
        if self.policy is PlacementPolicy.DEFAULT:
            return UNKNOWN
        return self._label(bookie_id, self.policy.value)

    def domains(self, bookies: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.domain, bookies))

    def wanted(self, write_quorum_size: int) -> int:
        """Return how many domains each write set should span."""
        if self.policy is PlacementPolicy.DEFAULT:
            return 1
        return min(self.domains_min, write_quorum_size)

    def spans(self, ensemble: Sequence[str], write_quorum_size: int) -> tuple[int, ...]:
        """Return the number of known domains of each write set; at least 1."""
        domains = self.domains(ensemble)
        return tuple(
            span([domains[slot] for slot in slots])
            for slots in write_sets(len(ensemble), write_quorum_size)
        )

    def ensemble(
        self,
        candidates: Collection[str],
        ensemble_size: int,
        *,
        pick: Callable[[int], int],
        excluded: Collection[str] = (),
        write_quorum_size: int | None = None,
        vacant: Collection[int] = (),
    ) -> tuple[str, ...]:
        """Choose a different bookie for each slot, except for slots that stay vacant.

        Args:
            candidates: ids of the bookies that take new ledgers; their order does not matter.
            ensemble_size: the number of slots.
            pick: ``pick(n)`` returns a number in ``0 … n-1``.
            excluded: ids that must not be chosen.
            write_quorum_size: Qw; the ensemble's size if None.
            vacant: slots without a bookie, from `vacant_slots`.

        Raises:
            NotEnoughBookiesError: fewer candidates are left than slots, or `enforce` is set and a
                write set would span too few domains.
        """
        # Sort the ids, because the order of a set of strings differs between processes.
        pool = sorted(set(candidates).difference(excluded))
        slots = [slot for slot in range(ensemble_size) if slot not in vacant]
        if len(pool) < len(slots):
            raise NotEnoughBookiesError(
                f"an ensemble of {len(slots)} is wanted, but there are only {len(pool)} "
                "writable bookies"
            )
        write_quorum_size = write_quorum_size or ensemble_size
        now = [UNKNOWN if slot in vacant else None for slot in range(ensemble_size)]
        domains, is_given_up = self._spread(now, slots, pool, write_quorum_size, pick)
        chosen = self._fill([""] * ensemble_size, domains, pool, write_quorum_size, pick)
        ensemble = tuple(
            chosen[slot] if slot in chosen else vacancy(slot) for slot in range(ensemble_size)
        )
        wanted, least = self.wanted(write_quorum_size), min(self.spans(ensemble, write_quorum_size))
        if self.enforce and least < wanted:
            raise NotEnoughBookiesError(
                f"every write set must span {wanted} {self.policy.value}s, but the writable "
                f"bookies allow only {least}"
                + (", as far as the search went before it was given up" if is_given_up else "")
            )
        return ensemble

    def newcomers(
        self,
        ensemble: Sequence[str],
        slots: Collection[int],
        candidates: Collection[str],
        *,
        pick: Callable[[int], int],
        write_quorum_size: int | None = None,
    ) -> dict[int, str]:
        """Choose bookies outside the ensemble for as many of `slots` as possible.

        With `enforce`, a slot gets no bookie if this would reduce the domains of a write set below
        the wanted number.

        Args:
            ensemble: the current bookies of the slots, including failed bookies.
            slots: the slots to take over, most urgent first.
            candidates: as in `ensemble`.
            pick: as in `ensemble`.
            write_quorum_size: Qw; the ensemble's size if None.
        """
        pool = sorted(set(candidates).difference(ensemble))
        write_quorum_size = write_quorum_size or len(ensemble)
        least = [1] * len(write_sets(len(ensemble), write_quorum_size))
        if self.enforce:
            wanted = self.wanted(write_quorum_size)
            least = [min(wanted, now) for now in self.spans(ensemble, write_quorum_size)]
        domains, _ = self._spread(
            self.domains(ensemble), tuple(slots), pool, write_quorum_size, pick, least
        )
        return self._fill(ensemble, domains, pool, write_quorum_size, pick)

    def _spread(
        self,
        now: Sequence[str | None],
        slots: Sequence[int],
        pool: list[str],
        write_quorum_size: int,
        pick: Callable[[int], int],
        least: Sequence[int] | None = None,
    ) -> tuple[dict[int, str], bool]:
        """Choose a domain for each of `slots` that can get a bookie.

        The second value of the result is True if a better choice may exist.
        """
        if self.policy is PlacementPolicy.DEFAULT:
            return dict.fromkeys(slots[: len(pool)], UNKNOWN), False
        capacity: dict[str, int] = {}
        weights: dict[str, int] = {}
        for bookie_id in pool:
            domain = self.domain(bookie_id)
            capacity[domain] = capacity.get(domain, 0) + 1
            weights[domain] = weights.get(domain, 0) + self.weights.get(bookie_id, 1)
        search = Spread(
            now,
            slots,
            write_quorum_size,
            capacity=capacity,
            weights=weights,
            pick=pick,
            least=least,
        )
        return search.run(), search.is_given_up

    def _fill(
        self,
        ensemble: Sequence[str],
        domains: Mapping[int, str],
        pool: list[str],
        write_quorum_size: int,
        pick: Callable[[int], int],
    ) -> dict[int, str]:
        """Choose a bookie for each slot, from the slot's domain in `domains`.

        Bookies of a write set should also be in different smaller domains, such as racks.
        """
        members = list(ensemble)
        for slot in domains:
            members[slot] = ""
        for slot, domain in domains.items():
            here = [bookie_id for bookie_id in pool if self.domain(bookie_id) == domain]
            here = self._least_alike(here, self._neighbours(members, slot, write_quorum_size))
            members[slot] = draw(here, self.weights, pick)
            pool.remove(members[slot])
        return {slot: members[slot] for slot in domains}

    def _neighbours(self, members: list[str], slot: int, write_quorum_size: int) -> list[str]:
        """Return the bookies that share a write set with a slot."""
        near = {
            (slot + step) % len(members) for step in range(1 - write_quorum_size, write_quorum_size)
        }
        return [members[other] for other in near if members[other]]

    def _least_alike(self, bookies: list[str], neighbours: list[str]) -> list[str]:
        """Return the bookies of `bookies` whose smaller domains are rarest among `neighbours`."""
        if self.policy is PlacementPolicy.DEFAULT:
            return bookies
        narrower = LEVELS[LEVELS.index(self.policy.value) + 1 :]
        for level in narrower:
            taken = [self._label(other, level) for other in neighbours]
            alike = [self._count(taken, self._label(one, level)) for one in bookies]
            fewest = min(alike)
            bookies = [one for one, count in zip(bookies, alike, strict=True) if count == fewest]
        return bookies

    def _label(self, bookie_id: str, level: str) -> str:
        return self.labels.get(bookie_id, {}).get(level, UNKNOWN)

    @staticmethod
    def _count(taken: list[str], domain: str) -> int:
        return len(taken) if domain == UNKNOWN else taken.count(domain)


ANYWHERE = Placement()
"""The default placement: every choice of bookies is equally likely."""


def weights_by_free_space(free_bytes: Mapping[str, int]) -> dict[str, int]:
    """Return each bookie's weight: its free space, but at most three times the median."""
    if not free_bytes:
        return {}
    most = FREE_SPACE_MULTIPLE_MAX * max(1, median_low(free_bytes.values()))
    return {bookie_id: min(max(1, free), most) for bookie_id, free in free_bytes.items()}


def vacant_slots(quorum: Quorum, count: int) -> tuple[int, ...]:
    """Choose `count` slots to leave vacant, spread evenly over the write sets.

    A ledger keeps its ensemble and quorum sizes until its close. So a ledger that is created while
    bookies are missing gets vacant slots instead of smaller sizes. A vacant slot has a reserved
    name that no bookie may use. Writer, readers and recovery treat a vacant slot as a bookie that
    never answers. A spare bookie takes over the vacant slot by an ensemble change, or when a writer
    claims the ledger. The fragments of the ledger record which entries were written while the slot
    was vacant.

    Raises:
        NotEnoughBookiesError: a write set would have fewer bookies than the ack quorum.
    """
    size = quorum.ensemble_size
    vacant = tuple(size - 1 - index * size // count for index in reversed(range(count)))
    occupied = quorum.every_slot & ~mask_of(vacant)
    if not quorum.is_acknowledged(occupied, range(len(quorum.windows))):
        raise NotEnoughBookiesError(
            f"with only {size - count} writable bookies of {size}, some entries would have fewer "
            f"than {quorum.ack_quorum_size} copies"
        )
    return vacant
