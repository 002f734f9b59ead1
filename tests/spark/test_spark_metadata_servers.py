"""Rows are exact on real metadata servers, also when their leader is killed in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

import bookie.sync
from tests.servers.etcd import EtcdServer
from tests.servers.processes import wait_until
from tests.servers.zookeeper import ZooKeeperEnsemble, new_scope
from tests.spark.conftest import three_bookies
from tests.spark.sink_checker import sink_problems
from tests.spark.sink_streams import FileStream, file_streams, orphans_of, rows_in

MILLION = 1_000_000
SOURCES = 4
"""Tasks that write; each has its own numbers."""
KILLED_AFTER = (0, 2)
"""Batches."""


@pytest.fixture
def etcd_uri(etcd_server: EtcdServer, tmp_path: Path) -> Iterator[str]:
    """Three bookies on etcd."""
    uri = etcd_server.uri()
    with three_bookies(tmp_path / "data", "--metadata", uri):
        yield uri


@pytest.fixture
def zookeeper_uri(zookeeper_ensemble: ZooKeeperEnsemble, tmp_path: Path) -> Iterator[str]:
    """Three bookies on three servers of ZooKeeper."""
    uri = f"zk://{zookeeper_ensemble.hosts}{new_scope()}"
    with three_bookies(tmp_path / "data", "--metadata", uri):
        yield uri


@pytest.mark.timeout(1800)
def test_a_million_rows(spark: SparkSession, uri: str, log: str, tmp_path: Path) -> None:
    """On the embedded store."""
    check_a_million_rows(spark, uri, log, tmp_path)


@pytest.mark.timeout(1800)
def test_a_million_rows_on_etcd(
    spark: SparkSession, etcd_uri: str, log: str, tmp_path: Path
) -> None:
    """On a server of etcd."""
    check_a_million_rows(spark, etcd_uri, log, tmp_path)


def check_a_million_rows(spark: SparkSession, metadata: str, log: str, tmp_path: Path) -> None:
    """A frame into a log, a stream of it into Parquet: every row once, each task's in order."""
    with bookie.sync.connect(metadata) as bk:
        bk.create_log(log, partitions=2, transactional=True)
    written = spark.range(0, MILLION, numPartitions=SOURCES).select(
        F.concat(F.lit("customer-"), F.col("id") % 1000).alias("key"),
        F.concat(F.format_string("%07d ", "id"), F.repeat(F.lit("x"), 40)).alias("value"),
    )
    written.write.format("bookkeeper").option("metadata", metadata).option("log", log).mode(
        "append"
    ).save()
    reading = spark.readStream.format("bookkeeper").option("metadata", metadata)
    stream = reading.option("log", log).option("startingOffsets", "earliest").load()
    files = str(tmp_path / "rows")
    query = stream.writeStream.format("parquet").option("path", files)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.parquet(files)
    texts = found.select(F.col("key").cast("string"), F.col("value").cast("string"))
    assert fingerprint(texts) == fingerprint(written)
    assert found.select("log", "partition", "offset").distinct().count() == MILLION
    number = F.substring(F.col("value").cast("string"), 1, 7).cast("int")
    task = F.floor(number / (MILLION // SOURCES))
    places = Window.partitionBy("partition", task).orderBy("offset")
    backwards = found.select(number.alias("number"), F.lag(number).over(places).alias("before"))
    assert backwards.where("number <= before").count() == 0


def fingerprint(rows: DataFrame) -> tuple[int, int, int]:
    """How many rows, how many different ones, and a sum over all of them."""
    mixed = F.xxhash64("key", "value").cast("decimal(38)")
    counted = rows.agg(
        F.count("*").alias("rows"), F.countDistinct("value").alias("values"), F.sum(mixed)
    )
    return tuple(counted.head())  # type: ignore[arg-type]


@pytest.mark.timeout(1800)
def test_the_leader_of_the_metadata_is_killed(
    spark: SparkSession,
    zookeeper_ensemble: ZooKeeperEnsemble,
    zookeeper_uri: str,
    log: str,
    tmp_path: Path,
) -> None:
    """In the middle of a stream, twice. Every row is there once, and no ledger is left over."""
    stream = FileStream(spark, zookeeper_uri, tmp_path / "stream", "q", (log,), files=8)
    stream.make_input()
    with bookie.sync.connect(zookeeper_uri) as bk, file_streams(spark):
        bk.create_log(log, partitions=2, transactional=True)
        query = stream.start()
        publisher = bk.publisher(log)
        for batch in KILLED_AFTER:
            wait_until(lambda batch=batch: publisher.last_batch(query.id) >= batch, "a batch")  # type: ignore[misc]
            assert query.isActive, "the leader has to be killed before the stream ends"
            leader = zookeeper_ensemble.leader()
            zookeeper_ensemble.servers[leader].kill()
            assert zookeeper_ensemble.leader() != leader
            zookeeper_ensemble.heal()
        query.awaitTermination()
        assert publisher.last_batch(query.id) == stream.files - 1
        assert sink_problems(stream.expected, rows_in(bk, [log])) == []
        bk.sweep_logs(older_than_seconds=0)
        assert orphans_of(bk, log) == set()
