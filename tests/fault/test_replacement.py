"""Writers whose bookies restart, die or hang, in clusters of real processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie.api import WriterHandle, connect
from tests.fault.lossy_cluster import create, lossy_cluster, payloads_of
from tests.fault.recorded_ledgers import RecordedLedgers, RecordedWriter
from tests.unit.ledger.real_cluster import until

LEDGERS = 1000
NAMES = ("b1", "b2", "b3", "b4", "b5")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [3, 4, 5])
async def test_a_rolling_restart_costs_no_change(count: int, tmp_path: Path) -> None:
    """Each bookie stops and starts under load: no append fails, and the ensemble stays."""
    async with (
        lossy_cluster(f"local://{tmp_path}/metadata", tmp_path, NAMES[:count]) as cluster,
        # A restart takes a second or two, and more on a busy machine.
        connect(cluster.uri, replace_after_seconds=60, add_timeout_seconds=60) as client,
        asyncio.TaskGroup() as tasks,
    ):
        history = RecordedLedgers()
        loads = [
            RecordedAppending(history.writer("client", await create(client))) for _ in range(3)
        ]
        running = [tasks.create_task(load.run()) for load in loads]
        for name in cluster.names:
            await cluster.stop(name)
            await cluster.start(name)
            for load in loads:
                await load.goes_on()
                await until_counted_on(load.recorded.writer)
        for task in running:
            task.cancel()
        for load in loads:
            assert len(load.recorded.writer.metadata.fragments) == 1
            await load.recorded.close()
            await history.look(client, load.recorded.ledger_id)
        history.check()
        assert history.counts()["AppendEvent info"] <= len(loads), "only what was cancelled"


@dataclass(slots=True)
class RecordedAppending:
    """Appends one after the other, which are recorded."""

    recorded: RecordedWriter
    acknowledged: int = 0

    async def run(self) -> None:
        """Append without an end; any error ends the test."""
        while True:
            await self.recorded.append([b"%d" % self.acknowledged])
            self.acknowledged += 1

    async def goes_on(self) -> None:
        """Wait until more entries were acknowledged."""
        before = self.acknowledged
        await until(lambda: self.acknowledged >= before + 10)


async def until_counted_on(writer: WriterHandle) -> None:
    """Wait until the writer misses no bookie."""
    await until(lambda: not writer._machine.slots.failing)


def count_calls(store: Any, counts: Counter[str], *names: str) -> None:
    """Count the calls of these methods of one store."""

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return call(*args, **kwargs)

        return counted

    for name in names:
        setattr(store, name, counting(name, getattr(store, name)))


@pytest.mark.timeout(1800)
async def test_a_thousand_ledgers_lose_a_bookie_at_once(tmp_path: Path) -> None:
    """All of them replace it, with few operations on the metadata; nothing is lost."""
    async with (
        lossy_cluster(f"local://{tmp_path}/metadata", tmp_path, NAMES) as cluster,
        connect(cluster.uri) as client,
    ):
        writers: list[WriterHandle] = []
        affected: list[WriterHandle] = []
        while len(affected) < LEDGERS:
            writers.append(writer := await create(client))
            await writer.append(b"before")
            if "b1" in writer.metadata.last_fragment.bookies:
                affected.append(writer)
        counts: Counter[str] = Counter()
        store = client._connected.ledgers._store
        count_calls(store, counts, "get", "transaction", "sync")
        await cluster.kill("b1")
        killed_at = asyncio.get_running_loop().time()
        await until_replaced(affected, "b1")
        seconds = asyncio.get_running_loop().time() - killed_at
        print(f"{len(affected)} ledgers in {seconds:.1f} s, {dict(counts)}")
        assert counts.total() <= 3 * len(affected), "no storm on the metadata store"
        for writer in writers:
            await writer.append(b"after")
        assert all(len(one.metadata.fragments) == 2 for one in affected)
        for writer in affected[:10]:
            assert (await writer.close()).last_entry_id == 1
            assert await payloads_of(client, writer.ledger_id) == [b"before", b"after"]


async def until_replaced(writers: list[WriterHandle], name: str) -> None:
    """Wait until the bookie stands in no ledger's slot."""
    await until(lambda: all(name not in one.metadata.last_fragment.bookies for one in writers))


@pytest.mark.timeout(1800)
async def test_a_bookie_that_hangs_is_replaced_in_all_ledgers(tmp_path: Path) -> None:
    """One ledger misses its deadline; the idle ones hear of it, and do not wait for theirs."""
    async with lossy_cluster(f"local://{tmp_path}/metadata", tmp_path, NAMES) as cluster:
        client = await cluster.client()
        writers = [await create(client) for _ in range(30)]
        for writer in writers:
            await writer.append(b"before")
        busy = next(one for one in writers if "b1" in one.metadata.last_fragment.bookies)
        await cluster.hang("b1")
        await busy.append(b"after")
        await until_replaced(writers, "b1")
        for writer in writers:
            await writer.close()
        cluster.resume("b1")
