"""The load of ``bookie metadata bench``: it reads and writes keys of its own and deletes them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie.cli.bench import percentile_of
from bookie.cli.progress import progress_bar

if TYPE_CHECKING:
    from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Mix:
    """The operations of the callers."""

    callers: int
    """Operations at a time; each caller has a key of its own."""
    reads_percent: float
    value_bytes: int
    seconds: float


async def load(store: MetadataStore, mix: Mix) -> dict[str, int | float]:
    """Run the mix below a key of its own and delete it, also when it is interrupted."""
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    value = bytes(mix.value_bytes)
    keys = [f"{root}/{number}" for number in range(mix.callers)]
    reads: list[float] = []
    writes: list[float] = []
    clock = asyncio.get_running_loop().time

    async def repeat(key: str, due: float) -> None:
        """Read each time when `due`, in percent, has grown by another hundred; else write."""
        while (now := clock()) < began + mix.seconds:
            due += mix.reads_percent
            if due >= 100:
                due -= 100
                await store.get(key)
                reads.append(clock() - now)
            else:
                await store.put(key, value)
                writes.append(clock() - now)
            advance(1)

    try:
        for key in keys:
            await store.put(key, value)
        began = clock()
        with progress_bar("loading", total=None, unit="operations") as advance:
            async with asyncio.TaskGroup() as tasks:
                for number, key in enumerate(keys):
                    # Not all callers write at the same time.
                    tasks.create_task(repeat(key, 100.0 * number / mix.callers))
        took = clock() - began
    finally:
        await store.delete_recursive(root)
    count = len(reads) + len(writes)
    return {
        "operations": count,
        "seconds": round(took, 3),
        "operations_per_second": round(count / took),
        **_percentiles("read", reads),
        **_percentiles("write", writes),
    }


def _percentiles(what: str, latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        f"{what}_p{percentile}_ms": round(percentile_of(ordered, percentile) * 1e3, 3)
        for percentile in ((50, 99) if ordered else ())
    }
