"""A compaction in a process of its own, which stops where a test wants to kill it.

``python -m tests.unit.log.compact.compacting_process URI LOG STEP`` prints STEP when it is there,
and then stands still. Steps: ``copied``, ``published`` (nothing deleted yet), ``deleted`` (chunks
are left).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from bookie.api import connect
from bookie.log.catalog.logs import LogManager, LogPartition
from bookie.log.compact import compaction
from tests.unit.log.tidy.compacting import SMALL_LEDGERS


async def stand_still(step: str) -> None:
    """Say where it is, for ever."""
    print(step, flush=True)
    await asyncio.Event().wait()


async def compact(uri: str, log: str, stop_at: str) -> None:
    """Compact all partitions, up to the step."""

    async def published(*_: Any) -> None:
        await stand_still("published")

    async def deleted(*_: Any) -> None:
        await stand_still("deleted")

    patch = pytest.MonkeyPatch()
    if stop_at == "published":
        patch.setattr(compaction, "delete_ended", published)
    if stop_at == "deleted":
        patch.setattr(LogManager, "delete_chunks", deleted)
    async with connect(uri) as bk:
        maintenance = bk.maintenance()
        plan = await maintenance.plan_compaction(log, SMALL_LEDGERS)
        copies = [await maintenance.copy_group(one) for one in plan.groups]
        if stop_at == "copied":
            await stand_still("copied")
        partition = LogPartition.parse(log)
        await maintenance.publish_compaction(partition, copies)


if __name__ == "__main__":
    asyncio.run(compact(*sys.argv[1:4]))
