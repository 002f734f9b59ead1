"""Plan another write quorum of a closed ledger: the new layout, and who owes what by it. No I/O.

Up to the size of the ensemble, a write quorum only changes the write sets within the same
ensemble. A larger one makes the ensemble of each fragment as large as itself: newcomers stand
behind the present bookies, and each slot then stores every entry.

Slots keep their bookies. So each entry keeps the members of its write set, unless the quorum
shrinks. Then the first of its members stay. They are at least as many as the ack quorum, so a
reader with the former metadata never counts enough denials to give an entry up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bookie.errors import BadRequestError
from bookie.ids import is_vacant
from bookie.ledger.copies.replica_plan import (
    EntryRange,
    difference,
    quorum_of,
    settled_fragments,
    stripe_ranges,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import EVERY_ID, Quorum, Stripe


@dataclass(frozen=True, slots=True)
class SlotDuty:
    """The entries of one fragment that one slot should store, by two layouts."""

    bookie_id: str
    slot: int
    first_entry_id: int
    last_entry_id: int
    """The fragment has the entries `first_entry_id` … `last_entry_id`; maybe none."""
    old: Stripe | None
    """The ids that the slot stores so far; None for the slot of a newcomer."""
    new: Stripe

    def owed(self, first: int, last: int) -> list[EntryRange]:
        """The ids from `first` to `last` that the slot should store by the new layout."""
        return stripe_ranges(self.new, first, last)

    def added(self, first: int, last: int) -> list[EntryRange]:
        """The ids from `first` to `last` that only the new layout gives to the slot."""
        known = [] if self.old is None else stripe_ranges(self.old, first, last)
        return difference(self.owed(first, last), known)


def check_write_quorum(metadata: LedgerMetadata, write_quorum_size: int) -> None:
    """Refuse a write quorum that the ledger cannot have.

    Raises:
        BadRequestError: the ledger is not closed, has vacant slots, or the ack quorum is larger. Or
            the ensemble would be too large.
    """
    ledger_id, ack = metadata.ledger_id, quorum_of(metadata).ack_quorum_size
    if not metadata.is_closed:
        raise BadRequestError(
            f"ledger {ledger_id} is not closed: close it first, or recover it if its writer is gone"
        )
    if write_quorum_size < ack:
        raise BadRequestError(
            f"the write quorum of ledger {ledger_id} cannot be {write_quorum_size}, because its "
            f"ack quorum is {ack}"
        )
    Quorum(max(metadata.ensemble_size, write_quorum_size), write_quorum_size, ack)
    for fragment in metadata.fragments:
        if any(map(is_vacant, fragment.bookies)):
            raise BadRequestError(
                f"ledger {ledger_id} has a vacant slot in the fragment from entry "
                f"{fragment.first_entry_id} on: repair it first"
            )


def with_write_quorum(
    metadata: LedgerMetadata, write_quorum_size: int, newcomers: Mapping[int, Sequence[str]]
) -> LedgerMetadata:
    """The metadata with another write quorum.

    Args:
        metadata: the ledger as it is.
        write_quorum_size: see `check_write_quorum`.
        newcomers: by the first entry of each fragment, as many bookies as the ensemble grows.
    """
    size = max(metadata.ensemble_size, write_quorum_size)
    fragments = tuple(
        replace(one, bookies=(*one.bookies, *newcomers.get(one.first_entry_id, ())))
        for one in metadata.fragments
    )
    assert all(len(set(one.bookies)) == size for one in fragments)
    return replace(
        metadata,
        ensemble_size=size,
        write_quorum_size=write_quorum_size,
        fragments=fragments,
    )


def slot_duties(old: LedgerMetadata, new: LedgerMetadata) -> Iterator[SlotDuty]:
    """The duties of all slots of a closed ledger, by its present and its new metadata."""
    before, after = quorum_of(old), quorum_of(new)
    for fragment, last in settled_fragments(new):
        for slot, bookie_id in enumerate(fragment.bookies):
            yield SlotDuty(
                bookie_id,
                slot,
                fragment.first_entry_id,
                last,
                before.stripe_of(slot) if slot < before.ensemble_size else None,
                after.stripe_of(slot),
            )


def classes_of(metadata: LedgerMetadata) -> Stripe:
    """All ids, as a stripe that `runs_by_residue` cuts into runs of one write set each."""
    quorum = quorum_of(metadata)
    return Stripe(quorum.ensemble_size, 0, quorum.ensemble_size) if quorum.is_striped else EVERY_ID
