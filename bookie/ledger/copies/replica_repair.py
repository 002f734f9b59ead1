"""Repair copies: give bookies back the entries that they should store and lack.

Recovery adds copy packets as they are, digests included, from a copy that was just verified. A
bookie keeps the newest copy of an entry, so a corrupt entry is replaced. A repair looks for the
damage again before it copies anything, and leaves alone what another repair has mended.

A ledger is repaired under the lock that repair workers take (`UnderreplicationManager`). Two
repairs at once would be harmless: both would write the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.entry.batch import EntryBatch
from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    NoSuchLedgerError,
    error_for_status,
)
from bookie.ids import BATCH_SIZE_BYTES_MAX, Status
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_plan import EntryRange, count_of, duties, merged, quorum_of
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Incarnations
from bookie.ledger.quorum import EVERY_ID
from bookie.ledger.read.verification import read_command, verify_read
from bookie.ledger.striping import is_run
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX
from bookie.ledger.write.requests import RequestEncoder
from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class CopyDamage:
    """Entries that one bookie should get back."""

    bookie_id: str
    ranges: tuple[EntryRange, ...]
    found_on: tuple[str, ...] = ()
    """Bookies that have the entries although they should not."""


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """Outcome of the repair of one bookie's copy.

    The outcome is ``repaired``, ``was-fine`` (nothing was left to do), ``no-good-copy``,
    ``refused`` (the bookie did not take the entries, or could not be reached), ``locked`` (another
    worker repairs the ledger), or ``deleted`` (the ledger is gone).
    """

    ledger_id: int
    bookie_id: str
    outcome: str
    entries: int = 0
    """Number of entries that were copied."""
    packet_bytes: int = 0
    detail: str = ""

    @property
    def is_whole(self) -> bool:
        """True if nothing is left of the damage that was to be repaired."""
        return self.outcome in ("repaired", "was-fine", "deleted")


class ReplicaRepair:
    """Repairs ledgers one at a time with the connections of one client."""

    def __init__(self, client: LedgerClient, store: MetadataStore, worker: str) -> None:
        self._client = client
        self._marks = UnderreplicationManager(store, worker)

    async def is_enabled(self) -> bool:
        return await self._marks.is_enabled()

    async def run(self, ledger_id: int, damages: Sequence[CopyDamage]) -> list[RepairOutcome]:
        """Repair one ledger under its lock.

        Raises:
            MetadataError: the metadata store failed.
        """
        if await self._current(ledger_id) is None:
            return _all(ledger_id, damages, "deleted")
        before = await self._marks.find(ledger_id)
        await self._marks.mark(ledger_id, [damage.bookie_id for damage in damages])
        if not await self._marks.acquire(ledger_id):
            return _all(ledger_id, damages, "locked")
        try:
            outcomes = [await self._repair(ledger_id, damage) for damage in damages]
            repaired = {one.bookie_id for one in outcomes if one.is_whole}
            marked = {damage.bookie_id for damage in damages}
            marked |= set() if before is None else set(before.replicas)
            if marked <= repaired:
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
        copying = _Copying(self._client, metadata, damage)
        wrong, reason = await copying.find_damage()
        if reason:
            return RepairOutcome(ledger_id, bookie_id, "refused", detail=reason)
        if not wrong:
            return RepairOutcome(ledger_id, bookie_id, "was-fine")
        try:
            for first, last in wrong:
                if reason := await copying.restore(first, last):
                    return copying.outcome("no-good-copy", reason)
        except NoSuchLedgerError:
            return copying.outcome("deleted")
        except BookieError as error:
            return copying.outcome("refused", str(error))
        left, reason = await copying.find_damage()
        if left or reason:
            detail = reason or f"{count_of(left)} entries are still wrong after they were stored"
            return copying.outcome("refused", detail)
        return copying.outcome("repaired")


class _Copying:
    """Copies entries of one ledger to one bookie."""

    def __init__(self, client: LedgerClient, metadata: LedgerMetadata, damage: CopyDamage) -> None:
        self._client = client
        self._metadata = metadata
        self._damage = damage
        self._pool = client.pool
        self._encoder = RequestEncoder(
            metadata, quorum_of(metadata), client.pool.next_request_id
        )  # fmt: skip
        self._incarnations = Incarnations(client.ensembles.cookies)
        self._entries = self._packet_bytes = 0

    def outcome(self, outcome: str, detail: str = "") -> RepairOutcome:
        return RepairOutcome(
            self._metadata.ledger_id,
            self._damage.bookie_id,
            outcome,
            self._entries,
            self._packet_bytes,
            detail,
        )

    async def find_damage(self) -> tuple[list[EntryRange], str]:
        """Find damaged entries that the bookie should store; also why it is silent, or ""."""
        wrong: list[EntryRange] = []
        owed = duties(self._metadata, self._damage.bookie_id, self._damage.ranges)
        for first, last in owed:
            check = CopyCheck(self._metadata, self._damage.bookie_id, EVERY_ID, self._pool)
            found = await check.run(first, last)
            if found.unread:
                return [], found.reason
            wrong += [*found.missing, *found.corrupt]
        return merged(wrong), ""

    async def restore(self, first: int, last: int) -> str:
        """Copy consecutive entries; return the reason if an entry lacks a good copy, else "".

        Raises:
            NoSuchLedgerError: the ledger was deleted meanwhile.
            BookieError: the bookie does not take them.
        """
        position = first
        while position <= last:
            batch, reasons = await self._good_copy(position, last)
            if batch is None:
                return f"no good copy of entry {position} ({'; '.join(reasons)})"
            # Not after a deletion: nobody would want the entries.
            metadata = self._metadata
            await self._client.ledgers.read_latest(metadata.ledger_id, metadata.c_token)
            await self._store(batch)
            self._entries += batch.count
            self._packet_bytes += batch.payload_bytes
            position = batch.last_entry_id + 1
        return ""

    async def _good_copy(self, first: int, last: int) -> tuple[EntryBatch | None, list[str]]:
        """Read verified packets from `first` on, as many as one bookie gives at once."""
        reasons = []
        for bookie_id in self._sources(first):
            batch, reason = await self._read(bookie_id, first, last)
            if batch is not None:
                return batch, []
            reasons.append(f"{bookie_id}: {reason}")
        return None, reasons

    def _sources(self, entry_id: int) -> list[str]:
        fragment = self._metadata.fragment_of(entry_id)
        slots = quorum_of(self._metadata).write_set(entry_id)
        names = [fragment.bookies[slot] for slot in slots]
        others = [*names, *self._damage.found_on]
        return [name for name in dict.fromkeys(others) if name != self._damage.bookie_id]

    async def _read(self, bookie_id: str, first: int, last: int) -> tuple[EntryBatch | None, str]:
        command = read_command(
            self._metadata,
            first,
            last,
            max_entries=BATCH_ENTRIES_MAX,
            max_bytes=BATCH_SIZE_BYTES_MAX,
        )
        try:
            channel = self._pool.connection(bookie_id).channel()
            reply = await channel.read(command, timeout=self._pool.settings.read_timeout_seconds)
        except BookieError as error:
            return None, str(error)
        told = verify_read(reply, self._encoder.digester)
        if told.batch is None:
            problem = told.stopped_by if told.status is Status.OK else told.status
            return None, told.message or problem.name.lower().replace("_", " ")
        if not is_run(told.batch, EVERY_ID, first):
            return None, "it left out entries"
        return told.batch, ""

    async def _store(self, batch: EntryBatch) -> None:
        """Store packets; raise BookieUnreachableError, or the error of the bookie's status."""
        bookie_id = self._damage.bookie_id
        request_id, data = self._encoder.entries(batch, recovery=True)
        lane = self._pool.connection(bookie_id).recovery(await self._incarnations.of(bookie_id))
        seconds = self._pool.settings.add_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                status, message = await lane.request(request_id, data)
        except TimeoutError as error:
            raise BookieUnreachableError(
                f"bookie {bookie_id} did not answer within {seconds:g} s"
            ) from error
        if status is not Status.OK:
            raise error_for_status(status, message)


def _all(ledger_id: int, damages: Sequence[CopyDamage], outcome: str) -> list[RepairOutcome]:
    return [RepairOutcome(ledger_id, damage.bookie_id, outcome) for damage in damages]
