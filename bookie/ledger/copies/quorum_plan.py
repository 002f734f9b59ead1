"""Plans another write quorum for a closed ledger: the new layout, and each slot's entries. No I/O.

If the new write quorum is not larger than the ensemble, only the write sets change. A larger write
quorum extends the ensemble of each fragment to the size of the write quorum. New bookies are
appended after the present bookies. Each slot then stores every entry of the fragment.

Each slot keeps its bookie. So if the quorum grows, each entry keeps all members of its write set.
If the quorum shrinks, each entry keeps the first members of its write set, and at least an ack
quorum of members. So a reader with the former metadata never gets enough negative answers to
conclude that an entry does not exist.
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
    """The entries of one fragment that one slot should store in the old and in the new layout."""

    bookie_id: str
    slot: int
    first_entry_id: int
    last_entry_id: int
    """The last entry of the fragment; below `first_entry_id` if the fragment is empty."""
    old: Stripe | None
    """The ids that the slot should store in the old layout; None for the slot of a newcomer."""
    new: Stripe

    def owed(self, first: int, last: int) -> list[EntryRange]:
        """Return the ids from `first` to `last` that the slot should store in the new layout."""
        return stripe_ranges(self.new, first, last)

    def added(self, first: int, last: int) -> list[EntryRange]:
        """Return the ids from `first` to `last` that only the new layout assigns to the slot."""
        known = [] if self.old is None else stripe_ranges(self.old, first, last)
        return difference(self.owed(first, last), known)


def check_write_quorum(metadata: LedgerMetadata, write_quorum_size: int) -> None:
    """Raise an error if the ledger cannot have this write quorum.

    Raises:
        BadRequestError: the ledger is not closed, has a vacant slot, or has an ack quorum above the
            write quorum; or its ensemble would be too large.
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
    """Return the metadata with another write quorum.

    Args:
        metadata: the present metadata of the ledger.
        write_quorum_size: see `check_write_quorum`.
        newcomers: maps the first entry of each fragment to one bookie for each additional slot.
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
    """Yield the `SlotDuty` of each slot and fragment of a closed ledger."""
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
    """Return a stripe of all ids; `runs_by_residue` splits this stripe by write sets."""
    quorum = quorum_of(metadata)
    return Stripe(quorum.ensemble_size, 0, quorum.ensemble_size) if quorum.is_striped else EVERY_ID
