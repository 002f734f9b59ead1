"""Give a bookie that serves the entries of one ledger that it lacks, or whose bytes are wrong.

All fragments that do not change any more are read from this bookie alone, and verified
(`CopyCheck`). Good copies come from the other members of the write sets (`EntryCopier`). At the end
the bookie is read once more.
"""

from __future__ import annotations

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

Damage = tuple[Stripe, list[EntryRange]]


class ReplicaFill:
    """Fills copies of one ledger at a time with the connections of one client."""

    def __init__(self, client: LedgerClient, pace: Pace | None = None) -> None:
        self._client = client
        self._pace = pace

    async def run(self, ledger_id: int, bookie_id: str) -> RepairOutcome:
        """Fill the copy of one bookie; the outcome is one of `RepairOutcome`.

        Raises:
            MetadataError: the metadata store failed.
        """
        try:
            metadata = (await self._client.ledgers.read_latest(ledger_id)).value
        except NoSuchLedgerError:
            return RepairOutcome(ledger_id, bookie_id, "deleted")
        wrong, reason = await self._find_damage(metadata, bookie_id)
        if reason:
            return RepairOutcome(ledger_id, bookie_id, "refused", detail=reason)
        if not wrong:
            return RepairOutcome(ledger_id, bookie_id, "was-fine")
        copier = EntryCopier(self._client, metadata, bookie_id, pace=self._pace, needs_room=True)
        outcome, detail = await self._copy(copier, wrong)
        if outcome == "repaired":
            wrong, detail = await self._find_damage(metadata, bookie_id)
            left = sum(count_of(ranges) for _, ranges in wrong)
            if left:
                detail = f"{left} entries are still wrong after they were stored"
            if detail:
                outcome = "refused"
        return RepairOutcome(
            ledger_id, bookie_id, outcome, copier.entries, copier.packet_bytes, detail
        )

    async def _copy(self, copier: EntryCopier, wrong: list[Damage]) -> tuple[str, str]:
        try:
            for stripe, ranges in wrong:
                for run, first, last in runs_by_residue(stripe, ranges):
                    if reason := await copier.copy(first, last, run):
                        return "no-good-copy", reason
        except NoSuchLedgerError:
            return "deleted", ""
        except MetadataError:
            raise
        except BookieError as error:
            return "refused", str(error)
        return "repaired", ""

    async def _find_damage(
        self, metadata: LedgerMetadata, bookie_id: str
    ) -> tuple[list[Damage], str]:
        """Missing and damaged entries by stripe; and the reason if the bookie did not answer."""
        quorum, pool = quorum_of(metadata), self._client.pool
        wrong: list[Damage] = []
        for fragment, last in settled_fragments(metadata):
            if bookie_id not in fragment.bookies:
                continue
            stripe = quorum.stripe_of(fragment.bookies.index(bookie_id))
            check = CopyCheck(metadata, bookie_id, stripe, pool)
            for begin, end in windows(fragment.first_entry_id, last):
                found = await check.run(begin, end)
                if found.unread:
                    return [], found.reason
                if not found.is_clean:
                    wrong.append((stripe, merged([*found.missing, *found.corrupt])))
        return wrong, ""
