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
    """The written records, sorted by place."""
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
        assert kept == {log: {"0": 1, "id": bk.survey_log(log).definition.log_id}}
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
                assert [latest[f"{log}-{one}"]["0"] for one in "ab"] == [2, 1]
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


@pytest.mark.parametrize("records", [300, 1500])
def test_a_log_that_was_made_anew_under_a_stopped_query(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path, records: int
) -> None:
    """No record of the new log is skipped in silence."""
    options = {"log": log, "startingOffsets": "earliest"}
    with bk.open_log(log) as writer:
        writer.append_many([b"former"] * 1000)
    assert sum(run(spark, uri, tmp_path, "q", **options)) == 1000
    bk.delete_log(log)
    with bk.open_log(log) as writer:
        writer.append_many([b"later"] * records)
    failed = query(spark, uri, tmp_path, "q", trigger={"availableNow": True}, **options)
    with pytest.raises(StreamingQueryException, match="was deleted and made anew; give the query"):
        failed.awaitTermination(120)
    lenient = {**options, "failOnDataLoss": "false", "maxEntriesPerTrigger": "1000"}
    assert sum(run(spark, uri, tmp_path, "q", **lenient)) == records
    assert sum(run(spark, uri, tmp_path, "q", **options)) == 0
    assert values(spark, tmp_path, "q").count("later") == records


def test_a_named_log_that_was_deleted_under_a_stopped_query(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """The query does not start, or goes on with the others; and leaving a log out is no loss."""
    both = {"logs": f"{log}-a,{log}-b", "startingOffsets": "earliest"}
    for name in both["logs"].split(","):
        with bk.open_log(name) as writer:
            writer.append(b"1")
    assert sum(run(spark, uri, tmp_path, "q", **both)) == 2
    bk.delete_log(f"{log}-b")
    with pytest.raises(AnalysisException, match=f"there is no log {log}-b"):
        query(spark, uri, tmp_path, "q", trigger={"availableNow": True}, **both)
    with bk.open_log(f"{log}-a") as writer:
        writer.append(b"2")
    one = {"logs": f"{log}-a", "startingOffsets": "earliest"}
    assert sum(run(spark, uri, tmp_path, "q", **one)) == 1
    with bk.open_log(f"{log}-a") as writer:
        writer.append(b"3")
    assert sum(run(spark, uri, tmp_path, "q", failOnDataLoss="false", **both)) == 1


def test_the_checkpoint_of_an_older_version(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Its offsets have no ids; the next batch has them."""
    options = {"log": log, "startingOffsets": "earliest"}
    with bk.open_log(log) as writer:
        writer.append_many([b"1", b"2"])
        assert sum(run(spark, uri, tmp_path, "q", **options)) == 2
        offsets = tmp_path / "q-checkpoint" / "offsets"
        for one in offsets.glob("[0-9]*"):
            lines = one.read_text().splitlines()
            lines[2] = json.dumps({log: {"0": json.loads(lines[2])[log]["0"]}})
            one.write_text("\n".join(lines))
            (offsets / f".{one.name}.crc").unlink()
        writer.append(b"3")
        assert sum(run(spark, uri, tmp_path, "q", **options)) == 1
    assert values(spark, tmp_path, "q") == ["1", "2", "3"]
    last = max(offsets.glob("[0-9]*"), key=lambda one: int(one.name))
    kept = json.loads(last.read_text().splitlines()[2])
    assert kept == {log: {"0": 3, "id": bk.survey_log(log).definition.log_id}}


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
