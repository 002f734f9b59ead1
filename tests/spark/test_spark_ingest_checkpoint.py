"""The checkpoint of an ingest belongs to its log; for another one it would leave records out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.errors import BadRequestError
from bookie.spark.jobs.export import ExportPlan, export_log
from bookie.spark.jobs.ingest import ingest_files
from bookie.spark.jobs.ingest_plan import IngestPlan
from bookie.spark.jobs.moving import MoveTarget
from bookie.sync import SyncBookKeeper


def test_a_checkpoint_of_an_ingest_belongs_to_its_log(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()

    def ingest(to: str, lines: str, *, checkpoint: str = "checkpoint", takes: bool = False) -> int:
        (landing / f"{len(list(landing.iterdir()))}.txt").write_text(lines)
        target = MoveTarget(uri, to, str(tmp_path / checkpoint), create=True, takes_over=takes)
        return ingest_files(spark, IngestPlan(str(landing), "text"), target).rows

    def count(name: str) -> int:
        return len(list(bk.read_log(name)))

    a, b = f"{log}-a", f"{log}-b"
    assert ingest(a, "1\n2\n3\n") == 3
    # An older version has left no mark: the log knows the query that has published to it.
    shutil.rmtree(tmp_path / "checkpoint" / "_bookie")
    with pytest.raises(BadRequestError, match=f"did not write to the log {b}; give the job a new"):
        ingest(b, "4\n")
    assert ingest(a, "5\n") == 2
    with pytest.raises(BadRequestError, match=f"belongs to the log {a}; give the log {b} a new"):
        ingest(b, "6\n")
    plan = ExportPlan(str(tmp_path / "out"))
    with pytest.raises(BadRequestError, match="belongs to bookie spark ingest; give bookie spark"):
        export_log(spark, uri, a, plan, checkpoint=str(tmp_path / "checkpoint"))
    assert (count(a), count(b)) == (5, 0)
    bk.delete_log(a)
    with pytest.raises(BadRequestError, match=f"{a} was deleted and made anew since .* was used"):
        ingest(a, "7\n")
    assert count(a) == 0
    assert ingest(a, "8\n", takes=True) == 3  # what came since the last run
    assert ingest(a, "9\n") == 1
    assert count(a) == 4
    assert ingest(b, "", checkpoint="other") == 9
