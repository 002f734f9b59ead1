"""Logs as streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bookie.spark.lag import stream_lag
from bookie.sync import SyncBookKeeper
from tests.servers.processes import wait_until


def query(
    spark: SparkSession, uri: str, path: Path, name: str, *, trigger: dict[str, Any], **options: Any
) -> StreamingQuery:
    """A query that writes the values of a log into a directory."""
    frame = spark.readStream.format("bookkeeper").options(metadata=uri, **options).load()
    writer = frame.selectExpr(
        "log", "partition", "offset", "cast(value as string) value"
    ).writeStream
    return (
        writer.format("parquet")
        .option("path", str(path / f"{name}-out"))
        .option("checkpointLocation", str(path / f"{name}-checkpoint"))
        .trigger(**trigger)
        .start()
    )


def run(spark: SparkSession, uri: str, path: Path, name: str, **options: Any) -> list[int]:
    """Read all that is there; returns how many rows each batch had."""
    found = query(spark, uri, path, name, trigger={"availableNow": True}, **options)
    assert found.awaitTermination(120)
    assert found.exception() is None
    return [one.numInputRows for one in found.recentProgress]


def values(spark: SparkSession, path: Path, name: str) -> list[str]:
    """What was written, sorted by its place."""
    frame = spark.read.parquet(str(path / f"{name}-out")).orderBy("log", "partition", "offset")
    return [row.value for row in frame.collect()]


def test_all_that_is_there_in_bounded_batches(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Also across a takeover; a second run gets only what is new."""
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        writer.append_many([b"a%03d" % n for n in range(500)], partition=0)
    with bk.open_log(log) as writer:
        writer.append_many([b"b%03d" % n for n in range(510)], partition=1)
        batches = run(
            spark, uri, tmp_path, "q", log=log, startingOffsets="earliest", maxEntriesPerTrigger=400
        )
        assert sum(batches) == 1010
        assert max(batches) <= 400
        writer.append_many([b"c%03d" % n for n in range(5)], partition=0)
        assert sum(run(spark, uri, tmp_path, "q", log=log, startingOffsets="earliest")) == 5
    expected = [f"a{n:03}" for n in range(500)] + [f"c{n:03}" for n in range(5)]
    assert values(spark, tmp_path, "q") == [*expected, *(f"b{n:03}" for n in range(510))]


def test_trap_3_a_query_that_begins_at_the_latest_record_loses_none(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Its first batch is lost with the commit; records came meanwhile."""
    with bk.open_log(log) as writer:
        writer.append(b"before")
        assert run(spark, uri, tmp_path, "q", log=log) == [0]
        offsets = tmp_path / "q-checkpoint" / "offsets" / "0"
        kept = json.loads(offsets.read_text().splitlines()[2])
        assert kept == {log: {"0": 1}}
        # The query died before it had committed its first batch.
        for one in (tmp_path / "q-checkpoint" / "commits").glob("*0*"):
            one.unlink()
        writer.append_many([b"one", b"two"])
        run(spark, uri, tmp_path, "q", log=log)
    assert values(spark, tmp_path, "q") == ["one", "two"]


def test_a_stream_follows_new_logs_and_waits_between(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Trap 4 as well: equal offsets are equal texts, so an idle query makes no batches."""
    with bk.open_log(f"{log}-b") as second:
        second.append(b"b0")
        options = {"logPattern": f"{log}-.*", "startingOffsets": "earliest"}
        found = query(spark, uri, tmp_path, "q", trigger={"processingTime": "0 seconds"}, **options)
        try:
            wait_until(lambda: rows(found) == 1, "the first record", 120)
            with bk.open_log(f"{log}-a") as first:
                first.append(b"a0")
                wait_until(lambda: rows(found) == 2, "a record of a new log", 120)
                progress = found.lastProgress
                assert progress is not None
                before = progress.batchId
                first.append(b"a1")
                wait_until(lambda: rows(found) == 3, "a second record", 120)
                assert found.lastProgress is not None
                assert found.lastProgress.batchId - before <= 2
                latest = json.loads(found.lastProgress.sources[0].latestOffset or "null")
                assert latest == {f"{log}-a": {"0": 2}, f"{log}-b": {"0": 1}}
                lag = stream_lag(found.lastProgress)
                assert lag is not None
                assert lag.max_offsets_behind_latest == 0
        finally:
            found.stop()
    assert values(spark, tmp_path, "q") == ["a0", "a1", "b0"]


def rows(found: StreamingQuery) -> int:
    """How many rows a query has read."""
    error = found.exception()
    assert error is None, error
    return sum(one.numInputRows for one in found.recentProgress)


def test_truncation_ends_a_stream_or_is_skipped(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    options = {"log": log, "startingOffsets": "earliest"}
    with bk.open_log(log) as writer:
        writer.append_many([b"%d" % n for n in range(3)])
        run(spark, uri, tmp_path, "q", **options)
        writer.append_many([b"%d" % n for n in range(3, 10)])
    bk.truncate_log(log, before=6)
    failed = query(spark, uri, tmp_path, "q", trigger={"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException, match="earliest one is 6; set failOnDataLoss to"):
        failed.awaitTermination(120)
    assert sum(run(spark, uri, tmp_path, "q", failOnDataLoss="false", **options)) == 4
    assert values(spark, tmp_path, "q") == ["0", "1", "2", "6", "7", "8", "9"]


def test_what_is_wrong_is_said(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """When the frame is made, unless only a stream cannot have the option."""
    now = {"availableNow": True}
    with pytest.raises(AnalysisException, match="no-such-log"):
        query(spark, uri, tmp_path, "q", trigger=now, log="no-such-log")
    with pytest.raises(AnalysisException, match="do you mean maxEntriesPerTrigger"):
        query(spark, uri, tmp_path, "q", trigger=now, log="a", maxEntriesPerTriger=1)
    options = {"logPattern": "no-such-.*", "endingOffsets": "latest"}
    ended = query(spark, uri, tmp_path, "q", trigger=now, **options)
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        ended.awaitTermination(120)
