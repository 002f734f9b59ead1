"""Migrate topics of Kafka into transactional logs; each record is published once.

Keys, values, headers and timestamps are kept. Three things in Kafka have no equivalent in a log:

=================== ===========================================================================
in Kafka            in the log
=================== ===========================================================================
a null value        by option: the run fails, the record is skipped, or its value is empty
a header's null     an empty value
headers of one name the second becomes ``NAME#2``, the third ``NAME#3``, and so on
=================== ===========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.env import SystemClock
from bookie.errors import BadRequestError, ConfigurationError
from bookie.spark.jobs.moving import (
    ON_BAD,
    SKIPPED,
    TOO_LARGE,
    Moved,
    MoveTarget,
    bounds_of,
    check_choice,
    claim_moves,
    first_of,
    judged,
    move_batch,
    run_moves,
    size_verdict,
)

KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"

TOMBSTONES = ("fail", "skip", "empty")

OFFSETS = "1000000"
"""The most records that a batch reads by default."""

TOMBSTONE, AHEAD, ROW = "tombstone", "ahead", "row"
"""Kinds of records that cannot be written without a change."""

_TAKEN = ("key", "value", "headers", "timestamp", "topic", "partition", "offset")

_OURS = ("kafka.bootstrap.servers", "subscribe", "includeheaders", "startingoffsets")

_HEADER_NAME_BYTES_MAX = _HEADERS_MAX = 2**16 - 1


@dataclass(frozen=True, slots=True)
class MigratePlan:
    """The topics, the target and the rules of a migration."""

    brokers: str
    """The addresses of Kafka's brokers, ``HOST:PORT,…``."""
    topics: str
    """The names of the topics, with commas between them."""
    keeps_partitions: bool = False
    """True if each record keeps its Kafka partition's number; the log must have that partition."""
    tombstones: str = "fail"
    """One of `TOMBSTONES`: the treatment of records whose value is null."""
    times_ahead: str = "fail"
    """One of `ON_BAD`: the treatment of records whose time is later than the log allows."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's source for Kafka, such as ``kafka.security.protocol``."""

    def validate(self) -> None:
        """Check the plan before anything is read.

        Raises:
            BadRequestError: a part of the plan is wrong.
        """
        check_choice("--tombstones", self.tombstones, TOMBSTONES)
        check_choice("--times-ahead", self.times_ahead, ON_BAD)
        for name in self.options:
            if name.lower() in _OURS:
                raise BadRequestError(f"migrate-from-kafka sets the option {name} by itself")


def migrate_from_kafka(spark: SparkSession, plan: MigratePlan, target: MoveTarget) -> Moved:
    """Write the new records of Kafka's topics to logs; offsets in a new log begin at 0.

    `spark` is a session with Spark's package for Kafka. If `target.log` is None, each topic goes to
    the log with the topic's name.

    Raises:
        ConfigurationError: Spark has no source for Kafka; the message names the package.
        BadRequestError: an argument is wrong, or the checkpoint belongs to another job or log;
            nothing was written.
    """
    plan.validate()
    target.validate()
    reader = (
        spark.readStream.format("kafka")
        .option("maxOffsetsPerTrigger", OFFSETS)
        .options(**plan.options)
        .option("kafka.bootstrap.servers", plan.brokers)
        .option("subscribe", plan.topics)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
    )
    try:
        frame = reader.load()
        _ = frame.schema  # Spark Connect looks for the source only now
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        raise ConfigurationError(
            f"Spark has no source for Kafka; add --conf spark.jars.packages={_package(spark)}"
        ) from error
    topics = [one.strip() for one in plan.topics.split(",") if one.strip()]
    names = topics if target.log is None else [target.log]
    claim_moves(spark, "migrate-from-kafka", names, target)
    rows = frame.select(*_TAKEN)
    return run_moves(rows, lambda some, batch: migrate_batch(some, batch, plan, target), target)


def _package(spark: SparkSession) -> str:
    return KAFKA_PACKAGE.format(scala="2.13", version=spark.version)


def migrate_batch(records: DataFrame, batch: int, plan: MigratePlan, target: MoveTarget) -> None:
    """Write a batch of records, which have the columns of Spark's source for Kafka.

    Raises:
        BadRequestError: a record cannot be written, and the settings neither skip it nor put it
            into quarantine.
    """
    move_batch(records_of(records, plan, target), batch, target, _fatal(plan, target))


def _fatal(plan: MigratePlan, target: MoveTarget) -> dict[str, str]:
    found = {}
    if plan.tombstones == "fail":
        found[TOMBSTONE] = (
            "--tombstones skip leaves such records out, and --tombstones empty gives them an empty "
            "value"
        )
    if target.too_large != "quarantine":
        found[TOO_LARGE] = "--too-large quarantine sets such records aside"
    if plan.times_ahead != "quarantine":
        found[AHEAD] = (
            "--times-ahead quarantine sets such records aside, and ahead_seconds in the log's "
            "policy allows them"
        )
    return found


def records_of(records: DataFrame, plan: MigratePlan, target: MoveTarget) -> DataFrame:
    """Return the records in the form of `bookie.spark.jobs.moving.judged`."""
    topics = [one.strip() for one in plan.topics.split(",") if one.strip()]
    to = {topic: target.log or topic for topic in topics}
    bounds = bounds_of(target, sorted(set(to.values())))
    now_ms = SystemClock().now_ms()
    latest = {
        topic: now_ms + 1000 * bounds[log].ahead_seconds if bounds[log].ahead_seconds else None
        for topic, log in to.items()
    }
    row = {
        "value": F.coalesce("value", F.lit(b"")),
        "key": F.col("key"),
        "headers": F.col("_headers"),
        "timestamp": F.col("timestamp"),
    }
    if target.log is None:
        row["log"] = F.col("topic")
    if plan.keeps_partitions:
        row["partition"] = F.col("partition")
    sizes = _by_topic({topic: bounds[log].size_bytes_max for topic, log in to.items()})
    verdicts = {
        ROW: _header_verdict(row["headers"]),
        TOO_LARGE: size_verdict(row, sizes, may_be_late=True),
        AHEAD: _ahead_verdict(_by_topic(latest)),
    }
    is_null = F.when(F.col("value").isNull(), F.lit("the value is null, which is a tombstone"))
    if plan.tombstones != "empty":
        verdicts = {SKIPPED if plan.tombstones == "skip" else TOMBSTONE: is_null, **verdicts}
    place = F.concat(
        F.lit("topic "), F.col("topic"),
        F.lit(", partition "), F.col("partition").cast("string"),
        F.lit(", offset "), F.col("offset").cast("string"),
    )  # fmt: skip
    records = records.withColumn("_headers", distinct_headers(F.col("headers")))
    return judged(records, row, {name: F.col(name) for name in _TAKEN}, place, verdicts)


def _by_topic(values: Mapping[str, int | None]) -> Column:
    """Return a column that has, for each row, the item of `values` for the row's topic."""
    if len(set(values.values())) == 1:
        return F.lit(next(iter(values.values()))).cast("bigint")
    found = [F.when(F.col("topic") == topic, F.lit(one)) for topic, one in values.items()]
    return F.coalesce(*found).cast("bigint")


def _ahead_verdict(latest_ms: Column) -> Column:
    """Return the reason why a record's time is refused; null if the time is allowed.

    If `latest_ms` is null, every time is allowed.
    """
    at_ms = F.unix_millis("timestamp")
    says = F.concat(
        F.lit("the time "),
        at_ms.cast("string"),
        F.lit(" ms is further ahead than the log allows"),
    )
    return F.when(at_ms > latest_ms, says)


def distinct_headers(headers: Column) -> Column:
    """Return the headers: null values become empty values, and repeated names get a number.

    A second header ``NAME`` becomes ``NAME#2``, and so on. If a header is already called
    ``NAME#2``, two names are equal, and the record is bad.
    """

    def renamed(header: Column, at: Column) -> Column:
        before = F.slice(headers, 1, at + 1)
        count = F.size(F.filter(before, lambda one: one["key"] == header["key"]))
        number = F.when(count > 1, F.concat(F.lit("#"), count.cast("string"))).otherwise(F.lit(""))
        return F.struct(
            F.concat(header["key"], number).alias("key"),
            F.coalesce(header["value"], F.lit(b"")).alias("value"),
        )

    return F.transform(headers, renamed)


def _header_verdict(headers: Column) -> Column:
    names = F.transform(headers, lambda one: one["key"])
    longest = F.array_max(F.transform(headers, lambda one: F.octet_length(one["key"])))
    return first_of(
        F.when(
            F.size(F.array_distinct(names)) < F.size(names),
            F.lit("two headers have one name, also with a number behind it"),
        ),
        F.when(
            longest > _HEADER_NAME_BYTES_MAX,
            F.lit(f"the name of a header has more than {_HEADER_NAME_BYTES_MAX} bytes"),
        ),
        F.when(
            F.size(headers) > _HEADERS_MAX, F.lit(f"there are more than {_HEADERS_MAX} headers")
        ),
    )
