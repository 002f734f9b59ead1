"""How fast Spark audits a cluster: by ledger, by byte, and with one core or two.

    python -m tests.bench.bench_spark_audit [--ledgers 10 1000 10000] [--megabytes 512]

Three bookies on this machine hold three copies of everything. `ledgers` audits many small ones: 20
entries of 1 KB each. `bytes` audits four large ones with one core of Spark and then with two; each
copy of each entry counts. The bookies share the cores with Spark. All figures are of one run;
nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from bookie.api import BookKeeper, connect
from bookie.env import gather
from bookie.spark.jobs.audit import AuditSummary, audit
from tests.spark.conftest import three_bookies

ENTRY = bytes(range(256)) * 4
SMALL_ENTRIES = 20
AT_ONCE = 64
LARGE = 4
BATCH = 1024


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


def session(cores: int) -> SparkSession:
    """A Spark of so many cores."""
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--megabytes", type=int, default=512, help="of the large ledgers together")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=arguments.directory) as directory:
        home = Path(directory)
        with three_bookies(home / "data"):
            uri = f"local://{home}/data/metadata"
            small, large = asyncio.run(fill(uri, arguments.ledgers, arguments.megabytes))
            spark = session(2)
            timed(spark, uri, f"{directory}/warm", small[:10])
            for count in arguments.ledgers:
                seconds, _ = timed(spark, uri, f"{directory}/{count}", small[:count])
                print(f"{count} ledgers: {seconds:.1f} s, {1e3 * seconds / count:.2f} ms each")
            spark.stop()
            for cores in (1, 2):
                spark = session(cores)
                timed(spark, uri, f"{directory}/warm", small[:10])
                seconds, summary = timed(spark, uri, f"{directory}/bytes", large)
                spark.stop()
                rate = summary.verified_bytes / seconds / 1e6
                print(f"{cores} cores: {seconds:.1f} s, {rate:.0f} MB/s of verified entries")


if __name__ == "__main__":
    main()
