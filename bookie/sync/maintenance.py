"""Listings, compactions, audits and repairs without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bookie.api.maintenance import ListedCursor, ListedPartition, Maintenance
from bookie.ledger.copies.replica_audit import ReplicaVerdict
from bookie.ledger.copies.replica_plan import AuditItem
from bookie.ledger.copies.replica_repair import CopyDamage, RepairOutcome
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.compact.compaction import (
    CompactionGroup,
    CompactionPlan,
    CopiedGroup,
    PublishedCompaction,
)
from bookie.log.compact.plan import CompactionLimits
from bookie.metadata.versioned import Versioned
from bookie.sync.handles import SyncHandle
from bookie.sync.iterator import SyncIterator
from bookie.sync.loop_thread import LoopThread


class SyncMaintenance(SyncHandle):
    """`bookie.api.maintenance.Maintenance` without an event loop."""

    def __init__(self, home: LoopThread, maintenance: Maintenance) -> None:
        super().__init__(home)
        self._maintenance = maintenance

    def ledgers(
        self, on_damaged: Callable[[int], object]
    ) -> SyncIterator[Versioned[LedgerMetadata]]:
        """All ledgers by id. `on_damaged` is called in the thread of the loop."""
        return self._iterate(self._maintenance.ledgers(on_damaged))

    def partitions(self) -> list[ListedPartition]:
        """All partitions of all logs."""
        return self._run(self._maintenance.partitions())

    def cursors(self) -> list[ListedCursor]:
        """All cursors of all logs."""
        return self._run(self._maintenance.cursors())

    def history(self, log: str) -> list[tuple[int, LogRange]]:
        """All ranges of a log that still exist."""
        return self._run(self._maintenance.history(log))

    def applications(self, log: str) -> Mapping[str, int]:
        """The last batch of each application that published to a log."""
        return self._run(self._maintenance.applications(log))

    def plan_compaction(self, log: str, limits: CompactionLimits) -> CompactionPlan:
        """What is worth joining in a log."""
        return self._run(self._maintenance.plan_compaction(log, limits))

    def copy_group(self, group: CompactionGroup, password: bytes = b"") -> CopiedGroup:
        """Copy ranges into a new ledger."""
        return self._run(self._maintenance.copy_group(group, password))

    def publish_compaction(
        self, partition: LogPartition, copies: Sequence[CopiedGroup]
    ) -> PublishedCompaction:
        """Name the new ledgers of a partition in place of the old ones, and delete those."""
        return self._run(self._maintenance.publish_compaction(partition, copies))

    def plan(
        self, item_bytes: int, wanted: Callable[[int], bool], on_damaged: Callable[[int], object]
    ) -> list[AuditItem]:
        """The work of an audit; see `Maintenance.plan`."""
        return self._run(self._maintenance.plan(item_bytes, wanted, on_damaged))

    def audit(self, items: Iterable[AuditItem]) -> list[ReplicaVerdict]:
        """Read and verify all copies that the items name."""
        return self._run(self._maintenance.audit(items))

    def require_repairs_enabled(self) -> None:
        """Refuse if an operator has disabled repairs."""
        self._run(self._maintenance.require_repairs_enabled())

    def repair(self, ledger_id: int, damages: Sequence[CopyDamage]) -> list[RepairOutcome]:
        """Give bookies back what they lack of one ledger."""
        return self._run(self._maintenance.repair(ledger_id, damages))
