"""Tables about the cluster, as SQL sees them; statistics and exports, which stand on frames."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from bookie.cli.app import run
from bookie.errors import BadRequestError, ConfigurationError
from bookie.spark.jobs.export import ExportPlan, parse_schema, quarantined_rows, write_batch
from bookie.spark.jobs.migrate import MigratePlan, migrate_from_kafka
from bookie.spark.jobs.moving import MoveTarget
from bookie.spark.jobs.stats import stats
from bookie.spark.tables.columns import TABLES
from bookie.sync import SyncBookKeeper


def _table(spark: SparkSession, uri: str, table: str, **options: str) -> DataFrame:
    reader = spark.read.format("bookkeeper").option("metadata", uri).option("table", table)
    return reader.options(**options).load()


def test_tables_join_as_sql_wants(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    with bk.open_log(log) as writer:
        writer.append(b"one", key=b"k")
        writer.roll()
        writer.append(b"two")
    bk.cursors(log).create("billing")
    for table in TABLES:
        options = {"log": log} if table == "history" else {}
        frame = _table(spark, uri, table, **options)
        if table != "audit":
            frame.collect()
        frame.createOrReplaceTempView(table)
    found = spark.sql(
        f"""SELECT h.number, h.startOffset, h.entries, l.state, l.log,
               (SELECT count(*) FROM replicas r WHERE r.ledgerId = h.ledgerId) AS copies
            FROM history h JOIN ledgers l USING (ledgerId)
            WHERE h.log = '{log}' ORDER BY number"""
    ).collect()
    assert [row["entries"] for row in found] == [1, 1]
    assert [row["startOffset"] for row in found] == [0, 1]
    assert {row["copies"] for row in found} == {3}
    assert {row["state"] for row in found} == {"CLOSED"}
    logs = spark.sql(f"SELECT * FROM logs WHERE log = '{found[0]['log']}'").collect()
    assert [(row["endOffset"], row["mode"], row["openLedgers"]) for row in logs] == [
        (2, "writer", [])
    ]
    cursors = _table(spark, uri, "cursors").where("cursor = 'billing'").collect()
    assert [row["offset"] for row in cursors] == [0]
    bookies = _table(spark, uri, "bookies").collect()
    assert len(bookies) == 3
    assert all(row["totalBytes"] > row["freeBytes"] > 0 for row in bookies)
    assert isinstance(_table(spark, uri, "ledgers").schema["createdAt"].dataType, TimestampType)


def test_a_wrong_table_is_refused_when_the_frame_is_made(spark: SparkSession, uri: str) -> None:
    with pytest.raises(AnalysisException, match="the option table is one of ledgers"):
        _table(spark, uri, "nothing")
    with pytest.raises(AnalysisException, match="there is no option ledger; do you mean"):
        _table(spark, uri, "replicas", ledger="1")


def test_statistics_count_what_tables_have(
    spark: SparkSession,
    uri: str,
    bk: SyncBookKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bk.create_ledger(ack_quorum_size=3) as writer:
        writer.append_many([b"x" * 1000] * 10)
    found = stats(spark, uri)
    listed = _table(spark, uri, "ledgers")
    assert found.ledgers == listed.count()
    assert found.largest_bytes >= 10_000
    assert found.payload_bytes >= 10_000
    assert sum(one.copies for one in found.bookies) == _table(spark, uri, "replicas").count()
    assert found.skew >= 1
    monkeypatch.setattr("bookie.cli.spark.spark_session", lambda *_: nullcontext(spark))
    page = tmp_path / "stats.html"
    assert run(["spark", "stats", "--metadata", uri, "--page", str(page)]) == 0
    assert "payload bytes" in capsys.readouterr().out
    assert "<svg" in page.read_text()


def test_a_batch_of_an_export_replaces_itself_and_sets_bad_rows_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        (bytearray(b'{"id": 1, "name": "a"}'), "orders", 0, 0),
        (bytearray(b'{"id": "x"'), "orders", 0, 1),
        (bytearray(b'{"id": 2, "name": "b"}'), "orders", 0, 2),
        (None, "orders", 0, 3),
        (bytearray(b'{"id": "x", "name": "c"}'), "orders", 0, 4),
    ]
    frame = spark.createDataFrame(rows, "value BINARY, log STRING, partition INT, offset BIGINT")
    plan = ExportPlan(str(tmp_path), "json", parse_schema("id BIGINT, name STRING"), ("name",))
    plan.validate()
    for _ in range(2):  # Spark repeats a batch that it is not sure about
        write_batch(frame, 4, plan)
    write_batch(frame.where("offset = 2"), 5, plan)
    good = spark.read.parquet(f"{tmp_path}/data").orderBy("batch", "id").collect()
    assert [(row["batch"], row["id"], row["name"], row["_offset"]) for row in good] == [
        (4, 1, "a", 0),
        (4, 2, "b", 2),
        (5, 2, "b", 2),
    ]
    bad = spark.read.parquet(f"{tmp_path}/quarantine").orderBy("offset").collect()
    assert [(row["offset"], row["value"], row["reason"]) for row in bad] == [
        (1, b'{"id": "x"', "it is no JSON object"),
        (3, None, "the value is null"),
        (4, b'{"id": "x", "name": "c"}', "id is no bigint: x"),
    ]
    csv = ExportPlan(str(tmp_path / "csv"), "csv", parse_schema("id BIGINT, name STRING"))
    write_batch(
        spark.createDataFrame(
            [(b"7,g", 0), (b"x,y", 1), (b"8", 2), (None, 3)], "value BINARY, offset INT"
        ),
        0,
        csv,
    )
    bad = spark.read.parquet(f"{tmp_path}/csv/quarantine").orderBy("offset").collect()
    assert [(row["offset"], row["reason"]) for row in bad] == [
        (1, "id is no bigint: x"),
        (2, "the row does not have 2 columns"),
        (3, "the value is null"),
    ]
    assert quarantined_rows(spark, str(tmp_path / "csv")) == 3
    assert quarantined_rows(spark, str(tmp_path / "none")) == 0
    assert [row["id"] for row in spark.read.parquet(f"{tmp_path}/csv/data").collect()] == [7]
    raw = ExportPlan(str(tmp_path / "raw"))
    write_batch(frame, 0, raw)
    assert spark.read.parquet(f"{tmp_path}/raw/data").count() == 5


def test_wrong_exports_and_ingests_say_so_at_once(spark: SparkSession, uri: str) -> None:
    with pytest.raises(BadRequestError, match="json and csv need a schema"):
        ExportPlan("/x", "json").validate()
    with pytest.raises(BadRequestError, match="is no list of columns"):
        parse_schema("id NOTHING")
    with pytest.raises(ConfigurationError, match=r"spark-sql-kafka-0-10_2\.13:4\.3"):
        migrate_from_kafka(
            spark, MigratePlan("127.0.0.1:1", "topic"), MoveTarget(uri, "log", "/nowhere")
        )
