"""Restores missing and damaged entries of one ledger on a running bookie.

A fill handles only fragments whose entries no longer change. `CopyCheck` reads and verifies the
bookie's own copies. `EntryCopier` copies good entries from the other members of the write sets.
After the repair, `CopyCheck` reads the repaired copies once more. At the end, the bookie must have
the same incarnation as at the beginning, because another incarnation may have lost entries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from bookie.env.pace import Pace
from bookie.errors import BookieError, MetadataError, NoSuchLedgerError
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.replica_plan import (
    EntryRange,
    count_of,
    merged,
    quorum_of,
    runs_by_residue,
    settled_fragments,
    windows,
)
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Stripe

LOCK_LOST = "the ledger's lock was lost meanwhile"


@dataclass(slots=True)
class FillWatch:
    """Follows a ledger's mark and lock during a fill, and remembers which windows have no damage.

    A changed mark may report new damage. So a window counts as whole only while the mark has the
    version that it had before the window was read.
    """

    mark_version: Callable[[], Awaitable[int | None]]
    """Returns the present version of the mark; None if the lock was lost."""
    wanted: int
    """The version of the mark for which all windows must be whole."""
    whole: dict[tuple[str, str, Stripe, int, int], int] = field(default_factory=dict)
    """Maps a window (bookie, incarnation, stripe, first and last id) to the version of the mark for
    which the window is whole."""


class _FillError(Exception):
    """Raised to end the fill of a copy; the arguments are an outcome and its detail."""


class ReplicaFill:
    """Fills copies of one ledger at a time with the connections of one client."""

    def __init__(self, client: LedgerClient, pace: Pace | None = None) -> None:
        self._client = client
        self._pace = pace

    async def run(
        self, ledger_id: int, bookie_id: str, watch: FillWatch | None = None
    ) -> RepairOutcome:
        """Fill the copy of one bookie; `RepairOutcome` explains the outcomes.

        With `watch`, the fill ends with ``locked`` soon after the lock was lost.

        Raises:
            MetadataError: the metadata store failed.
        """
        try:
            metadata = (await self._client.ledgers.read_latest(ledger_id)).value
        except NoSuchLedgerError:
            return RepairOutcome(ledger_id, bookie_id, "deleted")
        copier = EntryCopier(self._client, metadata, bookie_id, pace=self._pace, needs_room=True)
        outcome, detail = "was-fine", ""
        try:
            incarnation = await copier.incarnation()
            for stripe, begin, end in _windows_of(metadata, bookie_id):
                window = bookie_id, incarnation, stripe, begin, end
                version = await _version_before(window, watch)
                if version is None:
                    continue
                if await self._fill(copier, stripe, begin, end):
                    outcome = "repaired"
                if watch is not None:
                    watch.whole[window] = version
            cookie = await self._client.ensembles.cookies.read_latest(bookie_id)
            if incarnation != ("" if cookie is None else cookie.value.incarnation):
                raise _FillError("refused", f"{bookie_id} may have lost what it had")
        except _FillError as error:
            outcome, detail = error.args
        except NoSuchLedgerError:
            outcome = "deleted"
        except MetadataError:
            raise
        except BookieError as error:
            outcome, detail = "refused", str(error)
        return RepairOutcome(
            ledger_id, bookie_id, outcome, copier.entries, copier.packet_bytes, detail
        )

    async def _fill(self, copier: EntryCopier, stripe: Stripe, first: int, last: int) -> bool:
        """Copy the missing and damaged entries of a window; return False if there are none."""
        wrong = await self._find_damage(copier, stripe, first, last)
        if not wrong:
            return False
        for run, begin, end in runs_by_residue(stripe, wrong):
            if reason := await copier.copy(begin, end, run):
                raise _FillError("no-good-copy", reason)
        if left := count_of(await self._find_damage(copier, stripe, first, last)):
            raise _FillError("refused", f"{left} entries are still wrong after they were stored")
        return True

    async def _find_damage(
        self, copier: EntryCopier, stripe: Stripe, first: int, last: int
    ) -> list[EntryRange]:
        """Read a window of entries from this bookie; return the missing and the damaged entries."""
        check = CopyCheck(
            copier.metadata,
            copier.target,
            stripe,
            self._client.pool,
            pace=self._pace,
            incarnation=await copier.incarnation(),
        )
        found = await check.run(first, last)
        if found.unread:
            raise _FillError("refused", found.reason)
        return merged([*found.missing, *found.corrupt])


def _windows_of(metadata: LedgerMetadata, bookie_id: str) -> Iterator[tuple[Stripe, int, int]]:
    """Yield each window in which a bookie should store entries, as stripe, first id and last id.

    The bookie should store only those ids of a window that are in the stripe.
    """
    quorum = quorum_of(metadata)
    for fragment, last in settled_fragments(metadata):
        if bookie_id in fragment.bookies:
            stripe = quorum.stripe_of(fragment.bookies.index(bookie_id))
            for begin, end in windows(fragment.first_entry_id, last):
                yield stripe, begin, end


async def _version_before(
    window: tuple[str, str, Stripe, int, int], watch: FillWatch | None
) -> int | None:
    """Return the mark's version before a window is read; None if the window is already whole."""
    if watch is None:
        return 0
    if watch.whole.get(window) == watch.wanted:
        return None
    version = await watch.mark_version()
    if version is None:
        raise _FillError("locked", LOCK_LOST)
    return version
