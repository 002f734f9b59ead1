"""Maintenance of a cluster, for jobs and tools: lists, audits, repairs and compactions.

Lists come only from metadata, without requests to bookies. `BookKeeper.maintenance` returns a
`Maintenance`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bookie.env import gather
from bookie.env.checked import checked
from bookie.errors import BadRequestError, NoSuchLogError
from bookie.ledger.copies.replica_audit import ReplicaAudit, ReplicaVerdict
from bookie.ledger.copies.replica_plan import AuditItem, plan_ledger, quorum_of
from bookie.ledger.copies.replica_repair import CopyDamage, RepairOutcome, ReplicaRepair
from bookie.ledger.metadata import LedgerMetadata, encode
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogDefinition, LogHead, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.compaction import (
    CompactionGroup,
    CompactionPlan,
    CopiedGroup,
    PublishedCompaction,
    copy_group,
    plan_compaction,
    publish_compaction,
)
from bookie.log.compact.plan import CompactionLimits
from bookie.log.log_client import LogClient
from bookie.log.tidy.unnamed_ledgers import read_chain
from bookie.metadata.versioned import Versioned

READS_AT_ONCE = 64
"""The number of metadata records that are read at the same time."""


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """One partition of a log, with the partition's record ``head`` in the metadata store."""

    name: str
    definition: LogDefinition
    number: int
    head: LogHead


@dataclass(frozen=True, slots=True)
class ListedCursor:
    """One cursor in one partition of a log, with the cursor's name and its record."""

    log: str
    partition: int
    name: str
    cursor: LogCursor


class Maintenance:
    """Lists, compacts, audits and repairs the ledgers and logs of a cluster."""

    def __init__(self, client: LogClient) -> None:
        self._client = client

    # -- listings ----------------------------------------------------------------------------------

    @checked
    async def ledgers(
        self, on_damaged: Callable[[int], object]
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """Yield the metadata of all ledgers, sorted by id.

        `on_damaged` is called with the id of each ledger whose metadata is damaged.
        """
        async for found in self._client.ledgers.ledgers.list_readable(on_damaged):
            yield found

    async def partitions(self) -> list[ListedPartition]:
        """Return the partitions of all logs, without logs that are being deleted."""
        logs = self._client.logs
        names = [name async for name in logs.list_logs()]
        found: list[ListedPartition] = []
        for start in range(0, len(names), READS_AT_ONCE):
            some = names[start : start + READS_AT_ONCE]
            for listed in await gather(self._of_log(name) for name in some):
                found += listed
        return found

    async def _of_log(self, name: LogName) -> list[ListedPartition]:
        logs = self._client.logs
        try:
            definition = (await logs.read(name)).value
            return [
                ListedPartition(
                    str(name),
                    definition,
                    number,
                    (await logs.read_head(LogPartition(name, number), definition.log_id)).value,
                )
                for number in range(definition.partitions)
            ]
        except NoSuchLogError:
            return []  # the log was deleted meanwhile

    async def cursors(self) -> list[ListedCursor]:
        """Return all cursors of all logs."""
        return [
            ListedCursor(one.name, one.number, name, cursor.value)
            for one in await self.partitions()
            for name, cursor in (
                await self._client.logs.cursors(LogPartition(LogName.parse(one.name), one.number))
            ).items()
        ]

    @checked
    async def history(self, log: str) -> list[tuple[int, LogRange]]:
        """Return all ranges of a log's entries in order, each with the number of its partition.

        The ranges of a partition come from its records in the metadata store: first the chunks,
        then the head.

        Raises:
            NoSuchLogError: there is no such log.
        """
        name = LogName.parse(log)
        definition = await self._client.definition(name)
        ranges: list[tuple[int, LogRange]] = []
        for number in range(definition.partitions):
            partition = LogPartition(name, number)
            found, chunks = await read_chain(self._client, partition, definition.log_id)
            ranges += [(number, one) for chunk in chunks for one in chunk.ranges]
            ranges += [(number, one) for one in found.value.ranges]
        return ranges

    @checked
    async def applications(self, log: str) -> Mapping[str, int]:
        """Return a mapping: application id → the number of its last batch in the log."""
        return await self._client.logs.applications(LogName.parse(log))

    # -- compaction --------------------------------------------------------------------------------

    @checked
    async def plan_compaction(self, log: str, limits: CompactionLimits) -> CompactionPlan:
        """Return the small ranges of a log that should be joined; see `bookie.log.compact`."""
        return await plan_compaction(self._client, LogName.parse(log), limits)

    @checked
    async def copy_group(self, group: CompactionGroup, password: bytes = b"") -> CopiedGroup:
        """Copy a group of ranges into a new ledger; several processes may copy different groups."""
        return await copy_group(self._client, group, password)

    @checked
    async def publish_compaction(
        self, partition: LogPartition, copies: Sequence[CopiedGroup]
    ) -> PublishedCompaction:
        """Replace the old ledgers of a partition by the new ledgers, and delete the old ledgers."""
        return await publish_compaction(self._client, partition, copies)

    # -- audits and repairs ------------------------------------------------------------------------

    @checked
    async def plan(
        self, item_bytes: int, wanted: Callable[[int], bool], on_damaged: Callable[[int], object]
    ) -> list[AuditItem]:
        """Return the work items for an audit of all ledgers for which ``wanted(id)`` is True.

        The audit of one item reads at most about `item_bytes`. `on_damaged` is called with the id
        of each wanted ledger whose metadata is damaged.
        """
        items: list[AuditItem] = []
        async for found in self.ledgers(lambda one: on_damaged(one) if wanted(one) else None):
            if wanted(found.value.ledger_id):
                quorum_of(found.value)  # raises if quorum sizes are absurd, before any audit begins
                items += plan_ledger(found.value, encode(found.value), item_bytes)
        return items

    @checked
    async def audit(self, items: Iterable[AuditItem]) -> list[ReplicaVerdict]:
        """Read and verify all copies that the items name, and return the verdicts."""
        return await ReplicaAudit(self._client.ledgers).run(items)

    async def require_repairs_enabled(self) -> None:
        """Check that no operator has disabled repairs in the cluster.

        Raises:
            BadRequestError: repairs are disabled.
        """
        if not await self._repair().is_enabled():
            raise BadRequestError("repairs are disabled in this cluster; enable them first")

    @checked
    async def repair(self, ledger_id: int, damages: Sequence[CopyDamage]) -> list[RepairOutcome]:
        """Copy missing or damaged entries of one ledger to their bookies; return the outcomes."""
        return await self._repair().run(ledger_id, damages)

    def _repair(self) -> ReplicaRepair:
        worker = f"{socket.gethostname()}:{os.getpid()}"
        return ReplicaRepair(self._client.ledgers, self._client.store, worker)
