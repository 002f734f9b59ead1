"""Ingest: files, or topics of Kafka, into a transactional log, each record once.

A checkpoint keeps which files, or which offsets, were written. Each run writes what is new, as
batches, and ends. The sink publishes a batch once, however often Spark repeats it.

A checkpoint belongs to the logs that it has written to. For another log, or one that was made anew,
it would leave out what it wrote before. So the checkpoint has a mark, as
`bookie.spark.jobs.marks` says.
Older versions wrote none. Then a log knows the query that has published to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the field's name for it)

from bookie.cluster.logs import LogName
from bookie.errors import BadRequestError, ConfigurationError
from bookie.spark.connecting import SparkConnection
from bookie.spark.jobs.marks import JobMark, claim_checkpoint, new_mark, read_progress
from bookie.spark.jobs.small_files import small_files
from bookie.spark.lag import rows_read
from bookie.spark.sink_task import find_log

FILE_FORMATS = ("text", "json", "csv", "parquet", "binaryFile")

KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"

KAFKA_COLUMNS = ("key", "value", "headers", "timestamp")


def ingest_files(
    spark: SparkSession,
    metadata: str,
    files: str,
    log: str,
    *,
    file_format: str,
    checkpoint: str,
    key: str | None = None,
    create: bool = False,
    takes_over: bool = False,
) -> int:
    """Write what is new in a directory of files to a log; returns the number of rows.

    Lines of text and whole binary files become values as they are. A row of another format becomes
    a JSON object.

    Args:
        spark: the session.
        metadata: the URI of the metadata store, as the executors reach it.
        files: a directory or pattern of any file system that Spark knows.
        log: the log's name.
        file_format: one of `FILE_FORMATS`.
        checkpoint: a directory that belongs to this ingest alone.
        key: a column whose text is the key.
        create: make the log if it does not exist.
        takes_over: go on with a checkpoint that was used for another log, or a former one.

    Raises:
        BadRequestError: an argument is wrong, or the checkpoint belongs to another job or log;
            nothing was written.
    """
    if file_format not in FILE_FORMATS:
        raise BadRequestError(f"files are {', '.join(FILE_FORMATS)}, not {file_format}")
    options = {"header": "true"} if file_format == "csv" else {}
    # A stream of files takes no guesses: the columns are those of the files that are there now.
    schema = spark.read.format(file_format).options(**options).load(files).schema
    reader = spark.readStream.format(file_format).options(**options).schema(schema)
    rows = rows_of(reader.load(files), file_format, key)
    mark = new_mark("ingest", log, checkpoint, _find_logs(metadata, [log], create=create))
    _claim(spark, metadata, mark, takes_over=takes_over)
    return write_new(rows, metadata, log, checkpoint=checkpoint, create=create)


def rows_of(frame: DataFrame, file_format: str, key: str | None) -> DataFrame:
    """Key and value of each row.

    Raises:
        BadRequestError: there is no such column.
    """
    if key is not None and key not in frame.columns:
        raise BadRequestError(f"there is no column {key}; there are {', '.join(frame.columns)}")
    value = F.to_json(F.struct("*"))
    if file_format == "text":
        value = F.col("value")
    elif file_format == "binaryFile":
        value = F.col("content")
    columns = [value.cast("binary").alias("value")]
    if key is not None:
        columns.append(F.col(key).cast("string").cast("binary").alias("key"))
    return frame.select(*columns)


def migrate_from_kafka(
    spark: SparkSession,
    metadata: str,
    brokers: str,
    topics: str,
    log: str | None,
    *,
    checkpoint: str,
    keeps_partitions: bool = False,
    create: bool = False,
    takes_over: bool = False,
) -> int:
    """Write what is new in topics of Kafka to logs; returns the number of records.

    Keys, values, headers and timestamps are kept. Offsets begin at 0 in the log.

    Args:
        spark: the session, with Kafka's package.
        metadata: the URI of the metadata store, as the executors reach it.
        brokers: ``HOST:PORT,…``.
        topics: names with commas between them.
        log: where all go; None gives each topic a log of its name.
        checkpoint: a directory that belongs to this migration alone.
        keeps_partitions: a record keeps the number of its partition, which the log must have.
        create: make logs that do not exist.
        takes_over: go on with a checkpoint that was used for other logs, or former ones.

    Raises:
        BadRequestError: the checkpoint belongs to another job or log; nothing was written.
        ConfigurationError: Spark has no source for Kafka; the message names the package.
    """
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
    )
    try:
        frame = reader.load()
        _ = frame.schema  # Connect looks for the source only now
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        raise ConfigurationError(
            f"Spark has no source for Kafka; add --conf spark.jars.packages={_package(spark)}"
        ) from error
    names = [one.strip() for one in topics.split(",") if one.strip()] if log is None else [log]
    logs = _find_logs(metadata, names, create=create)
    _claim(
        spark,
        metadata,
        new_mark("migrate-from-kafka", log or "", checkpoint, logs),
        takes_over=takes_over,
    )
    columns = [*KAFKA_COLUMNS, *(["topic"] if log is None else [])]
    rows = frame.select(*columns, *(["partition"] if keeps_partitions else []))
    return write_new(rows, metadata, log, checkpoint=checkpoint, create=create)


def write_new(
    rows: DataFrame, metadata: str, log: str | None, *, checkpoint: str, create: bool
) -> int:
    """Write a stream's rows up to now; returns how many there were."""
    writer = rows.writeStream.format("bookkeeper").option("metadata", metadata)
    if log is not None:
        writer = writer.option("log", log)
    query = (
        writer.option("createLog", str(create).lower())
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows_read(query)


def _find_logs(metadata: str, names: Sequence[str], *, create: bool) -> dict[str, str]:
    """By log: its id; made if it is missing and `create` says so.

    Raises:
        NoSuchLogError, BadRequestError: what `find_log` raises.
    """
    client = SparkConnection(metadata).client()
    return {
        str(LogName.parse(name)): find_log(client, name, creates=create).log_id for name in names
    }


def _claim(spark: SparkSession, metadata: str, mark: JobMark, *, takes_over: bool) -> None:
    """Mark the checkpoint, or see that it is marked for this job.

    Raises:
        BadRequestError: it belongs to another one.
    """
    files, client = small_files(spark), SparkConnection(metadata).client()
    progress = read_progress(files, mark.checkpoint)
    query = progress.query_id
    is_proven = query is None or progress.last_commit < 0
    if query is not None and not is_proven:
        is_proven = any(client.publisher(log).last_batch(query) >= 0 for log in mark.logs)
    claim_checkpoint(files, mark, is_proven=is_proven, takes_over=takes_over)


def _package(spark: SparkSession) -> str:
    return KAFKA_PACKAGE.format(scala="2.13", version=spark.version)
