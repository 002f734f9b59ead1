"""Declarative Pipelines: the example runs, and runs again, through a Spark Connect server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from bookie.sync import SyncBookKeeper
from tests.spark.programs import ROOT, run_program

PROJECT = ROOT / "examples" / "spark" / "pipelines"
TABLES = ("orders", "turnover")


@pytest.fixture
def _tables(spark: SparkSession) -> Iterator[None]:
    """The tables of the pipeline belong to all sessions of the server."""
    yield
    for table in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def _order(number: int) -> bytes:
    return json.dumps({"id": number, "shop": f"s{number % 3}", "price": number % 100}).encode()


@pytest.mark.usefixtures("_tables")
@pytest.mark.timeout(1800)
def test_each_run_takes_what_is_new(
    connect_address: str,
    spark: SparkSession,
    uri: str,
    bk: SyncBookKeeper,
    log: str,
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/bookie-pipeline" in text
    spec.write_text(text.replace("file:///tmp/bookie-pipeline", f"file://{tmp_path}/storage"))

    def run(first: int, last: int) -> None:
        """Write orders, and run what `spark-pipelines run` runs."""
        with bk.open_log(log) as writer:
            for number in range(first, last):
                writer.append(_order(number))
        run_program(
            *("-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)),
            SPARK_REMOTE=connect_address,
            BOOKIE_METADATA=uri,
            ORDERS_LOG=log,
        )

    for first, last in ((0, 100), (100, 150)):
        run(first, last)
        for table in TABLES:
            spark.catalog.refreshTable(table)  # another session has written their files
        assert sorted(row["id"] for row in spark.table("orders").collect()) == list(range(last))
        found = {row["shop"]: (row["orders"], row["turnover"]) for row in _turnover(spark)}
        assert found == {
            f"s{shop}": (
                len(range(shop, last, 3)),
                sum(number % 100 for number in range(shop, last, 3)),
            )
            for shop in range(3)
        }
        large = [json.loads(record.value) for record in bk.read_log(f"{log}-large")]
        assert sorted(one["id"] for one in large) == [
            number for number in range(last) if number % 100 >= 90
        ]


def _turnover(spark: SparkSession) -> list[Row]:
    return spark.table("turnover").collect()
