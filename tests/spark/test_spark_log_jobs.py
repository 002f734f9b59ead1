"""Files into a log, and the log into files, each row once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.cli.app import run
from bookie.spark.jobs.export import ExportPlan, export_log, parse_schema
from bookie.spark.jobs.ingest import ingest_files
from bookie.spark.jobs.ingest_plan import IngestPlan
from bookie.spark.jobs.moving import MoveTarget
from bookie.spark.session import plain_error
from bookie.sync import SyncBookKeeper


def test_the_command_line_says_what_was_set_aside(
    spark: SparkSession,
    uri: str,
    bk: SyncBookKeeper,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        try:
            yield spark
        except PySparkException as error:
            raise (plain_error(error) or error) from error

    monkeypatch.setattr("bookie.cli.spark.spark_session", session)
    landing, aside, lake = (str(tmp_path / name) for name in ("landing", "aside", "lake"))
    Path(landing).mkdir()
    (Path(landing) / "a.csv").write_text("name;id\na;1\nb;x\nc;3\n")
    (Path(landing) / "b.csv").write_text("name;number\na;1\n")
    words = ["spark", "ingest", landing, log, "--metadata", uri, "--output", "json"]
    words += ["--checkpoint", str(tmp_path / "in"), "--format", "csv", "--option", "sep=;"]
    words += ["--schema", "id INT, name STRING", "--create", "--partitions", "2", "--key", "name"]
    words += ["--quarantine", aside, "--max-bytes-per-trigger", "1KiB"]
    assert run(words) == 1
    says = "b.csv: the schema has no column number and the file has no column id; --header-check"
    assert says in capsys.readouterr().err
    assert run([*words, "--header-check", "quarantine"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "rows": 2, "quarantined": 2, "skipped": 0, "quarantine": aside
    }  # fmt: skip
    assert f"2 rows are in {aside}; the column reason says why" in told.err
    assert bk.publisher(log).definition().partitions == 2
    assert {(one.key, one.value) for one in bk.read_log(log)} == {
        (b"a", b'{"name":"a","id":1}'),
        (b"c", b'{"name":"c","id":3}'),
    }
    export = ["spark", "export", log, lake, "--metadata", uri, "--output", "json"]
    export += ["--checkpoint", str(tmp_path / "out"), "--value-format", "json"]
    assert run([*export, "--schema", "id INT, name INT"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "rows": 2, "quarantined": 2, "quarantine": f"{lake}/quarantine"
    }  # fmt: skip
    assert f"2 rows are in {lake}/quarantine; the column reason says why" in told.err


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
        to = MoveTarget(uri, log, str(tmp_path / "ingested"))
        written = ingest_files(spark, IngestPlan(str(landing), "text"), to).rows
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
