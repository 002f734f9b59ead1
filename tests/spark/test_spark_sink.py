"""Frames and streams become records of logs, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from bookie.log.catalog.logs import LogManager, LogName
from bookie.log.write.writer import partition_of
from bookie.metadata.connect import open_store
from bookie.sync import SyncBookKeeper
from tests.spark.sink_streams import FileStream, file_streams, ledgers_by_log, rows_in


@pytest.fixture(autouse=True, scope="module")
def _file_streams(spark: SparkSession) -> Iterator[None]:
    with file_streams(spark):
        yield


def write(frame: DataFrame, uri: str, mode: str = "append", **options: str) -> None:
    """Write a frame."""
    frame.write.format("bookkeeper").option("metadata", uri).options(**options).mode(mode).save()


async def applications(uri: str, log: str) -> dict[str, int]:
    """The ids that a log remembers, and their last batches."""
    async with open_store(uri) as store:
        return dict(await LogManager(store).applications(LogName.parse(log)))


def test_only_numbered_writes_are_remembered(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    bk.create_log(log, transactional=True)
    frame = spark.range(3).selectExpr("cast(id AS string) AS value")
    write(frame, uri, log=log)
    assert asyncio.run(applications(uri, log)) == {}
    for _ in range(2):
        write(frame, uri, log=log, txnAppId="daily", txnVersion="7")
    assert asyncio.run(applications(uri, log)) == {"daily": 7}
    assert sorted(record.value for record in bk.read_log(log)) == sorted([b"0", b"1", b"2"] * 2)


def test_every_column_arrives(spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str) -> None:
    """By two tasks, into two partitions, with a row whose partition is said."""
    bk.create_log(log, partitions=2, transactional=True)
    frame = spark.range(100, numPartitions=2).select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("k"), F.col("id") % 7).cast("binary").alias("key"),
        F.expr("array(named_struct('key', 'h', 'value', cast('x' AS binary)))").alias("headers"),
        F.expr("timestamp_millis(1700000000000 + id % 10)").alias("timestamp"),
        F.expr("if(id = 50, 1, null)").alias("partition"),
        F.lit(log).alias("log"),
    )
    write(frame, uri)
    records = list(bk.read_log(log))
    assert sorted(int(record.value) for record in records) == list(range(100))
    for record in records:
        number = int(record.value)
        assert record.key == b"k%d" % (number % 7)
        assert (record.headers, record.timestamp_ms) == (
            {"h": b"x"},
            1_700_000_000_000 + number % 10,
        )
        assert record.partition == (1 if number == 50 else partition_of(record.key, 2))
    for partition in (0, 1):
        rows = [int(record.value) for record in records if record.partition == partition]
        assert rows == sorted(rows)
    at = datetime.fromtimestamp(1_700_000_000.009, UTC)
    assert (
        next(iter(bk.read_log(log, partition=0, start_time=at))).timestamp_ms == 1_700_000_000_009
    )


def test_logs_are_made_and_rows_without_keys_spread(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    frame = spark.range(10, numPartitions=1).select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit(f"{log}-"), F.col("id") % 2).alias("topic"),
    )
    with pytest.raises(PythonException, match=f"no log {log}-0; make one with bookie log create"):
        write(frame, uri)
    write(frame, uri, createLog="true")
    found = rows_in(bk, [f"{log}-0", f"{log}-1"])
    assert found == {(f"{log}-{one}", 0): [str(row) for row in range(one, 10, 2)] for one in (0, 1)}
    bk.create_log(log, partitions=3, transactional=True)
    plain = spark.range(30, numPartitions=3).select(F.col("id").cast("string").alias("value"))
    write(plain, uri, log=log)
    assert {partition: len(rows) for (_, partition), rows in rows_in(bk, [log]).items()} == {
        0: 10, 1: 10, 2: 10
    }  # fmt: skip


def test_trap_7_any_schema_is_checked_when_the_frame_is_written(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Spark itself takes every frame. No task starts."""
    bk.create_log(log, transactional=True)
    bk.create_log(f"{log}-owned")
    row = spark.range(1).select(F.col("id").cast("string").alias("value"))
    cases: list[tuple[DataFrame, dict[str, str], str]] = [
        (spark.range(1), {}, "the sink has no column id"),
        (spark.range(1).select(F.col("id").alias("value")), {}, 'cast\\("string"\\)'),
        (row, {"mode": "overwrite"}, 'write .mode\\("append"\\) instead of overwrite'),
        (row, {"metdata": "x"}, "no option metdata; do you mean metadata"),
        (row, {"log": f"{log}-owned"}, "has an exclusive writer"),
        (row, {"log": f"{log}-none"}, "no log .*-none; make one with bookie log create"),
        (row, {"txnVersion": "1"}, "txnVersion needs txnAppId"),
    ]
    for frame, options, says in cases:
        with pytest.raises(AnalysisException, match=says):
            write(frame, uri, **{"log": log, **options})
    stream = spark.readStream.format("rate").load().select("value")
    sink = stream.writeStream.format("bookkeeper").option("metadata", uri).option("log", log)
    sink = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="value has the type bigint"):
        sink.start().awaitTermination()
    assert log not in ledgers_by_log(bk)


def test_one_ledger_serves_many_batches(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Each worker process has one open ledger for each partition, not one for each task."""
    bk.create_log(log, transactional=True)
    stream = FileStream(spark, uri, tmp_path / "stream", "q", (log,), files=6)
    stream.make_input()
    stream.start().awaitTermination()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}
    # Two tasks write each file. A slow machine makes more ledgers, because idle ones are closed.
    assert len(ledgers_by_log(bk)[log]) < 2 * stream.files


def test_a_batch_of_foreach_batch_is_written_once(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """Spark may run the function of a batch again; the second write is dropped."""
    bk.create_log(log, transactional=True)
    stream = FileStream(spark, uri, tmp_path / "stream", "q", (log,), files=2)
    stream.make_input()

    def write_twice(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            write(frame, uri, txnAppId="job", txnVersion=str(batch))

    query = stream.frame().writeStream.foreachBatch(write_twice)
    query = query.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    assert rows_in(bk, [log]) == {(log, 0): stream.expected}
    assert bk.publisher(log).last_batch("job") == 1
    plain = spark.createDataFrame([("x",)], "value string")
    for _ in range(2):  # without a number each write is another one
        write(plain, uri, log=log)
    assert rows_in(bk, [log]) == {(log, 0): [*stream.expected, "x", "x"]}
