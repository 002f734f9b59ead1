"""Proves that each entry of a closed ledger is stored by all members of its write set.

Each member is asked to list its entries. A listing does not prove that the bytes are intact. So one
copy of each entry is also read.
"""

from __future__ import annotations

from bookie.env.pace import Pace
from bookie.errors import BookieUnreachableError, OperationTimeoutError
from bookie.ids import is_vacant
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.replica_plan import (
    EntryRange,
    count_of,
    difference,
    intersection,
    merged,
    quorum_of,
    runs_by_residue,
    settled_fragments,
    stripe_ranges,
    windows,
)
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.place.ensembles import Incarnations
from bookie.ledger.read.verification import list_stored


async def find_lack(client: LedgerClient, metadata: LedgerMetadata, silent: set[str]) -> str:
    """Return the first reason why copies of a ledger may be missing; "" if all copies are listed.

    The reason may also be an open ledger, a vacant slot, or a bookie in `silent`. A listing does
    not prove that the bytes of an entry are intact. A listing counts only if the bookie answers
    with the incarnation in its cookie, because an older process of the bookie may still answer.

    Args:
        client: the client with the connections to bookies.
        metadata: the metadata of the ledger.
        silent: bookies that did not answer before, and are not asked again. `find_lack` adds a
            bookie that does not answer.

    Raises:
        BookieError: a member did not answer, or has another incarnation; nothing is proven.
    """
    if not metadata.is_closed:
        return "the ledger is not closed"
    for fragment in metadata.fragments:
        if known := sorted(silent.intersection(fragment.bookies)):
            return f"bookie {known[0]} did not answer before"
    quorum = quorum_of(metadata)
    incarnations = Incarnations(client.ensembles.cookies)
    for fragment, last in settled_fragments(metadata):
        for slot, bookie_id in enumerate(fragment.bookies):
            for begin, end in windows(fragment.first_entry_id, last):
                owed = stripe_ranges(quorum.stripe_of(slot), begin, end)
                if not owed:
                    continue
                if is_vacant(bookie_id):
                    return f"a slot of the fragment from {fragment.first_entry_id} on is vacant"
                incarnation = await incarnations.of(bookie_id)
                if not incarnation:
                    return f"bookie {bookie_id} has not started with a cookie of this cluster"
                try:
                    stored = await list_stored(
                        client.pool,
                        bookie_id,
                        metadata,
                        owed[0][0],
                        owed[-1][1],
                        incarnation=incarnation,
                    )
                except (BookieUnreachableError, OperationTimeoutError):
                    silent.add(bookie_id)
                    raise
                if lacking := count_of(difference(owed, stored)):
                    return f"bookie {bookie_id} lacks {lacking} entries"
    return ""


async def find_unreadable(client: LedgerClient, metadata: LedgerMetadata, pace: Pace) -> str:
    """Describe the first entries without any intact copy; return "" if all entries have one.

    Each entry is read from one bookie of its write set. The next bookie is asked only for entries
    whose copies on the bookies before are missing or damaged.

    Args:
        client: the client whose connections are used.
        metadata: the metadata of a closed ledger.
        pace: bounds the bytes per second.

    Raises:
        MetadataError, FormatError: a member's incarnation could not be read from the store.
    """
    incarnations = Incarnations(client.ensembles.cookies)
    for fragment, last in settled_fragments(metadata):
        for begin, end in windows(fragment.first_entry_id, last):
            left: list[EntryRange] = [(begin, end)]
            for slot in range(len(fragment.bookies)):
                left = await _still_unread(
                    client, metadata, fragment, slot, left, incarnations, pace
                )
            if left:
                return f"no member has an intact copy of {count_of(left)} entries from {left[0][0]}"
    return ""


async def _still_unread(
    client: LedgerClient,
    metadata: LedgerMetadata,
    fragment: Fragment,
    slot: int,
    wanted: list[EntryRange],
    incarnations: Incarnations,
    pace: Pace,
) -> list[EntryRange]:
    """Read a slot's `wanted` entries; return all `wanted` entries that still need a good copy."""
    if not wanted:
        return []
    stripe = quorum_of(metadata).stripe_of(slot)
    owed = intersection(wanted, stripe_ranges(stripe, wanted[0][0], wanted[-1][1]))
    if not owed or not (incarnation := await incarnations.of(fragment.bookies[slot])):
        return wanted
    failed: list[EntryRange] = []
    for run, first, last in runs_by_residue(stripe, owed):
        check = CopyCheck(
            metadata,
            fragment.bookies[slot],
            run,
            client.pool,
            is_patient=False,
            pace=pace,
            incarnation=incarnation,
        )
        found = await check.run(first, last)
        failed += [*found.missing, *found.corrupt, *found.unread]
    return merged([*difference(wanted, owed), *failed])
