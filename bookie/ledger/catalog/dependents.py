"""Finds the ledgers that depend on a bookie, and the ledgers whose last copies the bookie may have.

An acknowledged entry has at least Qa copies, on any Qa of the Qw members of its write set. A member
of a write set is *lost* if its copies do not count. The bookie that will be forgotten counts as
lost. A bookie without a cookie counts as lost, because the bookie was deleted before. A bookie
whose cookie is NEW starts empty, and a bookie whose cookie is in doubt may lack entries; both count
as lost. Once Qa members of an entry's write set are lost, all copies of the entry may be lost. A
vacant slot never had a copy, so the slot is not lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from bookie.cluster.cookie import CookieState
from bookie.cluster.cookies import CookieManager
from bookie.errors import FormatError
from bookie.ids import MAX_ID, is_vacant
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata

FIRST_IDS_MAX = 5
"""The largest number of ledger ids in a sample; further ledgers are only counted."""


@dataclass(frozen=True, slots=True)
class LedgerSample:
    """The number of some ledgers of a cluster, and the lowest ids of these ledgers."""

    count: int = 0
    first_ids: tuple[int, ...] = ()
    """The lowest ids, ascending; at most `FIRST_IDS_MAX`."""

    def plus(self, ledger_id: int) -> LedgerSample:
        """Return the sample with one more ledger, whose id must be above all ids in the sample."""
        shown = len(self.first_ids) < FIRST_IDS_MAX
        return LedgerSample(
            self.count + 1, (*self.first_ids, ledger_id) if shown else self.first_ids
        )

    def __str__(self) -> str:
        """Return a text such as ``2, 5, 7 and 12 more``."""
        more = self.count - len(self.first_ids)
        return ", ".join(map(str, self.first_ids)) + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True)
class Dependents:
    """The ledgers that depend on one bookie."""

    named: LedgerSample = LedgerSample()
    """Ledgers with an ensemble that names the bookie."""
    not_closed: LedgerSample = LedgerSample()
    """The ledgers among `named` that are open or in recovery."""
    last_copies: LedgerSample = LedgerSample()
    """The ledgers among `named` with an entry whose last copy may be on the bookie."""
    unreadable: LedgerSample = LedgerSample()
    """The ledgers with unreadable metadata; these ledgers may also depend on the bookie."""

    @property
    def at_risk(self) -> int:
        """The number of ledgers in `last_copies` and in `unreadable`."""
        return self.last_copies.count + self.unreadable.count


def has_last_copies(metadata: LedgerMetadata, bookie_id: str, reliable: Container[str]) -> bool:
    """True if `bookie_id` may have the last copy of an acknowledged entry of the ledger.

    The result is True if at least Qa members of an entry's write set, including `bookie_id`, are
    lost.

    Args:
        metadata: The metadata of the ledger. While the ledger is not closed, its last fragment has
            no last entry.
        bookie_id: The bookie to be forgotten; it counts as lost, even if it is in `reliable`.
        reliable: The bookies whose copies count.
    """
    size, write = metadata.ensemble_size, metadata.write_quorum_size
    ack = max(metadata.ack_quorum_size, 1)
    for fragment, last_entry_id in _ranges(metadata):
        if bookie_id not in fragment.bookies:
            continue
        lost = [
            name == bookie_id or (name not in reliable and not is_vacant(name))
            for name in fragment.bookies
        ]
        slot = fragment.bookies.index(bookie_id)
        for start in range(slot - write + 1, slot + 1):
            first = fragment.first_entry_id
            entry_id = first + (start - first) % size  # the first entry with this write set
            if entry_id > last_entry_id:
                continue
            if sum(lost[(start + position) % size] for position in range(write)) >= ack:
                return True
    return False


def _ranges(metadata: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
    """Return each fragment with the id of the last entry that it may hold."""
    end = metadata.last_entry_id if metadata.is_closed else MAX_ID
    following = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    lasts = [*(min(first - 1, end) for first in following), end]
    return zip(metadata.fragments, lasts, strict=True)


async def reliable_bookies(cookies: CookieManager) -> frozenset[str]:
    """Return the bookies whose copies count: each has a READY cookie that is not in doubt.

    Raises:
        FormatError: a cookie is damaged, or a newer version wrote it.
    """
    found = set()
    for bookie_id in await cookies.bookie_ids():
        try:
            cookie = await cookies.read(bookie_id)
        except FormatError as error:
            raise type(error)(f"the cookie of bookie {bookie_id}: {error}") from error
        if cookie is None or cookie.value.is_in_doubt:
            continue
        if cookie.value.state is CookieState.READY:
            found.add(bookie_id)
    return frozenset(found)


async def find_dependents(
    ledgers: LedgerManager, bookie_id: str, reliable: Container[str]
) -> Dependents:
    """Find the ledgers that depend on `bookie_id`, by reading every ledger of the cluster in turn.

    Raises:
        MetadataUnavailableError: the listing could not be completed.
        FormatError: a key below ``ledgers/`` does not name a ledger.
    """
    found, unreadable = Dependents(), LedgerSample()

    def on_damaged(ledger_id: int) -> None:
        nonlocal unreadable
        unreadable = unreadable.plus(ledger_id)

    async for versioned in ledgers.list_readable(on_damaged):
        metadata = versioned.value
        ledger_id = metadata.ledger_id
        if not any(bookie_id in fragment.bookies for fragment in metadata.fragments):
            continue
        found = replace(found, named=found.named.plus(ledger_id))
        if not metadata.is_closed:
            found = replace(found, not_closed=found.not_closed.plus(ledger_id))
        if has_last_copies(metadata, bookie_id, reliable):
            found = replace(found, last_copies=found.last_copies.plus(ledger_id))
    return replace(found, unreadable=unreadable)
