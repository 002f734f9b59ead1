"""A program that runs every job through a Spark Connect server, and prints what came out as JSON.

``python -m tests.spark.connect_jobs ADDRESS METADATA LOG LEDGER DIRECTORY``: the log is empty and
transactional, and a copy of the ledger is missing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.errors import BookieError
from bookie.spark.jobs.audit import audit
from bookie.spark.jobs.export import ExportPlan, export_log, parse_schema
from bookie.spark.jobs.ingest import ingest_files
from bookie.spark.jobs.ingest_plan import IngestPlan
from bookie.spark.jobs.migrate import MigratePlan, migrate_from_kafka
from bookie.spark.jobs.moving import MoveTarget
from bookie.spark.jobs.repair import repair
from bookie.spark.jobs.stats import stats
from bookie.spark.session import open_session, plain_error

ROWS = 50

STARTED_TOO_SLOWLY = "Timed out while waiting for the Python worker to connect back"
"""Spark waits for ten seconds."""


def refusal(error: Exception) -> str:
    """The sentence that the command line would print."""
    return str(error if isinstance(error, BookieError) else plain_error(error))


def export(spark: SparkSession, uri: str, log: str, plan: ExportPlan, checkpoint: str) -> int:
    """Export; again if a busy machine needs longer to start a Python than Spark waits for it."""
    while True:
        try:
            return export_log(spark, uri, log, plan, checkpoint=checkpoint)
        except PySparkException as error:
            if STARTED_TOO_SLOWLY not in str(error):
                raise


def main(address: str, uri: str, log: str, ledger: str, home: str) -> None:
    """All jobs, in one session."""
    directory = Path(home)
    found: dict[str, object] = {}
    try:
        open_session("test", address, {"spark.executor.memory": "1g"})
    except BookieError as error:
        found["static setting"] = str(error)
    spark = open_session("test", address, {"spark.sql.shuffle.partitions": "2"})
    landing = directory / "landing"
    landing.mkdir()
    (landing / "a.txt").write_text("".join(f'{{"id": {number}}}\n' for number in range(ROWS)))
    target = MoveTarget(uri, log, str(directory / "ingested"))
    found["ingested"] = ingest_files(spark, IngestPlan(str(landing), "json"), target).rows
    plan = ExportPlan(str(directory / "lake"), "json", parse_schema("id BIGINT"))
    found["exported"] = export(spark, uri, log, plan, str(directory / "exported"))
    ids = spark.read.parquet(f"{plan.target}/data").select("id").distinct()
    found["ids"] = ids.count()
    report = str(directory / "report")
    found["damaged"] = audit(spark, uri, report, ledgers=ledger).has_damage
    found["repaired"] = dict(repair(spark, uri, report).copies)
    found["damaged later"] = audit(spark, uri, report, ledgers=ledger).has_damage
    found["bookies"] = len(stats(spark, uri).bookies)
    try:
        target = MoveTarget(uri, log, str(directory / "k"))
        migrate_from_kafka(spark, MigratePlan("127.0.0.1:1", "topic"), target)
    except BookieError as error:
        found["kafka"] = str(error)
    try:
        spark.read.format("bookkeeper").options(metadata=uri, log="none").load().count()
    except PySparkException as error:
        found["no such log"] = refusal(error)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
