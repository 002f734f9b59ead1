"""How fast a metadata store is, beside the same operations done with bare calls to its server.

    python -m tests.bench.bench_metadata [memory local etcd zk] [--members 1 3] [--seconds 0.15]

Nothing is asserted. Both sides do the same in turns, with the same server and number of callers.
They create a key if it is absent, write a version and delete a version. The aim is 80 % of the bare
calls. A server's data lies in memory, so that what the client costs shows. What stands beside the
stores without a server says `metadata_embedded`. A ledger's life is one create, three writes of its
version, ten reads and one delete.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from bookie.daemon.loop import run
from tests.bench import metadata_embedded, metadata_etcd, metadata_zookeeper

ROUNDS = 15
"""Turns of each side.

The speed of a shared machine can double within a second. Short neighbouring turns meet the same
speed, so the share is the median over pairs of turns.
"""
VALUE = bytes(300)
"""About the size of a ledger's metadata."""


class Contender(Protocol):
    """One side. Keys begin with a slash; versions are the server's."""

    async def get(self, key: str) -> object:
        """Read a record."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """Write a record that must not exist; its version."""
        ...

    async def write(self, key: str, value: bytes, version: int) -> int:
        """Write the record of `version`; its new version."""
        ...

    async def delete(self, key: str, version: int) -> None:
        """Delete the record of `version`."""
        ...


Contest = Callable[[int], AbstractAsyncContextManager[dict[str, Contender]]]
"""Starts so many servers and opens both sides: ``{"ours": …, "bare": …}``."""

CONTESTS: dict[str, Contest] = {
    "memory": metadata_embedded.memory_contest,
    "local": metadata_embedded.local_contest,
    "etcd": metadata_etcd.contest,
    "zk": metadata_zookeeper.contest,
}
WITHOUT_SERVERS = ("memory", "local")


async def _mix(side: Contender, name: str, reads: int, stop: Callable[[], bool]) -> int:
    """Write and read one record until `stop`; `reads` in a hundred are reads."""
    key = f"/mix/{name}"
    version, done = await side.create(key, VALUE), 0
    while not stop():
        if done * reads // 100 < (done + 1) * reads // 100:
            await side.get(key)
        else:
            version = await side.write(key, VALUE, version)
        done += 1
    await side.delete(key, version)
    return done


async def _lives(side: Contender, name: str, _: int, stop: Callable[[], bool]) -> int:
    """Lives of ledgers, one after the other; counts their operations."""
    done = 0
    while not stop():
        key = f"/ledgers/{name}-{done}"
        version = await side.create(key, VALUE)
        for _ in range(3):
            version = await side.write(key, VALUE, version)
        for _ in range(10):
            await side.get(key)
        await side.delete(key, version)
        done += 15
    return done


async def _rate(
    work: Callable[[Contender, str, int, Callable[[], bool]], Coroutine[None, None, int]],
    side: Contender,
    reads: int,
    callers: int,
    seconds: float,
) -> float:
    """Operations per second of `callers` at once."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    prefix = f"{time.monotonic_ns()}"
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(
                work(side, f"{prefix}-{n}", reads, lambda: loop.time() - start > seconds)
            )
            for n in range(callers)
        ]
    done = sum(task.result() for task in running)
    return done / (loop.time() - start)


async def _compare(sides: dict[str, Contender], seconds: float) -> None:
    print(f"{'':24}{'callers':>8}{'ours/s':>10}{'bare/s':>10}{'share':>8}")
    rows = [
        *((f"{reads} % reads", _mix, reads) for reads in (0, 50, 100)),
        ("lives of ledgers", _lives, 0),
    ]
    for label, work, reads in rows:
        for callers in (1, 32):
            found: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, side in sides.items():
                    found[name].append(await _rate(work, side, reads, callers, seconds))
            ours, bare = (statistics.median(found[name]) for name in ("ours", "bare"))
            share = statistics.median(map(operator.truediv, found["ours"], found["bare"]))
            print(f"{label:24}{callers:8}{ours:10,.0f}{bare:10,.0f}{share:8.0%}")


async def _main(arguments: argparse.Namespace) -> None:
    for name in arguments.stores or CONTESTS:
        for members in [0] if name in WITHOUT_SERVERS else arguments.members:
            print(f"\n{name}, servers: {members}")
            async with CONTESTS[name](members) as sides:
                await _compare(sides, arguments.seconds)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stores", nargs="*", choices=[*CONTESTS, []], help="default: all")
    parser.add_argument("--members", nargs="+", type=int, choices=(1, 3), default=[1, 3])
    parser.add_argument("--seconds", type=float, default=0.15, help="of each turn")
    run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
