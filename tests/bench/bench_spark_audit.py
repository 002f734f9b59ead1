"""How fast Spark audits a cluster: by ledger, by byte, and with one core or two.

    python -m tests.bench.bench_spark_audit [--ledgers 10 1000 10000] [--megabytes 512]

Three bookies on this machine hold three copies of everything. `ledgers` audits many small ones: 20
entries of 1 KB each. `bytes` audits four large ones with one core of Spark and then with two; each
copy of each entry counts. The bookies share the cores with Spark. `workers` audits them with one
worker of a cluster of Spark and then with two. As root on Linux each worker gets a part of a core
and no more, so that bookies and driver have theirs. All figures are of one run; nothing is
asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from bookie.api import BookKeeper, connect
from bookie.env import gather
from bookie.spark.jobs.audit import AuditSummary, audit
from tests.servers.processes import wait_until
from tests.servers.standalone_spark import WORKERS, standalone_spark
from tests.spark.conftest import three_bookies

ENTRY = bytes(range(256)) * 4
SMALL_ENTRIES = 20
AT_ONCE = 64
LARGE = 4
BATCH = 1024
PERIOD_US = 100_000
"""Of a group of processes whose share of a core is limited."""


async def fill_small(bk: BookKeeper, count: int) -> list[int]:
    """Make small ledgers; returns their ids."""
    room = asyncio.Semaphore(AT_ONCE)

    async def make() -> int:
        async with (
            room,
            await bk.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            ) as writer,
        ):
            await writer.append_many([ENTRY] * SMALL_ENTRIES)
            return writer.ledger_id

    return sorted(await gather([make() for _ in range(count)]))


async def fill_large(bk: BookKeeper, megabytes: int) -> list[int]:
    """Make large ledgers, which have so many megabytes together."""

    async def make() -> int:
        async with await bk.create_ledger(
            ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
        ) as writer:
            for _ in range((megabytes << 20) // LARGE // len(ENTRY) // BATCH):
                await writer.append_many([ENTRY] * BATCH)
            return writer.ledger_id

    return sorted(await gather([make() for _ in range(LARGE)]))


async def fill(uri: str, small: list[int], megabytes: int) -> tuple[list[int], list[int]]:
    """Make all ledgers; small and large ones."""
    async with connect(uri) as bk:
        return await fill_small(bk, max(small)), await fill_large(bk, megabytes)


def session(master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark on this machine."""
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def limited(name: str, pid: int, cores: float) -> Iterator[None]:
    """Give a process, and whatever it starts from now on, so much of the machine's cores.

    Its processes have ended when the block ends. Source: the kernel's cgroup v1 and v2.
    """
    quota_us = int(cores * PERIOD_US)
    first, file, text = Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", f"{quota_us}"
    if not first.is_dir():
        first, file, text = Path("/sys/fs/cgroup"), "cpu.max", f"{quota_us} {PERIOD_US}"
    group = first / f"{name}-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(text)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        # A process that ends leaves its group a moment later.
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of a worker")
        group.rmdir()


def timed(spark: SparkSession, uri: str, report: str, ids: list[int]) -> tuple[float, AuditSummary]:
    """The seconds of an audit, and what it found."""
    begin = time.perf_counter()
    summary = audit(spark, uri, report, ledgers=ranges_text(ids))
    assert not summary.has_damage
    assert summary.is_complete
    assert summary.ledgers == len(ids)
    return time.perf_counter() - begin, summary


def ranges_text(ids: list[int]) -> str:
    """Ids as the option `ledgers` takes them."""
    words, first = [], ids[0]
    for one, following in zip(ids, [*ids[1:], -1], strict=True):
        if following != one + 1:
            words.append(f"{first}-{one}")
            first = following
    return ",".join(words)


def one_and_two_cores(uri: str, home: Path, small: list[int], large: list[int]) -> None:
    """`bytes`: by Spark in this process."""
    for cores in (1, 2):
        spark = session(f"local[{cores}]")
        timed(spark, uri, str(home / "warm"), small[:10])
        seconds, summary = timed(spark, uri, str(home / "bytes"), large)
        spark.stop()
        rate = summary.verified_bytes / seconds / 1e6
        print(f"{cores} cores: {seconds:.1f} s, {rate:.0f} MB/s of verified entries")


def one_and_two_workers(uri: str, home: Path, large: list[int], cores: float) -> None:
    """`workers`: by a cluster of Spark whose workers have so much of a core."""
    if os.geteuid() != 0:
        print("workers: not measured; only root may limit them")
        return
    (home / "spark").mkdir()
    with ExitStack() as limits, standalone_spark(home / "spark") as cluster:
        for number, worker in enumerate(cluster.workers):
            limits.enter_context(limited(f"bookie-bench-{number}", worker.pid, cores))
        first = 0.0
        for workers in range(1, WORKERS + 1):
            settings = {
                "spark.cores.max": str(workers),
                "spark.executor.cores": "1",
                "spark.executor.memory": "512m",
            }
            spark = session(cluster.master, settings)
            # With a part of a core it takes long until each worker has loaded its code.
            timed(spark, uri, str(home / "warm"), large)
            seconds, summary = timed(spark, uri, str(home / "bytes"), large)
            spark.stop()
            rate = summary.verified_bytes / seconds / 1e6
            first = first or seconds
            print(
                f"{workers} workers of {cores} cores: {seconds:.1f} s, {rate:.0f} MB/s of verified "
                f"entries, {first / seconds:.2f} times one worker"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--megabytes", type=int, default=512, help="of the large ledgers together")
    parser.add_argument("--worker-cores", type=float, default=0.3, help="each worker's share")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=arguments.directory) as directory:
        home = Path(directory)
        with three_bookies(home / "data"):
            uri = f"local://{home}/data/metadata"
            small, large = asyncio.run(fill(uri, arguments.ledgers, arguments.megabytes))
            spark = session("local[2]")
            timed(spark, uri, f"{directory}/warm", small[:10])
            for count in arguments.ledgers:
                seconds, _ = timed(spark, uri, f"{directory}/{count}", small[:count])
                print(f"{count} ledgers: {seconds:.1f} s, {1e3 * seconds / count:.2f} ms each")
            spark.stop()
            one_and_two_cores(uri, home, small, large)
            one_and_two_workers(uri, home, large, arguments.worker_cores)


if __name__ == "__main__":
    main()
