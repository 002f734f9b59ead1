"""Compactions in tests: all steps in one process."""

from __future__ import annotations

from bookie.api import BookKeeper
from bookie.log.compact.compaction import PublishedCompaction
from bookie.log.compact.plan import CompactionLimits

SMALL_LEDGERS = CompactionLimits(small_bytes=100_000, target_bytes=1_000_000)


async def compact(
    bk: BookKeeper, log: str, limits: CompactionLimits = SMALL_LEDGERS
) -> list[PublishedCompaction]:
    """The result of each partition that had ranges to join."""
    maintenance = bk.maintenance()
    plan = await maintenance.plan_compaction(log, limits)
    done = []
    for partition, groups in plan.by_partition().items():
        copies = [await maintenance.copy_group(one) for one in groups]
        done.append(await maintenance.publish_compaction(partition, copies))
    return done
