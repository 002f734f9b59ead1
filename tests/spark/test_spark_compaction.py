"""Compactions by tasks of Spark: frames, streams and exports go on as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bookie.api import LogPolicy
from bookie.log.compact.plan import CompactionLimits
from bookie.spark.jobs.compact import compact
from bookie.spark.jobs.export import ExportPlan, export_log
from bookie.sync import SyncBookKeeper

COLUMNS = ("partition", "offset", "timestamp", "key", "value")


def publish(bk: SyncBookKeeper, log: str, batches: range) -> None:
    """Each batch writes a ledger of its own in each of two partitions."""
    publisher = bk.publisher(log)
    for batch in batches:
        ranges = []
        for partition in range(2):
            with bk.open_range_writer(log, "job", partition=partition) as writer:
                writer.append_many([b"%d-%d" % (batch, at) for at in range(20)])
                ranges.append(writer.cut())
        assert publisher.publish("job", batch, [one for one in ranges if one is not None])


def log_frame(spark: SparkSession, uri: str, log: str, **options: str) -> DataFrame:
    reader = spark.read.format("bookkeeper").option("metadata", uri).option("log", log)
    return reader.options(**options).load()


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in frame.select(*COLUMNS).collect())


def test_what_spark_reads_stays_and_its_ledgers_become_few(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    bk.create_log(log, transactional=True, partitions=2)
    publish(bk, log, range(15))
    target, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    assert export_log(spark, uri, log, ExportPlan(target), checkpoint=checkpoint) == 600
    planned = log_frame(spark, uri, log)
    before = rows_of(planned)
    assert len(before) == 600
    publish(bk, log, range(15, 20))

    done = compact(spark, uri, log, CompactionLimits(2800, 2800))
    assert (done.ledgers_before, done.overtaken, done.left) == (40, 0, ())
    history = log_frame(spark, uri, log, table="history").collect()
    assert done.ledgers_after == len({row["ledgerId"] for row in history}) == len(history)
    joined = [row for row in history if row["entries"] > 20]
    assert done.joined == len(joined) == 6
    assert done.ledgers_after == 40 - sum(row["entries"] // 20 for row in joined) + 6
    assert done.copied_bytes == sum(row["bytes"] for row in joined)
    # The frame was planned before: its tasks read by offsets.
    assert rows_of(planned) == before
    assert (
        rows_of(log_frame(spark, uri, log, endingOffsets=json.dumps({log: {"0": 300, "1": 300}})))
        == before
    )
    # The export goes on where it was.
    assert export_log(spark, uri, log, ExportPlan(target), checkpoint=checkpoint) == 200
    exported = spark.read.parquet(f"{target}/data")
    assert exported.count() == exported.select("partition", "offset").distinct().count() == 800
    assert rows_of(exported) == rows_of(log_frame(spark, uri, log))
    again = compact(spark, uri, log, CompactionLimits(1000, 5000))
    assert (again.joined, again.ledgers_before) == (0, done.ledgers_after)


def test_the_command_tells_and_does(bk: SyncBookKeeper, uri: str, log: str) -> None:
    """In a process of its own; the log has a writer."""
    bk.create_log(log, policy=LogPolicy(roll_bytes=1))
    with bk.open_log(log) as writer:
        for number in range(6):
            writer.append(b"%d" % number)
    for number in range(6, 9):  # each owner begins a ledger
        with bk.open_log(log) as writer:
            writer.append(b"%d" % number)
    values = [one.value for one in bk.read_log(log)]

    def run(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "bookie", "spark", "compact", log, "--metadata", uri]
        ran = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    status, out, said = run("--dry-run", "--output", "json")
    assert status == 0, said
    (group,) = json.loads(out)
    assert (group["partition"], group["offset"]) == (0, 0)
    assert group["ranges"] == group["ledgers"] > 2
    assert run("--dry-run", "--small-bytes", "1") == (0, "there is nothing to join\n", "")
    status, _, said = run("--small-bytes", "2GiB")
    assert (status, "cannot be joined into ledgers of at most" in said) == (1, True)
    status, _, said = run("--target-bytes", "much")
    assert (status, "must be a number of bytes" in said) == (2, True)

    status, out, said = run("--master", "local[1]", "--output", "json")
    assert status == 0, said
    done = json.loads(out)
    assert (done["joined"], done["ledgers_after"], done["left"]) == (1, 2, [])
    assert done["ledgers_before"] == group["ledgers"] + 1
    assert done["copied_bytes"] == group["bytes"]
    assert [one.value for one in bk.read_log(log)] == values
