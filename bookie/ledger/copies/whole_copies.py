"""The proof that all members of all write sets store a closed ledger, each by its own listing."""

from __future__ import annotations

from bookie.errors import BookieUnreachableError, OperationTimeoutError
from bookie.ids import is_vacant
from bookie.ledger.copies.replica_plan import (
    count_of,
    difference,
    quorum_of,
    settled_fragments,
    stripe_ranges,
    windows,
)
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Incarnations
from bookie.ledger.read.verification import list_stored


async def find_lack(client: LedgerClient, metadata: LedgerMetadata, silent: set[str]) -> str:
    """The first lack in the copies that the metadata names; empty if each entry is listed.

    Nothing is proven about a ledger that is not closed. A listing tells what is stored, and not
    whether its bytes are intact. Only the incarnation that a bookie's cookie names counts: an older
    process of the bookie may still answer.

    Args:
        client: whose connections are used.
        metadata: of the ledger.
        silent: members that are not asked, since they did not answer before. One that does not
            answer now is added.

    Raises:
        BookieError: a member did not answer, or is another incarnation; nothing is proven.
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
