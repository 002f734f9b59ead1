"""Exactly once, whatever fails: no row is lost, doubled or moved, and no ledger is left."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from bookie.sync import SyncBookKeeper
from tests.spark.faulty_sink import plant
from tests.spark.sink_checker import sink_problems
from tests.spark.sink_streams import FileStream, file_streams, ledgers_by_log, orphans_of, rows_in

SEEDS = 12
SEEDS_OF_SOAK = 300
AT_ONCE = 4
"""Seeds that run at the same time in one JVM."""

STARTS_MAX = 12
SOMETIMES = (
    "a bookie was killed",
    "a query ended and began again",
    "two queries on one log",
    "two logs in one batch",
    "orphans before the sweep",
)
"""Events that have to happen in some of the stories."""

POINTS = ("write", "written", "commit", "published")
ACTIONS = ("raise", "kill")


@pytest.fixture(autouse=True, scope="module")
def _file_streams(spark: SparkSession) -> Iterator[None]:
    with file_streams(spark):
        yield


def stream_of(spark: SparkSession, uri: str, log: str, directory: Path) -> FileStream:
    """A stream of two batches into one log."""
    stream = FileStream(spark, uri, directory, "q", (log,), files=2)
    stream.make_input()
    return stream


def test_trap_5_abort_after_a_published_commit_deletes_nothing(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """`commit` raises after its own success, and Spark calls `abort` for what is published."""
    bk.create_log(log, transactional=True)
    stream = stream_of(spark, uri, log, tmp_path / "stream")
    plant(stream.faults, "published-0-0")
    query = stream.start()
    with pytest.raises(StreamingQueryException, match="PlantedError: published-0-0"):
        query.awaitTermination()
    first_file = {(log, 0): stream.expected[: stream.rows]}
    assert rows_in(bk, [log]) == first_file
    assert not (stream.checkpoint / "commits" / "0").exists()
    # The batch comes again, under the same number, and is dropped.
    stream.start().awaitTermination()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}
    assert bk.publisher(log).last_batch(query.id) == 1


def test_an_unpublished_batch_is_aborted(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """`abort` deletes the ledgers of a commit that failed, and the next attempt makes others."""
    bk.create_log(log, transactional=True)
    stream = stream_of(spark, uri, log, tmp_path / "stream")
    plant(stream.faults, "commit-0")
    with pytest.raises(StreamingQueryException, match="PlantedError: commit-0"):
        stream.start().awaitTermination()
    assert log not in ledgers_by_log(bk)
    stream.start().awaitTermination()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}


def test_trap_6_failed_tasks_leave_ledgers_that_the_sweep_deletes(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """A worker is killed between its last record and its message, so nobody hears of its ledger."""
    bk.create_log(log, transactional=True)
    stream = stream_of(spark, uri, log, tmp_path / "stream")
    plant(stream.faults, "written-0", "kill")
    stream.start().awaitTermination()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}
    orphans = orphans_of(bk, log)
    assert orphans
    bk.sweep_logs(older_than_seconds=0)
    assert orphans_of(bk, log) == set()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}


def kill_a_bookie(uri: str, draw: random.Random) -> None:
    """Kill one of three; its supervisor starts it again."""
    data = Path(uri.removeprefix("local://")).parent
    chosen = draw.choice(sorted(data.glob("bookie-*/bookie.pid")) or [None])
    with suppress(ProcessLookupError, FileNotFoundError):
        if chosen is not None:
            os.kill(int(chosen.read_text()), signal.SIGKILL)


def run_seed(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, seed: int, root: Path
) -> Counter[str]:
    """One story: one or two queries, one or two logs, and faults; returns what happened."""
    draw, counted = random.Random(seed), Counter[str]()
    logs = tuple(f"seed-{seed}-{one}" for one in range(draw.choice((1, 1, 2))))
    for name in logs:
        bk.create_log(name, partitions=draw.choice((1, 2, 3)), transactional=True)
    streams = [
        FileStream(spark, uri, root / f"{seed}-{query}", query, logs, files=3)
        for query in "ab"[: draw.choice((1, 1, 2))]
    ]
    for stream in streams:
        stream.make_input()
        for _ in range(draw.randrange(1, 4)):
            point, batch = draw.choice(POINTS), draw.randrange(stream.files)
            name = f"{point}-{batch}"
            if point == "published":
                name += f"-{draw.randrange(len(logs))}"
            action = draw.choice(ACTIONS)
            plant(stream.faults, name, action)
    if draw.random() < 0.2:
        kill_a_bookie(uri, draw)
        counted["a bookie was killed"] += 1
    going = list(streams)
    for _ in range(STARTS_MAX):
        queries = [(stream, stream.start()) for stream in going]
        going = []
        for stream, query in queries:
            try:
                query.awaitTermination()
            except StreamingQueryException:
                counted["a query ended and began again"] += 1
                going.append(stream)
        if not going:
            break
    assert not going, f"seed {seed}: a query fails again and again"
    for stream in streams:
        counted["faults that nobody met"] += len(list(stream.faults.iterdir()))
    counted["two queries on one log"] += len(streams) - 1
    counted["two logs in one batch"] += len(logs) - 1
    expected = [row for stream in streams for row in stream.expected]
    assert sink_problems(expected, rows_in(bk, logs)) == [], f"seed {seed}"
    return counted


@pytest.mark.timeout(3600)
def test_seeded_faults(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, tmp_path: Path, is_soak: bool
) -> None:
    """Rows are exact after every story, and after the sweep no ledger is left of what failed."""
    seeds = range(SEEDS_OF_SOAK if is_soak else SEEDS)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        stories = threads.map(lambda seed: run_seed(spark, uri, bk, seed, tmp_path), seeds)
        counted = sum(stories, Counter[str]())
    logs = [name for name in ledgers_by_log(bk) if name.startswith("seed-")]
    assert len(logs) >= len(seeds)
    counted["orphans before the sweep"] = len(orphans_of(bk, *logs))
    print(dict(counted))
    assert min(counted[name] for name in SOMETIMES) > 0, counted
    bk.sweep_logs(older_than_seconds=0)
    assert orphans_of(bk, *logs) == set()
