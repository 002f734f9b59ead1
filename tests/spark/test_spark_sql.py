"""Tables of a catalog, and paths: logs as SQL and short programs name them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from bookie.sync import SyncBookKeeper

_numbers = count(1)


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """A name in the catalog; its table is dropped at the end."""
    name = f"t{next(_numbers)}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def make(spark: SparkSession, name: str, uri: str, **options: str) -> None:
    """Make a table."""
    given = ", ".join(f"{option} '{text}'" for option, text in {"metadata": uri, **options}.items())
    spark.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({given})")


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return [tuple(row) for row in spark.sql(query).collect()]


def test_a_table_is_read_described_and_inserted_into(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, table: str
) -> None:
    """Spark gives its options to the source only while the table is made."""
    bk.create_log(log, transactional=True)
    make(spark, table, uri, log=log, startingOffsets="earliest")
    spark.sql(
        f"INSERT INTO {table} (key, value) VALUES (X'61', X'6f6e65'), (NULL, CAST('two' AS BINARY))"
    )
    spark.range(3, 4).selectExpr("cast(cast(id AS string) AS binary) v").createOrReplaceTempView(
        "w"
    )
    spark.sql(f"INSERT INTO {table} (value, timestamp) SELECT v, timestamp'2026-01-01' FROM w")
    text = "cast(key AS string), cast(value AS string)"
    found = rows(spark, f"SELECT {text} FROM {table} ORDER BY offset")
    assert sorted(found, key=str) == [("a", "one"), (None, "3"), (None, "two")]
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE log = '{log}'") == [(3,)]
    names = [row.col_name for row in spark.sql(f"DESCRIBE {table}").collect()]
    assert names[:5] == ["key", "value", "log", "partition", "offset"]
    spark.sql(f"DROP TABLE {table}")
    assert len(list(bk.read_log(log))) == 3


def test_options_of_a_query_go_before_those_of_its_table(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, table: str, tmp_path: Path
) -> None:
    """With them one batch is inserted once. A table is a stream as well."""
    bk.create_log(log, transactional=True)
    make(spark, table, uri, log=log, columns="value")
    for _ in range(2):
        with_ids = f"INSERT INTO {table} WITH (txnAppId = 'sql', txnVersion = '1')"
        spark.sql(f"{with_ids} SELECT CAST(CAST(id AS STRING) AS BINARY) FROM range(4)")
    assert spark.table(table).count() == 4
    start = f'{{"{log}": {{"0": {bk.read_log(log).__next__().offset + 2}}}}}'
    assert spark.read.option("startingOffsets", start).table(table).count() == 2
    stream = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4


def test_what_a_table_cannot_do_is_said(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, table: str
) -> None:
    bk.create_log(log, transactional=True)
    for options, message in {
        "log 'no-such-log'": "no-such-log",
        f"log '{log}', maxBytesPerPartitio '1m'": "do you mean maxBytesPerPartition",
        f"log '{log}', path 'x'": "has no LOCATION and no option path",
    }.items():
        with pytest.raises(PySparkException, match=message):
            spark.sql(
                f"CREATE TABLE {table} USING bookkeeper OPTIONS (metadata '{uri}', {options})"
            )
    make(spark, table, uri, log=log)
    spark.sql(f"INSERT INTO {table} (value) VALUES (X'61')")
    for query, message in {
        f"INSERT INTO {table} SELECT * FROM {table}": "the log fills the column offset",
        f"INSERT OVERWRITE {table} (value) VALUES (X'61')": "a log only grows",
    }.items():
        with pytest.raises(PySparkException, match=message):
            spark.sql(query)
    with pytest.raises(PySparkException, match="the option metadata is missing"):
        spark.table(table).select("value").write.format("bookkeeper").mode("append").save()
    assert spark.table(table).count() == 1


def test_a_table_with_columns_or_of_the_cluster(spark: SparkSession, uri: str, table: str) -> None:
    make(spark, table, uri, table="bookies")
    assert spark.table(table).count() == 3
    with pytest.raises(PySparkException, match="with the option table is only read"):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING bookkeeper OPTIONS (metadata '{uri}')")
    with pytest.raises(PySparkException, match="leave the columns out: CREATE TABLE t USING"):
        spark.sql(f"SELECT * FROM {table}").collect()


def test_a_path_is_the_name_of_a_log(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """In frames and streams, for reads and for writes."""
    bk.create_log(log, transactional=True)
    frame = spark.range(3).selectExpr("cast(id AS string) AS value")
    frame.write.format("bookkeeper").option("metadata", uri).mode("append").save(log)
    load = spark.read.format("bookkeeper").option("metadata", uri)
    assert load.load(log).count() == 3
    copy = f"{log}-copy"
    bk.create_log(copy, transactional=True)
    streamed = spark.readStream.format("bookkeeper").option("metadata", uri)
    query = (
        streamed.option("startingOffsets", "earliest")
        .load(log)
        .select("value")
        .writeStream.format("bookkeeper")
        .option("metadata", uri)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(copy)
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert load.load(copy).count() == 3
    for path, options, message in (
        ("/lake/orders", {}, "'/lake/orders' is not the name of a log"),
        (log, {"log": "other"}, "either the option log or path"),
        ([log, copy], {}, "several names by the option logs"),
    ):
        with pytest.raises(AnalysisException, match=message):
            load.options(**options).load(path)
    write = frame.write.format("bookkeeper").option("metadata", uri).mode("append")
    with pytest.raises(AnalysisException, match="'/lake/orders' is not the name of a log"):
        write.save("/lake/orders")
    with pytest.raises(AnalysisException, match="log and path mean the same"):
        write.option("log", copy).save(log)
