"""Audits copies: reads and verifies the entries that each bookie should store.

An audit fences no ledger and writes nothing. If copies seem damaged, the audit reads the metadata
again before it gives its verdict. So an ensemble change or a deletion during the audit does not
count as damage. An entry of an open ledger may reach one of its bookies late, so the audit asks for
a missing entry again after a pause.

============= ====================================================================================
verdict       meaning
============= ====================================================================================
ok            the bookie has every entry of the range with a correct digest
missing       the bookie does not have the entries, or is in limbo and may have lost them
misplaced     the bookie lacks the entries; another bookie has them, but should not store them
corrupt       the bookie has the entries, but their bytes are wrong or cannot be read
unreachable   the bookie did not answer
wrong-length  the last entry of the closed ledger proves another length than the metadata has
unreadable    the ledger's metadata is damaged
============= ====================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bookie.env import gather
from bookie.errors import BookieError, NoSuchLedgerError
from bookie.ids import NO_ENTRY
from bookie.ledger.copies.copy_check import CopyCheck, CopyFindings
from bookie.ledger.copies.replica_plan import (
    AuditItem,
    CopyRange,
    EntryRange,
    count_of,
    difference,
    duties,
    intersection,
    merged,
    quorum_of,
)
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata, decode
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.read.verification import list_stored
from bookie.metadata.versioned import Versioned

COPIES_AT_ONCE = 16
"""The largest number of copy ranges that an audit reads at the same time, from all bookies
together."""

SETTLE_SECONDS = 2.0
"""The time, in seconds, that a new entry of an open ledger may take to reach a bookie."""

DAMAGE = ("missing", "misplaced", "corrupt", "wrong-length", "unreadable")
"""Verdicts that mean damage; ``unreachable`` is not damage, because the copies may be good."""

IN_LIMBO = "in limbo: the bookie may have lost them"
"""The detail of a verdict about missing entries, if the bookie may have lost these entries."""

REPAIRABLE = ("missing", "misplaced", "corrupt")
"""Verdicts about damage that can be repaired from a good copy."""


@dataclass(frozen=True, slots=True)
class ReplicaVerdict:
    """One verdict about the copies that one bookie should have of a range of entries."""

    ledger_id: int
    fragment: int
    """The first entry id of the fragment."""
    bookie_id: str
    """The bookie that should store the entries; empty if the verdict is about the ledger."""
    first_entry_id: int
    last_entry_id: int
    """The range that was checked is `first_entry_id` … `last_entry_id`."""
    verdict: str
    entries: int
    """Number of entries that the verdict is about."""
    packet_bytes: int = 0
    """Number of verified bytes; 0 unless the verdict is ``ok``."""
    ranges: tuple[EntryRange, ...] = ()
    """The entries that the verdict is about; empty if the verdict is ``ok``."""
    found_on: tuple[str, ...] = ()
    """The bookies that store the misplaced entries of this verdict."""
    detail: str = ""


def unreadable(ledger_id: int) -> ReplicaVerdict:
    """Return the verdict about a ledger whose metadata is damaged."""
    return ReplicaVerdict(ledger_id, 0, "", 0, -1, "unreadable", 0, detail="damaged metadata")


class ReplicaAudit:
    """Audits copies of ledgers, with the connections of one client."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._room = asyncio.Semaphore(COPIES_AT_ONCE)
        self._silent: set[str] = set()
        """Bookies that did not answer within `PATIENCE_SECONDS`; requests to them are no longer
        repeated."""

    async def run(self, items: Iterable[AuditItem]) -> list[ReplicaVerdict]:
        """Audit all copies of the items, and return the verdicts in the order of the items.

        Raises:
            MetadataError: the metadata store failed.
        """
        audits = await gather(map(self._audit, items))
        return [verdict for audit in audits for verdict in audit]

    async def _audit(self, item: AuditItem) -> list[ReplicaVerdict]:
        planned = decode(item.ledger_id, item.metadata)
        try:
            last = await self._end_of(planned)
        except NoSuchLedgerError:
            return []
        except BookieError as error:
            return _unreachable(item, str(error))
        findings = await gather(self._check(planned, copy, last) for copy in item.copies)
        suspicious = [not one.is_clean or _contradicts(planned, one) for one in findings]
        current: LedgerMetadata | None = planned
        if any(suspicious):
            current = await self._current(planned)
        if current is None:
            return []  # the ledger was deleted
        verdicts = []
        if not item.copies:
            verdicts.append(_judge_empty(planned))
        for copy, found, is_suspicious in zip(item.copies, findings, suspicious, strict=True):
            ended = replace(copy, last_entry_id=_end(copy, last))
            settled = found
            if is_suspicious:
                settled = await self._settle(planned, current, ended, found)
            verdicts += await self._judge(current, ended, settled)
        return verdicts

    async def _end_of(self, metadata: LedgerMetadata) -> int:
        """Return the last entry to check: a closed ledger's last entry, or else the proven LAC."""
        if metadata.is_closed:
            return metadata.last_entry_id
        reader = ReaderHandle(Versioned(metadata, 0), self._client.pool, self._client.ledgers)
        return await reader.refresh()

    async def _current(self, planned: LedgerMetadata) -> LedgerMetadata | None:
        ledgers = self._client.ledgers
        try:
            return (await ledgers.read_latest(planned.ledger_id, planned.c_token)).value
        except NoSuchLedgerError:
            return None

    async def _check(self, metadata: LedgerMetadata, copy: CopyRange, last: int) -> CopyFindings:
        async with self._room:
            stripe = quorum_of(metadata).stripe_of(copy.slot)
            check = CopyCheck(
                metadata,
                copy.bookie_id,
                stripe,
                self._client.pool,
                is_patient=copy.bookie_id not in self._silent,
            )
            found = await check.run(copy.first_entry_id, _end(copy, last))
            if found.unread:
                self._silent.add(copy.bookie_id)
            return found

    async def _settle(
        self,
        planned: LedgerMetadata,
        current: LedgerMetadata,
        copy: CopyRange,
        found: CopyFindings,
    ) -> CopyFindings:
        """Drop findings about entries that arrived late, or no longer belong to the bookie."""
        assert copy.last_entry_id is not None
        if found.missing and not planned.is_closed:
            await asyncio.sleep(SETTLE_SECONDS)
            found = await self._check(planned, copy, copy.last_entry_id)
        whole = [(copy.first_entry_id, copy.last_entry_id)]
        owed = duties(current, copy.bookie_id, whole)
        return replace(
            found,
            missing=intersection(found.missing, owed),
            corrupt=intersection(found.corrupt, owed),
            unread=intersection(found.unread, owed),
        )

    async def _judge(
        self, metadata: LedgerMetadata, copy: CopyRange, found: CopyFindings
    ) -> list[ReplicaVerdict]:
        base = ReplicaVerdict(
            metadata.ledger_id,
            copy.fragment,
            copy.bookie_id,
            copy.first_entry_id,
            -1 if copy.last_entry_id is None else copy.last_entry_id,
            "ok",
            found.entries,
            found.packet_bytes,
        )
        verdicts = [base] if found.entries or found.is_clean else []
        elsewhere = await self._elsewhere(metadata, found.missing) if found.missing else {}
        misplaced = merged(one for ranges in elsewhere.values() for one in ranges)
        holders_of_misplaced = tuple(sorted(elsewhere))
        doubt = IN_LIMBO if found.in_limbo else ""
        for verdict, ranges, holders, detail in (
            ("missing", difference(found.missing, misplaced), (), doubt),
            ("misplaced", intersection(found.missing, misplaced), holders_of_misplaced, doubt),
            ("corrupt", found.corrupt, (), found.reason),
            ("unreachable", found.unread, (), found.reason),
        ):
            if ranges:
                verdicts.append(
                    replace(
                        base,
                        verdict=verdict,
                        entries=count_of(ranges),
                        packet_bytes=0,
                        ranges=tuple(ranges),
                        found_on=holders,
                        detail=detail,
                    )
                )
        if _contradicts(metadata, found):
            verdicts.append(_wrong_length(metadata, copy, copy.bookie_id, found.length))
        return verdicts

    async def _elsewhere(
        self, metadata: LedgerMetadata, missing: Sequence[EntryRange]
    ) -> dict[str, list[EntryRange]]:
        """Find `missing` entries on bookies that should not store them; return ranges by bookie."""
        holders: dict[str, list[EntryRange]] = {}
        first, last = missing[0][0], missing[-1][1]
        for bookie_id in self._client.directory.all():
            try:
                stored = await list_stored(self._client.pool, bookie_id, metadata, first, last)
            except BookieError:
                continue  # this bookie cannot help; other verdicts report its own copies
            extra = difference(intersection(missing, stored), duties(metadata, bookie_id, missing))
            if extra:
                holders[bookie_id] = extra
        return holders


def _end(copy: CopyRange, last: int) -> int:
    return last if copy.last_entry_id is None else min(copy.last_entry_id, last)


def _contradicts(metadata: LedgerMetadata, found: CopyFindings) -> bool:
    """True if the ledger's last entry proves that the length in the metadata is wrong."""
    return (
        metadata.is_closed
        and metadata.last_entry_id != NO_ENTRY
        and found.last_entry_id == metadata.last_entry_id
        and found.length != metadata.length
    )


def _wrong_length(
    metadata: LedgerMetadata, copy: CopyRange, bookie_id: str, length: int
) -> ReplicaVerdict:
    last = metadata.last_entry_id
    return ReplicaVerdict(
        metadata.ledger_id,
        copy.fragment,
        bookie_id,
        copy.first_entry_id,
        last,
        "wrong-length",
        1 if last >= 0 else 0,
        ranges=((last, last),) if last >= 0 else (),
        detail=f"the metadata says {metadata.length} bytes, the last entry {length}",
    )


def _judge_empty(metadata: LedgerMetadata) -> ReplicaVerdict:
    if metadata.length:
        return _wrong_length(metadata, CopyRange(0, 0, "", 0, NO_ENTRY), "", 0)
    return ReplicaVerdict(metadata.ledger_id, 0, "", 0, NO_ENTRY, "ok", 0)


def _unreachable(item: AuditItem, reason: str) -> list[ReplicaVerdict]:
    """Return a verdict for each copy of an open ledger whose last entry could not be read."""
    return [
        ReplicaVerdict(
            item.ledger_id,
            copy.fragment,
            copy.bookie_id,
            copy.first_entry_id,
            -1 if copy.last_entry_id is None else copy.last_entry_id,
            "unreachable",
            0,
            detail=reason,
        )
        for copy in item.copies
    ]
