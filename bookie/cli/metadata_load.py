"""The load of ``bookie metadata bench``: reads and writes of one's own keys, then none is left."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookie.cli.bench import percentile_of
from bookie.cli.progress import Advance, progress_bar

if TYPE_CHECKING:
    from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Mix:
    """What the callers do."""

    callers: int
    """Operations at a time; each caller has a key of its own."""
    reads_percent: float
    value_bytes: int
    seconds: float


@dataclass(slots=True)
class _Latencies:
    """Seconds of each operation."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)


async def load(store: MetadataStore, mix: Mix) -> dict[str, int | float]:
    """Run the mix below a key of its own and delete it, also when it is interrupted."""
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    value = bytes(mix.value_bytes)
    keys = [f"{root}/{number}" for number in range(mix.callers)]
    latencies = _Latencies()
    clock = asyncio.get_running_loop().time
    try:
        for key in keys:
            await store.put(key, value)
        began = clock()
        with progress_bar("loading", total=None, unit="operations") as advance:
            async with asyncio.TaskGroup() as tasks:
                for number, key in enumerate(keys):
                    # Not all callers write at the same time.
                    due = 100.0 * number / mix.callers
                    tasks.create_task(_repeat(store, key, mix, due, latencies, advance))
        took = clock() - began
    finally:
        await store.delete_recursive(root)
    count = len(latencies.reads) + len(latencies.writes)
    return {
        "operations": count,
        "seconds": round(took, 3),
        "operations_per_second": round(count / took),
        **_percentiles("read", latencies.reads),
        **_percentiles("write", latencies.writes),
    }


async def _repeat(
    store: MetadataStore,
    key: str,
    mix: Mix,
    due: float,
    latencies: _Latencies,
    advance: Advance,
) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + mix.seconds
    value = bytes(mix.value_bytes)
    while (began := clock()) < deadline:
        due += mix.reads_percent
        if due >= 100:
            due -= 100
            await store.get(key)
            latencies.reads.append(clock() - began)
        else:
            await store.put(key, value)
            latencies.writes.append(clock() - began)
        advance(1)


def _percentiles(what: str, latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        f"{what}_p{percentile}_ms": round(percentile_of(ordered, percentile) * 1e3, 3)
        for percentile in ((50, 99) if ordered else ())
    }
