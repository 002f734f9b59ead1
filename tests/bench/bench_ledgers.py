"""A hundred thousand ledgers in each metadata store: created, listed completely, watched, deleted.

    python -m tests.bench.bench_ledgers [--ledgers 100000] [--only STORE ...]

One process creates, a second session in it watches; servers are single and on this machine. Times
are only printed. It asserts that the listing and the watch name every ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import read_layout
from bookie.daemon.loop import run
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.model import ChangeKind, Resync
from bookie.metadata.store import MetadataStore
from tests.fault.metadata_servers import SERVERS

CALLERS = 64
"""Ledgers that are created or deleted at a time."""


def _metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("bookie-1", "bookie-2", "bookie-3")),),
    )


async def _each(ledger_ids: range, act: Callable[[int], Awaitable[object]]) -> float:
    """Do it for each id, some at a time; the rate."""
    ids: Iterator[int] = iter(ledger_ids)

    async def work() -> None:
        for ledger_id in ids:
            await act(ledger_id)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(work())
    return len(ledger_ids) / (time.perf_counter() - began)


async def _watch(store: MetadataStore, ready: asyncio.Event, wanted: int) -> tuple[int, int]:
    """Watch until `wanted` ledgers were seen to be created; returns them and the resyncs."""
    seen: set[str] = set()
    resyncs = 0
    async with store.watch(keys.LEDGERS) as changes:
        ready.set()
        async for change in changes:
            if isinstance(change, Resync):
                # What was missed is found by listing, as every consumer does it.
                resyncs += 1
                layout = await read_layout(store)
                seen.update([layout.key(one) async for one in LedgerManager(store).list_ids()])
            else:
                seen.update(
                    event.key
                    for event in change.events
                    if event.kind is ChangeKind.CREATED and event.key not in seen
                )
            if len(seen) >= wanted:
                return len(seen), resyncs
    raise AssertionError("the watch ended")


async def measure(name: str, uri: str, ledgers: int) -> None:
    """Print one row."""
    async with open_store(uri) as store, open_store(uri) as other:
        await initialize_cluster(store)
        manager = LedgerManager(store)
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(other, ready, ledgers))
            await ready.wait()
            created = await _each(range(ledgers), lambda one: manager.create(_metadata(one)))
            behind = time.perf_counter()
            seen, resyncs = await watching
            behind = time.perf_counter() - behind
        began = time.perf_counter()
        listed = [one async for one in manager.list_ids()]
        listing = time.perf_counter() - began
        assert listed == list(range(ledgers)), "the listing is not complete"
        assert seen >= ledgers
        deleted = await _each(range(ledgers), manager.delete)
        assert [one async for one in manager.list_ids()] == []
    print(
        f"{name:<8} {ledgers:>8,} ledgers  created {created:>8,.0f}/s  listed in {listing:>6.2f} s"
        f"  deleted {deleted:>8,.0f}/s  the watch was {behind:.2f} s behind, {resyncs} resyncs",
        flush=True,
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=100_000)
    names = ["memory", "local", *SERVERS]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    arguments = parser.parse_args()
    for name in arguments.only:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if name in SERVERS:
                uri = stack.enter_context(SERVERS[name](directory)).uri
            else:
                uri = "memory://bench" if name == "memory" else f"local://{directory}"
            run(measure(name, uri, arguments.ledgers))


if __name__ == "__main__":
    main()
