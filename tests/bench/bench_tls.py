"""What TLS and roles cost: the same loads on three bookies, in turns.

    python -m tests.bench.bench_tls [--seconds 2] [--rounds 5]

One bookie speaks plaintext, one TLS with certificates of both ends, and one TLS with roles. Each
has its own cluster on an embedded metadata store, and its own client in this process. All share the
machine. A figure is the median of its rounds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bookie.api import BookKeeper
from bookie.daemon.loop import run
from bookie.security.authority import settings_for
from tests.bench.bench_writes import Load, batches, driven, new_ledger, singles
from tests.fault.secure_cluster import secure_cluster

KINDS = ("plaintext", "TLS", "TLS, roles")
READ_BYTES = 64 * 1024
READ_ENTRIES = 2048

Work = Callable[[BookKeeper, int, float], Awaitable[Load]]


async def lone(client: BookKeeper, size: int, seconds: float) -> Load:
    """One `append` under way."""
    writer = await new_ledger(client)
    payload = os.urandom(size)
    load = await driven(lambda: writer.append(payload), 1, 1, seconds)
    await writer.close()
    return load


async def reads(client: BookKeeper, size: int, seconds: float) -> Load:
    """The newest 128 MB of a ledger in ranges, from memory."""
    writer = await new_ledger(client)
    payloads = [os.urandom(size)] * (READ_ENTRIES * READ_BYTES // size)
    await writer.append_many(payloads)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)

    async def all_of_it() -> None:
        async for _ in reader.read_batches():
            pass

    load = await driven(all_of_it, len(payloads), 1, seconds)
    await client.delete_ledger(writer.ledger_id)
    return load


ROWS: tuple[tuple[str, Work, int], ...] = (
    ("append, 1 in flight", lone, 1024),
    ("append, 1000 in flight", singles, 1024),
    ("append_many", batches, 1024),
    ("append_many", batches, READ_BYTES),
    ("read_batches", reads, 1024),
    ("read_batches", reads, READ_BYTES),
)


async def _clients(stack: AsyncExitStack, root: Path) -> list[BookKeeper]:
    """Start the three clusters; return a client of each."""
    clients = []
    for number, kind in enumerate(KINDS):
        path = root / str(number)
        path.mkdir()
        cluster = await stack.enter_async_context(secure_cluster(path))
        if kind == "plaintext":
            await cluster.start("b1", {})
            clients.append(await stack.enter_async_context(cluster.connect("")))
            continue
        own = settings_for(cluster.authority, "bookie")
        await cluster.start("b1", {**own, "require_roles": kind != "TLS"})
        clients.append(await stack.enter_async_context(cluster.connect()))
    return clients


async def _measure(rounds: int, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = await _clients(stack, root)
        print(f"{'load':<24}{'entry':>9}" + "".join(f"{kind:>30}" for kind in KINDS))
        for name, work, size in ROWS:
            for client in clients:
                await work(client, size, 0.5)
            found: list[list[Load]] = [[] for _ in KINDS]
            for _ in range(rounds):
                for client, loads in zip(clients, found, strict=True):
                    loads.append(await work(client, size, seconds))
            print(f"{name:<24}{size:>7} B" + "".join(f"{_told(loads):>30}" for loads in found))


def _told(loads: list[Load]) -> str:
    """Entries a second, and the latencies of calls at p50 and p99 in ms."""
    rate = statistics.median(load.per_second for load in loads)
    p50, p99 = (
        statistics.median(load.percentile_us(share) for load in loads) / 1000
        for share in (0.5, 0.99)
    )
    return f"{rate:,.0f}/s {p50:.2f}/{p99:.2f}"


def main() -> None:
    """Print a line for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    run(_measure(arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
