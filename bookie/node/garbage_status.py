"""The status of garbage collection: of one round, and as a whole."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RoundOutcome(enum.StrEnum):
    """How a round ended."""

    DONE = "done"
    ABORTED = "aborted"
    """The metadata store gave no complete answer."""
    STOPPED = "stopped"
    """Ledgers are kept until an operator decides."""


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What one round found and did."""

    outcome: RoundOutcome
    local: int = 0
    missing: int = 0
    """Ledgers stored here that the listing did not have."""
    deleted: int = 0
    absent: int = 0
    """Ledgers that are missing without proof of a deletion, and are left."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GarbageStatus:
    """How reclaiming stands, since the start; for operators, flat."""

    garbage_suspended: bool
    garbage_stopped: str
    """Why deletions are stopped; empty if they are not."""
    garbage_outcome: str
    """How the last round ended; empty before the first."""
    garbage_missing_ledgers: int
    """Ledgers stored here that the last listing did not have."""
    garbage_waiting_ledgers: int
    """Those of them that wait for their grace, without proof of a deletion."""
    garbage_waiting_since_ms: int | None
    """Since when the first of them waits, if one does; milliseconds since 1970."""
    garbage_first_deletion_at_ms: int | None
    """When the first of them will be deleted, about, if one will."""
    garbage_deleted_ledgers: int
    compacting: bool
    compacted_files: int
    moved_bytes: int
    kept_files: int
    """Files that compaction leaves alone because they are damaged."""
