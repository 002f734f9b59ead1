"""Files into a log, and the log into files, each row once."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from bookie.spark.jobs.export import ExportPlan, export_log, parse_schema
from bookie.spark.jobs.ingest import ingest_files
from bookie.sync import SyncBookKeeper


def test_what_is_new_goes_into_a_log_and_out_of_it_once(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    bk.create_log(log, transactional=True)
    landing, target = tmp_path / "landing", str(tmp_path / "out")
    landing.mkdir()
    plan = ExportPlan(target, "json", parse_schema("id BIGINT"))

    def move(ids: range) -> tuple[int, int]:
        if ids:
            lines = [f'{{"id": {number}}}' for number in ids]
            (landing / f"{ids.start}.txt").write_text("\n".join(lines) + "\n")
        written = ingest_files(
            spark,
            uri,
            str(landing),
            log,
            file_format="text",
            checkpoint=str(tmp_path / "ingested"),
        )
        read = export_log(spark, uri, log, plan, checkpoint=str(tmp_path / "exported"))
        return written, read

    def ids() -> list[int]:
        return sorted(row["id"] for row in spark.read.parquet(f"{target}/data").collect())

    assert move(range(100)) == (100, 100)
    assert ids() == list(range(100))
    assert move(range(0)) == (0, 0)
    (landing / "bad.txt").write_text("no json at all\n")
    assert move(range(100, 150)) == (51, 51)
    assert ids() == list(range(150))
    bad = spark.read.parquet(f"{target}/quarantine").collect()
    assert [bytes(row["value"]) for row in bad] == [b"no json at all"]
    rows = spark.read.parquet(f"{target}/data")
    assert sorted(row["_offset"] for row in rows.select("_offset").collect()) == sorted(
        set(range(151)) - {bad[0]["offset"]}
    )
