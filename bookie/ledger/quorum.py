"""Quorum arithmetic: which slots store an entry, and what a set of answers proves.

An ensemble is E bookies, each in a **slot** 0 … E-1. The **write set** of entry ``e`` is the Qw
slots that start at ``e % E`` and wrap around. An entry is acknowledged when any Qa slots of its
write set have stored it. Entries with the same ``e % E`` share a write set, and form a **class**.
With E == Qw all classes have the same write set, so there is only one class.

Sets of slots are bit masks: bit ``s`` is slot ``s``. So a test for a quorum needs only one AND and
one bit count. A mask is a plain value that can be stored, compared and printed.

Source: the BookKeeper protocol document, "Write quorums" and "Ack quorums"; `Quorum.covers` is the
window rule of the section "Closing a ledger as a reader".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from bookie.errors import BadRequestError
from bookie.ledger.metadata import LedgerMetadata

ENSEMBLE_SIZE_MAX = 64
"""The size of the largest ensemble: more than any useful ensemble needs, and a mask of its slots
fits into one machine word."""


def mask_of(slots: Iterable[int]) -> int:
    """Return the bit mask of these slots."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


def slots_of(mask: int) -> Iterator[int]:
    """Return the slots of a bit mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@dataclass(frozen=True, slots=True)
class Stripe:
    """A set of entry ids, such as the ids of a slot: ``(id - first_residue) % modulus < count``.

    If `modulus` is 0, the set contains every id, and `first_residue` and `count` are 0.
    """

    modulus: int
    first_residue: int
    count: int

    def contains(self, entry_id: int) -> bool:
        return self.modulus == 0 or (entry_id - self.first_residue) % self.modulus < self.count

    def next_id(self, entry_id: int) -> int:
        """Return the smallest id of the stripe that is not below `entry_id`."""
        if self.contains(entry_id):
            return entry_id
        return entry_id + (self.first_residue - entry_id) % self.modulus


EVERY_ID = Stripe(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Quorum:
    """The three sizes of a ledger, E >= Qw >= Qa >= 1, and the rules that follow from the sizes."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    windows: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The write set of each class as a mask, indexed by class."""

    def __post_init__(self) -> None:
        ensemble, write, ack = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        # Refuse booleans: Python accepts a boolean as an integer, but ledger metadata cannot encode
        # it.
        whole = all(type(size) is int for size in (ensemble, write, ack))
        if not (whole and ENSEMBLE_SIZE_MAX >= ensemble >= write >= ack >= 1):
            raise BadRequestError(
                f"ensemble size {ensemble!r}, write quorum {write!r} and ack quorum {ack!r} must "
                f"satisfy {ENSEMBLE_SIZE_MAX} >= ensemble >= write >= ack >= 1, as integers"
            )
        classes = 1 if ensemble == write else ensemble
        windows = tuple(
            mask_of((first + i) % ensemble for i in range(write)) for first in range(classes)
        )
        object.__setattr__(self, "windows", windows)

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> Self:
        return cls(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)

    @property
    def is_striped(self) -> bool:
        """True if entries go to different write sets (E > Qw)."""
        return len(self.windows) > 1

    @property
    def negatives_needed(self) -> int:
        """The number of denials in a write set that prove that an entry is not acknowledged."""
        return self.write_quorum_size - self.ack_quorum_size + 1

    @property
    def every_slot(self) -> int:
        return (1 << self.ensemble_size) - 1

    def write_mask(self, entry_id: int) -> int:
        """Return the slots that store an entry, as a mask."""
        return self.windows[entry_id % len(self.windows)]

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the slots that store an entry, in the protocol's order: from ``entry_id % E``."""
        size = self.ensemble_size
        return tuple((entry_id + i) % size for i in range(self.write_quorum_size))

    def member(self, entry_id: int, position: int) -> int:
        """Return one slot of an entry's write set: ``write_set(entry_id)[position % Qw]``."""
        return (entry_id + position % self.write_quorum_size) % self.ensemble_size

    def classes_in(self, first_entry_id: int, count: int) -> range | tuple[int, ...]:
        """Return the classes of `count` consecutive entry ids."""
        classes = len(self.windows)
        if count >= classes:
            return range(classes)
        return tuple((first_entry_id + i) % classes for i in range(count))

    def slots_for(self, classes: Iterable[int]) -> int:
        """Return the slots that store any entry of `classes`, as a mask."""
        mask = 0
        for index in classes:
            mask |= self.windows[index]
        return mask

    def is_acknowledged(self, acked: int, classes: Iterable[int]) -> bool:
        """True if the slots in `acked` contain an ack quorum of each class in `classes`.

        A slot may be in `acked` only if it has stored all entries of these classes that it must
        store.
        """
        needed = self.ack_quorum_size
        windows = self.windows
        return all((acked & windows[index]).bit_count() >= needed for index in classes)

    def covers(self, answered: int) -> bool:
        """True if no write set has an ack quorum among the slots outside `answered`.

        If the result is True and every slot in `answered` has fenced the ledger, no plain add can
        be acknowledged any more.
        """
        silent = ~answered
        needed = self.ack_quorum_size
        return all((silent & window).bit_count() < needed for window in self.windows)

    def stripe_of(self, slot: int) -> Stripe:
        """Return the ids that a slot stores; `EVERY_ID` if the ledger is not striped."""
        if not self.is_striped:
            return EVERY_ID
        first = (slot - self.write_quorum_size + 1) % self.ensemble_size
        return Stripe(self.ensemble_size, first, self.write_quorum_size)

    def stripe_of_class(self, index: int) -> Stripe:
        """Return the ids of one class; `EVERY_ID` if the ledger has only one class."""
        return Stripe(self.ensemble_size, index, 1) if self.is_striped else EVERY_ID
