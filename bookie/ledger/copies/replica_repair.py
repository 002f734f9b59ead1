"""Repairs copies: restores entries that a bookie should store, but that are missing or damaged.

A repair reads and verifies a good copy, and stores its unchanged packets, with digests, by recovery
adds. If a bookie gets an entry twice, the newer copy replaces the older copy, even a corrupt one.
Before a repair copies anything, it checks the damage again, and skips entries that are intact now.

A repair holds the lock of the ledger (`UnderreplicationManager`). Two concurrent repairs would be
harmless, because both would write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie.errors import BookieError, FormatError, NoSuchLedgerError
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_plan import EntryRange, count_of, duties, merged
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import EVERY_ID
from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class CopyDamage:
    """Missing or damaged entries of one bookie."""

    bookie_id: str
    ranges: tuple[EntryRange, ...]
    found_on: tuple[str, ...] = ()
    """Bookies that have the entries, but should not store these entries."""


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """Outcome of the repair of one bookie's copy.

    The outcome is ``repaired``, ``was-fine`` (nothing was left to do), ``no-good-copy``,
    ``refused`` (the bookie did not accept the entries, or could not be reached), ``locked``
    (another worker repairs the ledger), ``deleted`` (the ledger was deleted), ``open`` (only the
    ledger's writer, or a recovery, may replace the bookie), or ``marked-again`` (the whole ledger
    was repaired, but its mark changed at the end of the repair).
    """

    ledger_id: int
    bookie_id: str
    outcome: str
    entries: int = 0
    packet_bytes: int = 0
    detail: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the damage was repaired, or if there was no damage any more."""
        return self.outcome in ("repaired", "was-fine", "deleted")


class ReplicaRepair:
    """Repairs ledgers one at a time with the connections of one client."""

    def __init__(self, client: LedgerClient, store: MetadataStore, worker: str) -> None:
        self._client = client
        self._marks = UnderreplicationManager(store, worker)
        self._failures = RepairFailures(store)

    async def is_enabled(self) -> bool:
        return await self._marks.is_enabled()

    async def run(self, ledger_id: int, damages: Sequence[CopyDamage]) -> list[RepairOutcome]:
        """Repair one ledger under its lock.

        Raises:
            MetadataError: the metadata store failed.
        """
        if await self._current(ledger_id) is None:
            return _all(ledger_id, damages, "deleted")
        await self._marks.mark(ledger_id, [damage.bookie_id for damage in damages])
        if not await self._marks.acquire(ledger_id):
            return _all(ledger_id, damages, "locked")
        try:
            # Read the mark under the lock, because other processes may have added bookies before.
            # If the mark changes after this read, `mark_replicated` keeps the mark.
            mark = await self._marks.find(ledger_id)
            marked = {damage.bookie_id for damage in damages}
            marked |= set() if mark is None else set(mark.replicas)
            outcomes = [await self._repair(ledger_id, damage) for damage in damages]
            repaired = {one.bookie_id for one in outcomes if one.is_whole}
            if marked <= repaired:
                await self._failures.remove(ledger_id)
                await self._marks.mark_replicated(ledger_id)
        finally:
            await self._marks.release(ledger_id)
        return outcomes

    async def _current(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._client.ledgers.read_latest(ledger_id)).value
        except NoSuchLedgerError:
            return None

    async def _repair(self, ledger_id: int, damage: CopyDamage) -> RepairOutcome:
        bookie_id = damage.bookie_id
        metadata = await self._current(ledger_id)
        if metadata is None:
            return RepairOutcome(ledger_id, bookie_id, "deleted")
        copier = EntryCopier(self._client, metadata, bookie_id, found_on=damage.found_on)
        wrong, reason = await self._find_damage(metadata, damage, copier)
        if reason:
            return RepairOutcome(ledger_id, bookie_id, "refused", detail=reason)
        if not wrong:
            return RepairOutcome(ledger_id, bookie_id, "was-fine")

        def ended(outcome: str, detail: str = "") -> RepairOutcome:
            copied = copier.entries, copier.packet_bytes
            return RepairOutcome(ledger_id, bookie_id, outcome, *copied, detail)

        try:
            for first, last in wrong:
                if reason := await copier.copy(first, last):
                    return ended("no-good-copy", reason)
        except NoSuchLedgerError:
            return ended("deleted")
        except BookieError as error:
            return ended("refused", str(error))
        left, reason = await self._find_damage(metadata, damage, copier)
        if left or reason:
            detail = reason or f"{count_of(left)} entries are still wrong after they were stored"
            return ended("refused", detail)
        return ended("repaired")

    async def _find_damage(
        self, metadata: LedgerMetadata, damage: CopyDamage, copier: EntryCopier
    ) -> tuple[list[EntryRange], str]:
        """Return the damaged entries that the bookie must store now, or why the check failed."""
        try:
            # Name the incarnation, because an older process of the bookie may still answer.
            incarnation = await copier.incarnation()
        except FormatError as error:
            return [], str(error)
        wrong: list[EntryRange] = []
        owed = duties(metadata, damage.bookie_id, damage.ranges)
        for first, last in owed:
            pool = self._client.pool
            check = CopyCheck(metadata, damage.bookie_id, EVERY_ID, pool, incarnation=incarnation)
            found = await check.run(first, last)
            if found.unread:
                return [], found.reason
            wrong += [*found.missing, *found.corrupt]
        return merged(wrong), ""


def _all(ledger_id: int, damages: Sequence[CopyDamage], outcome: str) -> list[RepairOutcome]:
    return [RepairOutcome(ledger_id, damage.bookie_id, outcome) for damage in damages]
