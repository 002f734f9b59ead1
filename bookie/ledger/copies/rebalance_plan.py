"""Plans which copies move from fuller bookies to emptier bookies, from metadata alone. No I/O.

The unit of a move is a slot of one fragment of a closed ledger: all entries of the fragment that
one bookie stores. The estimated size of a slot is the ledger's length, times the slot's share of
all entries.

The plan handles one ledger after the other. So the memory holds the metadata of only one ledger,
and a few numbers for each bookie. If the sizes of all devices are known, the *fill* of a bookie is
its bytes divided by the size of its device. If the size of any device is unknown, the fill of each
bookie is the number of its bytes.

A bookie is *balanced* if its fill differs from the mean by at most `BALANCED_SHARE` of the mean. A
move goes from a bookie above the mean to a writable bookie below the mean. A move must reduce the
difference between the fills of its two bookies, and at least one of the two is not balanced. So
every plan ends, and repeated plans do not move the same copies back and forth for ever.

The copies that a plan moves to a bookie fill at most `FREE_SHARE` of the bookie's free bytes.
Copies that the plan moves away from the bookie do not raise this limit, because the bookie frees
their space only later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bookie.ids import is_vacant
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.metadata import Fragment, LedgerMetadata

BALANCED_SHARE = 0.05
"""The largest difference between a balanced bookie's fill and the mean, as a share of the mean."""
FREE_SHARE = 0.8
"""The share of a bookie's free bytes that a plan may fill; entries need more space than their
payload."""

MayPlace = Callable[[LedgerMetadata, Sequence[str], int, str], bool]
"""Called with a ledger, a fragment's bookies, a slot and a newcomer; True if the newcomer may get
the slot."""


@dataclass(frozen=True, slots=True)
class Device:
    """The size of a bookie's device, and the free bytes on it."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class SlotMove:
    """A planned move of one slot from `former` to `newcomer`."""

    ledger_id: int
    first_entry_id: int
    former: str
    newcomer: str
    size_bytes: int


def slot_sizes(metadata: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
    """Yield each fragment of a closed ledger, with the estimated bytes of one of its slots."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return
    share = metadata.write_quorum_size / metadata.ensemble_size
    entry_bytes = metadata.length / (metadata.last_entry_id + 1)
    for fragment, last in settled_fragments(metadata):
        entries = max(0, last - fragment.first_entry_id + 1)
        yield fragment, round(entries * entry_bytes * share)


def add_sizes(sizes: dict[str, int], metadata: LedgerMetadata) -> None:
    """Add the estimated bytes of one ledger to `sizes`, only for the bookies in `sizes`."""
    for fragment, size in slot_sizes(metadata):
        for bookie_id in fragment.bookies:
            if bookie_id in sizes:
                sizes[bookie_id] += size


class RebalancePlan:
    """Plans moves, and counts the bytes that each bookie will have after the planned moves.

    Args:
        sizes: the bytes of each bookie that may give copies away.
        writable: the bookies that may take copies; only bookies in `sizes` count.
        may_place: returns True if placement allows a move.
        devices: the devices of the bookies that report the size of their device.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        writable: Collection[str],
        may_place: MayPlace,
        devices: Mapping[str, Device] | None = None,
    ) -> None:
        self.sizes = dict(sizes)
        self._writable = sorted(set(writable) & set(sizes))
        self._may_place = may_place
        devices = devices or {}
        are_known = set(sizes) <= set(devices)
        self._weights = {name: devices[name].total_bytes if are_known else 1 for name in sizes}
        self._room = {name: FREE_SHARE * device.free_bytes for name, device in devices.items()}
        """Bytes that each bookie may still take; no limit for a bookie whose device is unknown."""
        self._mean = sum(sizes.values()) / sum(self._weights.values()) if sizes else 0.0
        self._low, self._high = (self._mean * (1 + sign * BALANCED_SHARE) for sign in (-1, 1))

    @property
    def is_balanced(self) -> bool:
        return all(self._low <= self._fill(name) <= self._high for name in self._writable)

    def moves_of(self, metadata: LedgerMetadata) -> list[SlotMove]:
        moves: list[SlotMove] = []
        for fragment, size in slot_sizes(metadata):
            bookies = list(fragment.bookies)
            if not size or any(map(is_vacant, bookies)):
                continue
            # Begin with the fullest bookie. Moves of this fragment do not change the order.
            for former in sorted(bookies, key=lambda name: (-self._fill(name), name)):
                slot = bookies.index(former)
                newcomer = self._newcomer(metadata, bookies, slot, size)
                if newcomer is None:
                    continue
                move = SlotMove(metadata.ledger_id, fragment.first_entry_id, former, newcomer, size)
                bookies[slot] = newcomer
                self._apply(move, 1)
                moves.append(move)
        return moves

    def undo(self, move: SlotMove) -> None:
        self._apply(move, -1)

    def _apply(self, move: SlotMove, sign: int) -> None:
        self.sizes[move.former] -= sign * move.size_bytes
        self.sizes[move.newcomer] += sign * move.size_bytes
        if move.newcomer in self._room:
            self._room[move.newcomer] -= sign * move.size_bytes

    def _fill(self, name: str) -> float:
        """Return the fill of a bookie; 0 for a bookie that may not give copies away."""
        return self.sizes[name] / self._weights[name] if name in self.sizes else 0.0

    def _newcomer(
        self, metadata: LedgerMetadata, bookies: Sequence[str], slot: int, size: int
    ) -> str | None:
        """Return the emptiest bookie that may take a slot; None if no move improves the balance."""
        full = self._fill(bookies[slot])
        if full <= self._mean:
            return None
        for name in sorted(self._writable, key=lambda one: (self._fill(one), one)):
            empty = self._fill(name)
            is_due = full > self._high or empty < self._low
            if empty >= self._mean or not is_due:
                return None  # all later bookies are fuller
            change = size / self._weights[bookies[slot]] + size / self._weights[name]
            if change >= 2 * (full - empty) or size > self._room.get(name, math.inf):
                continue
            if name not in bookies and self._may_place(metadata, bookies, slot, name):
                return name
        return None
