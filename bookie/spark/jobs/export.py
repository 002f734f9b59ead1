"""Export the records of a log as Parquet; each run exports only new records.

A checkpoint keeps the progress of the export. Each run exports the records that were appended since
the last run, in batches, and then ends. The batch N is written below ``data/batch=N``. A repeated
batch replaces this directory, so every record is exported exactly once, even after an interrupted
run. All runs of an export must use the same log, checkpoint and target: see
`bookie.spark.jobs.export_target`.

The format of the values decides the columns of the export. Rows whose value does not fit the schema
are written below ``quarantine``, with all columns of the log and the original bytes of the value.
The additional column ``reason`` of these rows says why the value does not fit.

====== ====================================================================================
format columns
====== ====================================================================================
bytes  the source's columns; the value stays bytes
json   the schema's columns, and `ORIGIN` as ``_log``, ``_partition``, …
csv    as for json
====== ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)
from pyspark.sql.types import StringType, StructField, StructType

from bookie.errors import BadRequestError
from bookie.log.catalog.logs import LogName
from bookie.spark.columns import LOG_COLUMNS
from bookie.spark.connecting import SparkConnection
from bookie.spark.jobs.export_target import claim_target
from bookie.spark.jobs.marks import new_mark
from bookie.spark.jobs.reasons import (
    CORRUPT,
    csv_misfit,
    csv_texts,
    ddl,
    json_misfit,
    json_parts,
    require_flat,
)
from bookie.spark.lag import rows_read

VALUE_FORMATS = ("bytes", "json", "csv")

ORIGIN = ("log", "partition", "offset", "timestamp", "key")
"""Columns of the source that are written beside the parsed columns, with a leading underscore."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The columns, format and target of an export."""

    target: str
    """The directory that holds ``data`` and ``quarantine``, in any file system that Spark knows."""
    value_format: str = "bytes"
    schema: StructType | None = None
    partition_by: tuple[str, ...] = ()

    def validate(self) -> None:
        """Check the plan before anything is read.

        Raises:
            BadRequestError: a part of the plan is missing or contradicts another part.
        """
        if self.value_format not in VALUE_FORMATS:
            raise BadRequestError(f"values are {', '.join(VALUE_FORMATS)}, not {self.value_format}")
        if (self.schema is None) != (self.value_format == "bytes"):
            raise BadRequestError("json and csv need a schema, and bytes take none")
        if self.schema is None:
            names = [name for name in LOG_COLUMNS if name != "headers"]
        else:
            names = _checked_names(self.schema)
        if self.schema is not None and self.value_format == "csv":
            require_flat(self.schema)
        known = {name.lower() for name in names}
        for name in self.partition_by:
            if name.lower() not in known:
                raise BadRequestError(
                    f"the export has no column {name} to partition by; it has {', '.join(names)}"
                )


def _checked_names(schema: StructType) -> list[str]:
    """Return the names of the columns that an export with this schema writes.

    Raises:
        BadRequestError: two columns would have one name. Spark ignores the case of names.
    """
    origin = [f"_{name}" for name in ORIGIN]
    taken = {CORRUPT, *origin}
    for name in schema.names:
        if name.lower() in (CORRUPT, *origin):
            raise BadRequestError(f"the schema may not have a column {name}: exports use this name")
        if name.lower() in taken:
            raise BadRequestError(f"the schema has two columns {name}; rename one")
        taken.add(name.lower())
    return [*schema.names, *origin]


def export_log(
    spark: SparkSession,
    metadata: str,
    log: str,
    plan: ExportPlan,
    *,
    checkpoint: str,
    password_file: str | None = None,
    takes_over: bool = False,
) -> int:
    """Export the new records of a log; return the number of records, see `rows_read`.

    After the first run, the target, the checkpoint and the log can only be used together.

    Args:
        spark: the session.
        metadata: the URI of the metadata store, as the executors reach it.
        log: the log's name.
        plan: the columns, format and target.
        checkpoint: a directory that belongs to this export alone.
        password_file: a file on every machine that holds the password of the log's ledgers.
        takes_over: True to use a target without a mark with a checkpoint that was used before.

    Raises:
        BadRequestError: the target or the checkpoint belongs to another export; nothing was
            written.
        NoSuchLogError: there is no such log.
    """
    plan.validate()
    connection = SparkConnection(metadata, password_file or "")
    found = connection.client().survey_log(log, password=connection.password())
    logs = {str(LogName.parse(log)): found.definition.log_id}
    claim_target(spark, new_mark("export", plan.target, checkpoint, logs), takes_over=takes_over)
    reader = spark.readStream.format("bookkeeper").option("metadata", metadata).option("log", log)
    if password_file is not None:
        reader = reader.option("passwordFile", password_file)
    query = (
        reader.option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(lambda frame, batch: write_batch(frame, batch, plan))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows_read(query)


def quarantined_rows(spark: SparkSession, target: str) -> int:
    """Return the number of rows in the quarantine of the exports into `target`."""
    try:
        return spark.read.parquet(quarantine_of(target)).count()
    except AnalysisException:
        return 0  # no export has put a row into quarantine


def quarantine_of(target: str) -> str:
    """Return the quarantine directory of the exports into `target`."""
    return f"{target}/quarantine"


def parse_schema(text: str) -> StructType:
    """Parse a schema such as ``id BIGINT, name STRING``; a Spark session must exist.

    Raises:
        BadRequestError: Spark cannot parse the text.
    """
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise BadRequestError(f"the schema {text!r} is no list of columns: {reason}") from error
    assert isinstance(schema, StructType)
    return schema


def write_batch(frame: DataFrame, batch: int, plan: ExportPlan) -> None:
    """Write one batch; replace the files of an earlier attempt of the same batch."""
    if plan.value_format == "bytes":
        _write(frame, f"{plan.target}/data/batch={batch}", plan.partition_by)
        return
    parsed = frame.withColumn("_parsed", _parse(plan)).persist()
    bad = F.col("_parsed").isNull() | F.col(f"_parsed.{CORRUPT}").isNotNull()
    origin = [F.col(name).alias(f"_{name}") for name in ORIGIN if name in frame.columns]
    good = parsed.where(~bad).select("_parsed.*", *origin).drop(CORRUPT)
    _write(good, f"{plan.target}/data/batch={batch}", plan.partition_by)
    aside = _with_reasons(parsed.where(bad), plan).drop("_parsed", "_texts")
    # An empty quarantine replaces the rows that an earlier attempt of the batch has left.
    _write(aside, f"{quarantine_of(plan.target)}/batch={batch}", ())
    parsed.unpersist()


def _with_reasons(bad: DataFrame, plan: ExportPlan) -> DataFrame:
    """Return the bad rows with an additional column ``reason``."""
    assert plan.schema is not None
    text, parsed, texts = F.col("value").cast("string"), F.col("_parsed"), F.col("_texts")
    if plan.value_format == "json":
        bad = bad.withColumn("_texts", json_parts(text, plan.schema, {})[1])
        reason = json_misfit(text, parsed, texts, plan.schema)
    else:
        fields = plan.schema.fields
        bad = bad.withColumn("_texts", csv_texts(text, fields, {}))
        reason = csv_misfit(text, texts, fields, parsed.getField)
    return bad.withColumn("reason", F.coalesce(reason, F.lit("the value is null")))


def _parse(plan: ExportPlan) -> Column:
    assert plan.schema is not None
    schema = StructType([*plan.schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.col("value").cast("string")
    if plan.value_format == "json":
        return F.from_json(text, schema, options)
    return F.from_csv(text, ddl(schema.fields), options)


def _write(frame: DataFrame, path: str, partition_by: Sequence[str]) -> None:
    writer = frame.write.mode("overwrite")
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(path)
