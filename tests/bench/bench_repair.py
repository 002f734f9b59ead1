"""How long it takes until all copies of a lost bookie are back, and what appends feel meanwhile.

Four bookies as processes on an embedded metadata store. Ledgers of 1 000 entries of 1 KB on three
bookies each. One bookie is killed. The time runs from the moment in which it counts as lost to the
moment in which no ledger is marked and none names it. A writer appends one entry after the other
before and meanwhile.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.fault.daemon_cluster import home_of
from tests.fault.daemon_process import serving

BOOKIES = ("b1", "b2", "b3", "b4")
LEDGERS, ENTRIES, ENTRY = 1000, 1000, b"x" * 1000
LEDGERS_AT_ONCE = 16
DELAY_SECONDS = 5.0
PROBE_SECONDS = 20.0


async def _write(client: BookKeeper, room: asyncio.Semaphore) -> int:
    async with room:
        writer = await client.create_ledger(ack_quorum_size=2)
        await writer.append_many([ENTRY] * ENTRIES)
        return (await writer.close()).ledger_id


async def _probe(writer: WriterHandle, latencies: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        await writer.append(ENTRY)
        latencies.append(clock() - began)
        await asyncio.sleep(0.01)


async def _probed(writer: WriterHandle, work: float | asyncio.Task[None]) -> list[float]:
    latencies: list[float] = []
    probe = asyncio.get_running_loop().create_task(_probe(writer, latencies))
    if isinstance(work, float):
        await asyncio.sleep(work)
    else:
        await work
    probe.cancel()
    await asyncio.wait([probe])
    return latencies


async def _until_whole(client: BookKeeper, store: MetadataStore, ledgers: list[int]) -> None:
    """Until no ledger names the lost bookie and none is marked."""
    marks, left = UnderreplicationManager(store), set(ledgers)
    while left or await marks.count():
        for ledger_id in sorted(left)[:200]:
            found = await client.ledger_metadata(ledger_id)
            if "b1" not in found.last_fragment.bookies:
                left.discard(ledger_id)
        await asyncio.sleep(0.2)


def _told(latencies: list[float]) -> str:
    ordered = sorted(latencies)
    p99 = ordered[len(ordered) * 99 // 100 - 1]
    return f"p50 {1e3 * statistics.median(ordered):.2f} ms, p99 {1e3 * p99:.2f} ms"


async def _measure(directory: Path) -> None:
    uri = f"local://{directory}/metadata"
    clock = asyncio.get_running_loop().time
    async with open_store(uri) as store, AsyncExitStack() as stack:
        await initialize_cluster(store)
        daemons = {}
        for name in BOOKIES:
            home = home_of(uri, directory, name)
            home.sections["repair"] = {"lost_bookie_delay_seconds": DELAY_SECONDS}
            daemons[name] = await stack.enter_async_context(serving(home.write()))
            await daemons[name].until("registered")
        client = await stack.enter_async_context(connect(uri))
        room = asyncio.Semaphore(LEDGERS_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            writes = [tasks.create_task(_write(client, room)) for _ in range(LEDGERS)]
        ledgers = [one.result() for one in writes]
        probe = await client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        while "b1" in probe.metadata.last_fragment.bookies:
            await probe.close()
            probe = await client.create_ledger(
                ensemble_size=2, write_quorum_size=2, ack_quorum_size=2
            )
        print(f"appends alone: {_told(await _probed(probe, PROBE_SECONDS))}")
        named = [
            one
            for one in ledgers
            if "b1" in (await client.ledger_metadata(one)).last_fragment.bookies
        ]
        daemons["b1"].process.kill()
        lost = Departures(store, keys.LOST_BOOKIES)
        while not await lost.names():  # noqa: ASYNC110  (a record tells nobody)
            await asyncio.sleep(0.05)
        began = clock()
        back = asyncio.get_running_loop().create_task(_until_whole(client, store, ledgers))
        meanwhile = _told(await _probed(probe, back))
        seconds = clock() - began
        megabytes = len(named) * ENTRIES * len(ENTRY) / 1e6
        print(f"appends meanwhile: {meanwhile}")
        print(
            f"{len(named)} ledgers, {megabytes:.0f} MB back in {seconds:.1f} s: "
            f"{megabytes / seconds:.0f} MB/s"
        )


def main() -> None:
    """Print the latency of appends without and with repair, and the time of the repair."""
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_measure(Path(name)))


if __name__ == "__main__":
    main()
