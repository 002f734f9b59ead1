"""The rule of retention: it finds the oldest ranges of a partition that may be deleted.

============================== ==================================================================
rule                           why
============================== ==================================================================
only whole ranges are deleted, a chain has no holes, and a ledger is deleted as a whole
from the first range on
an open range stays            its end is not known
at least `keep_bytes` are kept the policy sets this size
a range stays if it ends at    the last record of the range is not old enough; if the policy has a
`keep_from_ms` or later        size and a time, a range is deleted only if both allow it
a record counts as not older   a writer may give any timestamp, and clocks may be wrong; a young
than its ledger                ledger must stay
a record counts as at most a   a timestamp in microseconds by mistake would keep a log for ever,
day newer than the next ledger because times in a chain never decrease; the creator of the next
                               ledger must have compared its clock
a range stays if it ends after a protected cursor has not consumed the range
`keep_from_offset`
if the policy has neither size a policy without a limit keeps all records
nor time, all ranges stay
============================== ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bookie.ids import MAX_ID
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.catalog.log_policy import LogPolicy

AHEAD_MS_MAX = 24 * 3600 * 1000
"""The most ms after the next ledger's creation that retention accepts as a record's time."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits that decide which part of a partition is kept."""

    keep_bytes: int = 0
    """At least this number of payload bytes is kept."""
    keep_from_ms: int = MAX_ID
    """All records with this or a later timestamp are kept; in ms since 1970."""
    keep_from_offset: int = MAX_ID
    """All entries from this offset on are kept."""

    @property
    def has_time(self) -> bool:
        return self.keep_from_ms != MAX_ID

    def without_time(self) -> RetentionLimits:
        return replace(self, keep_from_ms=MAX_ID)


def limits_of(
    policy: LogPolicy, now_ms: int, cursors: Iterable[LogCursor]
) -> RetentionLimits | None:
    """Return the limits at the time `now_ms`; None if the policy keeps everything."""
    if not policy.retention_seconds and not policy.retention_bytes:
        return None
    from_ms = now_ms - 1000 * policy.retention_seconds if policy.retention_seconds else MAX_ID
    protected = [cursor.offset for cursor in cursors if cursor.is_protected]
    return RetentionLimits(
        keep_bytes=policy.retention_bytes or 0,
        keep_from_ms=from_ms,
        keep_from_offset=min(protected, default=MAX_ID),
    )


def plausible_end_ms(end_ms: int, created_ms: int | None, next_created_ms: int | None) -> int:
    """Return the end time of a range, limited by the creation times of two ledgers.

    `created_ms` is the creation time of the range's ledger. `next_created_ms` is the creation time
    of the ledger of a later range. An argument is None if the creation time is unknown. If
    `created_ms` is None, the result is `end_ms`.
    """
    if created_ms is not None:
        end_ms = max(end_ms, created_ms)
        if next_created_ms is not None:
            end_ms = min(end_ms, max(created_ms, next_created_ms) + AHEAD_MS_MAX)
    return end_ms


def expired_count(ranges: Sequence[LogRange], total_bytes: int, limits: RetentionLimits) -> int:
    """Return the number of ranges at the beginning of `ranges` that may be deleted.

    `total_bytes` is the size of `ranges` and of all ranges that follow them.
    """
    left = total_bytes
    for index, one in enumerate(ranges):
        end_offset, end_ms, size = one.end_offset, one.end_ms, one.size_bytes
        if end_offset is None or end_ms is None or size is None:
            return index
        left -= size
        is_kept = (
            left < limits.keep_bytes
            or end_ms >= limits.keep_from_ms
            or end_offset > limits.keep_from_offset
        )
        if is_kept:
            return index
    return len(ranges)
