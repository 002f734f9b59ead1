"""Ingest files into a transactional log; each row is published once.

Spark's stream of files only finds new files, and its checkpoint records the found files. The job
itself reads the files of each batch (`bookie.spark.jobs.file_rows`), each file by its own header or
schema.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from bookie.spark.jobs.file_rows import rows_of_files
from bookie.spark.jobs.ingest_plan import HEADER, IngestPlan
from bookie.spark.jobs.moving import (
    TOO_LARGE,
    Moved,
    MoveTarget,
    bounds_of,
    claim_moves,
    move_batch,
    note_batch,
    run_moves,
)

FOUND = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
"""The columns of Spark's source of files. The job selects only the path, so no content is read."""


def ingest_files(spark: SparkSession, plan: IngestPlan, target: MoveTarget) -> Moved:
    """Write the new files of a directory to a log.

    A line of text, a binary file or a line of JSON becomes a record's value without a change. A row
    of CSV or Parquet becomes a JSON object.

    Raises:
        BadRequestError: an argument is wrong, or the checkpoint belongs to another job or log;
            nothing was written.
    """
    plan.validate()
    target.validate()
    assert target.log is not None, "all rows go to one log"
    claim_moves(spark, "ingest", [target.log], target)
    # Spark may call `ingest_batch` in another process than this process.
    found = spark.readStream.format("binaryFile").schema(FOUND).options(**plan.finding())
    frame = found.load(plan.files).select("path")
    return run_moves(frame, lambda rows, batch: ingest_batch(rows, batch, plan, target), target)


def ingest_batch(found: DataFrame, batch: int, plan: IngestPlan, target: MoveTarget) -> None:
    """Ingest the files of a batch, whose paths are in the column ``path``.

    Raises:
        BadRequestError: a file has wrong columns or a row is too large, and the settings do not put
            such rows into quarantine.
    """
    paths = [row["path"] for row in found.select("path").collect()]
    assert target.log is not None, "all rows go to one log"
    bounds = bounds_of(target, [target.log])[target.log]
    rows = rows_of_files(found.sparkSession, paths, plan, bounds.size_bytes_max)
    if rows is None:
        note_batch(found.sparkSession, batch, target)
        return
    fatal = {}
    if plan.header_check != "quarantine":
        fatal[HEADER] = "--header-check quarantine sets such rows aside"
    if target.too_large != "quarantine":
        fatal[TOO_LARGE] = "--too-large quarantine sets such rows aside"
    move_batch(rows, batch, target, fatal)
