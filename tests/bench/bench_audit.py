"""Passes of an auditor: over a million entries on three bookies, and over 100 000 ledgers on etcd.

    python -m tests.bench.bench_audit entries [--shapes 1x1000000 1000x1000 100000x10]
    python -m tests.bench.bench_audit ledgers [--ledgers 100000] [--bookies 20]

``entries``: each shape is so many ledgers of so many small entries, on three bookies as processes.
A *survey* reads rows. An *audit* lists each entry of each copy and reads no digests. Shown are the
seconds of each, the processor time of the auditor and of the bookies, and the auditor's memory.

``ledgers``: only metadata, as records in an etcd server; the ledgers have no entries. Each pass is
one of a process of its own, which shows its seconds and the highest resident memory. In the passes
named *lost*, one bookie is lost, which 3 of `--bookies` ledgers name.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bookie.api import BookKeeper
from bookie.cluster.instance import initialize_cluster
from bookie.config import RepairSettings, RpcSettings, Sources
from bookie.env import SystemClock
from bookie.ids import NO_ENTRY
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.ledger_client import open_ledger_client
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.repair.auditor import Auditor
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from tests.fault.daemon_cluster import daemon_cluster
from tests.servers.etcd import EtcdServer

SHAPES = ("1x1000000", "1000x1000", "100000x10")
CREATES_AT_ONCE = 64
TRIES = 2
LOST = "b0"


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _megabytes(name: str = "VmHWM") -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


@asynccontextmanager
async def _worker(uri: str) -> AsyncIterator[RepairWorker]:
    clock = SystemClock()
    async with (
        open_store(uri) as store,
        open_ledger_client(store, Sources.read(None, {}), RpcSettings()) as client,
    ):
        marks = UnderreplicationManager(store, "bench", clock)
        settings = RepairSettings()
        yield RepairWorker(client, store, lambda: settings, Metrics(), clock, "bench", marks)


# ---- entries


async def _fill(client: BookKeeper, ledgers: int, entries: int) -> None:
    room = asyncio.Semaphore(CREATES_AT_ONCE)

    async def write() -> None:
        async with room:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=3
            )
            for start in range(0, entries, 10_000):
                await writer.append_many([b"small"] * min(10_000, entries - start))
            await writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(ledgers):
            tasks.create_task(write())


async def _measure_entries(shape: str) -> None:
    ledgers, entries = map(int, shape.split("x"))
    with tempfile.TemporaryDirectory() as name:
        uri = f"local://{name}/metadata"
        async with daemon_cluster(uri, Path(name)) as cluster:
            await _fill(cluster.client, ledgers, entries)
            pids = [one.process.pid for one in cluster.daemons.values()]
            await asyncio.sleep(15)  # the last checkpoints
            for kind in ("survey", "audit") * TRIES:
                before = [_seconds_of(pid) for pid in pids]
                line = await asyncio.to_thread(_passed, uri, kind)
                used = [_seconds_of(pid) - was for pid, was in zip(pids, before, strict=True)]
                print(f"{shape:10} {line}; bookies {', '.join(f'{one:.2f}' for one in used)} s CPU")


# ---- ledgers


async def _write_records(uri: str, ledgers: int, bookies: int) -> None:
    room = asyncio.Semaphore(CREATES_AT_ONCE)
    async with open_store(uri) as store:
        await initialize_cluster(store)
        manager = LedgerManager(store)

        async def write(ledger_id: int) -> None:
            names = tuple(f"b{(ledger_id + step) % bookies}" for step in range(3))
            metadata = LedgerMetadata(
                ledger_id,
                3,
                3,
                2,
                LedgerState.CLOSED if ledger_id % 10 else LedgerState.OPEN,
                (Fragment(0, names), Fragment(1, names[::-1]))
                if ledger_id % 10 == 0
                else (Fragment(0, names),),
                last_entry_id=NO_ENTRY,
                ctime_ms=1_700_000_000_000,
                writer_id=f"{ledger_id:032x}" if ledger_id % 10 == 0 else "",
            )
            try:
                await manager.create(metadata, is_fresh=True)
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            for ledger_id in range(ledgers):
                await room.acquire()
                tasks.create_task(write(ledger_id))


async def _measure_ledgers(ledgers: int, bookies: int) -> None:
    with EtcdServer().running() as server:
        uri = server.uri()
        await _write_records(uri, ledgers, bookies)
        for kind in ("survey", "lost", "lost", "open", "count", "marks", "bare"):
            before = _seconds_of(server.member.pid)
            line = await asyncio.to_thread(_passed, uri, kind)
            used = _seconds_of(server.member.pid) - before
            print(f"{ledgers} ledgers {line}; etcd {used:.2f} s CPU")


# ---- one pass


def _passed(uri: str, kind: str) -> str:
    command = [sys.executable, "-m", "tests.bench.bench_audit", "pass", "--uri", uri, kind]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


async def _pass(uri: str, kind: str) -> None:
    async with _worker(uri) as worker:
        auditor = Auditor(worker)
        clock = asyncio.get_running_loop().time

        async def survey(gone: set[str], *, is_deep: bool) -> object:
            report = await auditor.survey(gone, is_deep=is_deep)
            return f"{report.ledgers} marked, silent {list(report.silent)}"

        async def marks() -> object:
            return len([one async for one in worker.marks.marked()])

        async def find() -> object:
            await auditor._open_ledgers.find()
            return f"{len(auditor._open_ledgers._found)} found"

        async def bare() -> object:
            return len([None async for _ in worker.client.ledgers.list_readable(print)])

        works: dict[str, Callable[[], Awaitable[object]]] = {
            "survey": lambda: survey(set(), is_deep=False),
            "audit": lambda: survey(set(), is_deep=True),
            "lost": lambda: survey({LOST}, is_deep=False),
            "open": find,
            "count": worker.marks.count,
            "marks": marks,
            "bare": bare,
        }
        idle, began, used = _megabytes("VmRSS"), clock(), _own_seconds()
        said = await works[kind]()
        seconds, used = clock() - began, _own_seconds() - used
        print(
            f"{kind:7} {seconds:6.2f} s, auditor {used:.2f} s CPU, "
            f"{_megabytes():.0f} MB at most ({idle:.0f} MB idle): {said}"
        )


def main() -> None:
    """Measure the parts that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    entries = parts.add_parser("entries", help="surveys and audits of a million entries")
    entries.add_argument("--shapes", nargs="+", default=SHAPES)
    ledgers = parts.add_parser("ledgers", help="passes over very many ledgers")
    ledgers.add_argument("--ledgers", type=int, default=100_000)
    ledgers.add_argument("--bookies", type=int, default=20)
    one = parts.add_parser("pass", help="one pass over a cluster that is there")
    one.add_argument("--uri", required=True)
    one.add_argument("kind")
    chosen = parser.parse_args()
    if chosen.part == "entries":
        for shape in chosen.shapes:
            asyncio.run(_measure_entries(shape))
    elif chosen.part == "ledgers":
        asyncio.run(_measure_ledgers(chosen.ledgers, chosen.bookies))
    else:
        asyncio.run(_pass(chosen.uri, chosen.kind))


if __name__ == "__main__":
    main()
