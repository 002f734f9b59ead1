"""The common part of ingest and migrate: publish each row once, or put it into quarantine.

`run_moves` runs batches until all rows that the stream has at the start are moved. For each batch,
the job's function uses `judged` to mark each row as good or bad, with a reason. Then `move_batch`
does these steps in order:

1. Count the rows of each kind. If there is a row of a fatal kind, fail the run before anything is
    written.
2. Write the bad rows below ``QUARANTINE/batch=N``. A repeated batch replaces these rows.
3. Publish the good rows under the query's id and the batch's number. The log drops a second
   publication with the same id and number.
4. Write the numbers of good, bad and skipped rows to a small file in the directory
   ``CHECKPOINT/moved/batch=N``. If Spark's own reader and writer of JSON handled these files, each
   run would need three more Spark jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.errors import BadRequestError
from bookie.log.catalog.logs import LogName
from bookie.log.publish.publisher import PARTITIONS_TOUCHED_MAX, RecordBounds
from bookie.spark.connecting import SparkConnection
from bookie.spark.jobs.marks import claim_checkpoint, new_mark, read_progress
from bookie.spark.jobs.small_files import small_files
from bookie.spark.sink_task import find_log

TASKS_MAX = 32
"""The largest number of tasks that write a batch. Each task makes one range in each partition to
which it writes."""

PLAIN_HEADER_BYTES = 16
LATE_BYTES = 8
HEADERS_BYTES, HEADER_BYTES = 4, 6
"""Bytes of a record besides its key, headers and value (`bookie.log.record.log_record`)."""

OURS = "__bookie_"
"""The prefix of temporary columns, which are in one frame with the columns of files."""

SKIPPED = "skipped"
"""The kind of rows that are only counted: neither published nor put into quarantine."""
TOO_LARGE = "too large"
"""The kind of rows that are too large for a record."""

ON_BAD = ("fail", "quarantine")
"""The choices for a kind of bad rows."""


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """The logs to which a job writes rows, and the settings of these writes."""

    metadata: str
    """The URI of the metadata store, as the executors reach it."""
    log: str | None
    """The log of all rows; None if the rows have a column ``log``."""
    checkpoint: str
    """The checkpoint directory, which belongs to this job alone."""
    create: bool = False
    partitions: int | None = None
    """The number of partitions of a created log; if None, the log's policy decides the number."""
    quarantine: str | None = None
    """The directory for bad rows; None means a directory below the checkpoint."""
    too_large: str = "fail"
    """One of `ON_BAD`: the treatment of rows that are too large for a record."""
    takes_over: bool = False
    """True to accept a checkpoint that has no mark, or whose log was deleted and made again."""

    @property
    def aside(self) -> str:
        return self.quarantine or f"{self.checkpoint.rstrip('/')}/quarantine"

    def validate(self) -> None:
        """Check the target before anything is read.

        Raises:
            BadRequestError: a part of the target is wrong.
        """
        check_choice("--too-large", self.too_large, ON_BAD)
        if self.partitions is not None and not self.create:
            raise BadRequestError("--partitions is for a log that is made; add --create")
        if self.partitions is not None and not 1 <= self.partitions <= PARTITIONS_TOUCHED_MAX:
            raise BadRequestError(
                f"--partitions is 1 to {PARTITIONS_TOUCHED_MAX}, not {self.partitions}"
            )


@dataclass(frozen=True, slots=True)
class Moved:
    """The outcome of a run; the numbers are sums over the batches that Spark remembers."""

    rows: int
    quarantined: int = 0
    skipped: int = 0
    """The number of rows that, by the plan, were neither published nor put into quarantine."""
    quarantine: str = ""
    """The quarantine directory."""


def check_choice(option: str, given: str, choices: tuple[str, ...]) -> None:
    """Check that the value `given` of an option is one of `choices`.

    Raises:
        BadRequestError: `given` is none of the choices.
    """
    if given not in choices:
        raise BadRequestError(f"{option} is one of {', '.join(choices)}, not {given!r}")


def quoted(name: str) -> Column:
    """Return the column with exactly this name, which may contain dots."""
    return F.col(f"`{name.replace('`', '``')}`")


def first_of(*reasons: Column) -> Column:
    """Return the first of the reasons that is not null."""
    return F.coalesce(*reasons, F.lit(None).cast("string"))


def judged(
    frame: DataFrame,
    row: Mapping[str, Column],
    aside: Mapping[str, Column],
    place: Column,
    verdicts: Mapping[str, Column],
) -> DataFrame:
    """Return the rows with a verdict for each row: good, or bad with a kind and a reason.

    Args:
        frame: the rows.
        row: the columns of the sink, for good rows.
        aside: the columns of the quarantine, for bad rows.
        place: the text that names a row in error messages.
        verdicts: for each kind of bad rows, the reason why a row is of this kind, or null. The
            first reason that is not null counts.
    """
    kinds = [F.when(reason.isNotNull(), F.lit(kind)) for kind, reason in verdicts.items()]
    kind, reason = f"{OURS}kind", f"{OURS}reason"
    frame = frame.withColumns({kind: first_of(*kinds), reason: first_of(*verdicts.values())})
    is_good = F.col(kind).isNull()
    good = F.struct(*(one.alias(name) for name, one in row.items()))
    bad = F.struct(*(one.alias(name) for name, one in aside.items()))
    return frame.select(
        F.col(kind).alias("_kind"),
        F.col(reason).alias("_reason"),
        place.alias("_place"),
        F.when(is_good, good).alias("_row"),
        F.when(~is_good, bad).alias("_aside"),
    )


def size_verdict(row: Mapping[str, Column], size_bytes_max: Column, *, may_be_late: bool) -> Column:
    """Return a reason if a row is too large for a record; null if the row is small enough.

    Args:
        row: the columns of the sink.
        size_bytes_max: the largest size of a record.
        may_be_late: True if the rows have timestamps; a record then needs up to `LATE_BYTES` more
            bytes.
    """
    fixed = PLAIN_HEADER_BYTES + (LATE_BYTES if may_be_late else 0)
    size = F.lit(fixed) + F.coalesce(F.length(row["value"]), F.lit(0))
    if "key" in row:
        size += F.coalesce(F.length(row["key"]), F.lit(0))
    if "headers" in row:
        headers = F.aggregate(
            row["headers"],
            F.lit(HEADERS_BYTES),
            lambda so_far, one: (
                so_far + F.lit(HEADER_BYTES) + F.octet_length(one["key"]) + F.length(one["value"])
            ),
        )
        size += F.when(F.size(row["headers"]) > 0, headers).otherwise(F.lit(0))
    says = F.concat(
        F.lit("the record has "),
        size.cast("string"),
        F.lit(" bytes with key and headers, and the most is "),
        size_bytes_max.cast("string"),
    )
    return F.when(size > size_bytes_max, says)


def claim_moves(spark: SparkSession, job: str, names: Sequence[str], target: MoveTarget) -> None:
    """Mark the checkpoint of a job that writes to these logs, or check the checkpoint's mark.

    A checkpoint belongs to the logs to which its job has written. If a job used the checkpoint for
    another log, or for a log that was created again, that log would lack rows
    (`bookie.spark.jobs.marks`).
    Older versions wrote no mark. A checkpoint without a mark is accepted if its query has finished
    no batch, or has published to one of the logs. Missing logs are created if `target.create` is
    set.

    Raises:
        NoSuchLogError, BadRequestError: a log is missing, or is not a log to which jobs can write.
        BadRequestError: the checkpoint belongs to another job or log.
    """
    client = SparkConnection(target.metadata).client()
    logs = {
        str(LogName.parse(name)): find_log(
            client, name, creates=target.create, partitions=target.partitions
        ).log_id
        for name in names
    }
    mark = new_mark(job, target.log or "", target.checkpoint, logs)
    files = small_files(spark)
    progress = read_progress(files, mark.checkpoint)
    query = progress.query_id
    is_proven = query is None or progress.last_commit < 0
    if query is not None and not is_proven:
        is_proven = any(client.publisher(log).last_batch(query) >= 0 for log in mark.logs)
    claim_checkpoint(files, mark, is_proven=is_proven, takes_over=target.takes_over)


def bounds_of(target: MoveTarget, logs: list[str]) -> dict[str, RecordBounds]:
    """Return the limits on the records of each of these logs.

    Call this function in the driver, not in a task.
    """
    client = SparkConnection(target.metadata).client()
    return {log: client.publisher(log).bounds() for log in logs}


def run_moves(
    frame: DataFrame, move: Callable[[DataFrame, int], None], target: MoveTarget
) -> Moved:
    """Run batches until all rows that the stream has at the start are moved.

    For each batch, the function calls `move` with the batch's rows and number.
    """
    query = (
        frame.writeStream.foreachBatch(move)
        .option("checkpointLocation", target.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = sorted({one.batchId for one in query.recentProgress if one.numInputRows})
    if not batches:
        return Moved(0, quarantine=target.aside)
    files = small_files(frame.sparkSession)
    notes = [json.loads(text) for text in files.texts_of([_note(target, one) for one in batches])]
    rows, quarantined, skipped = (sum(one[name] for one in notes) for name in _COUNTS)
    return Moved(rows, quarantined, skipped, target.aside)


_COUNTS = ("rows", "quarantined", "skipped")


def _note(target: MoveTarget, batch: int) -> str:
    return f"{target.checkpoint.rstrip('/')}/moved/batch={batch}"


def move_batch(rows: DataFrame, batch: int, target: MoveTarget, fatal: Mapping[str, str]) -> None:
    """Publish the good rows of a batch, and put the bad rows into quarantine.

    Args:
        rows: the result of `judged`.
        batch: the number of the batch.
        target: the logs and the quarantine.
        fatal: the kinds of rows that fail the run, each with advice for the user.

    Raises:
        BadRequestError: there is a row of a fatal kind; nothing was written.
    """
    rows = rows.persist()
    try:
        example = F.min(F.struct("_place", "_reason")).alias("example")
        counted = rows.groupBy("_kind").agg(F.count(F.lit(1)).alias("count"), example).collect()
        for one in counted:
            if one["_kind"] in fatal:
                place, reason = one["example"]
                raise BadRequestError(f"{place}: {reason}; {fatal[one['_kind']]}")
        counts = {one["_kind"]: int(one["count"]) for one in counted}
        good, skipped = counts.pop(None, 0), counts.pop(SKIPPED, 0)
        bad = sum(counts.values())
        _set_aside(rows, bad, f"{target.aside}/batch={batch}")
        if good:
            kept = rows.where(F.col("_kind").isNull()).select("_row.*")
            publish(kept.coalesce(TASKS_MAX), batch, target)
        note_batch(rows.sparkSession, batch, target, good, bad, skipped)
    finally:
        rows.unpersist()


def note_batch(
    spark: SparkSession,
    batch: int,
    target: MoveTarget,
    rows: int = 0,
    quarantined: int = 0,
    skipped: int = 0,
) -> None:
    """Write the counts of a batch to a file, from which `run_moves` reads the counts."""
    counts = dict(zip(_COUNTS, (rows, quarantined, skipped), strict=True))
    small_files(spark).write(_note(target, batch), json.dumps(counts), replaces=True)


def _set_aside(rows: DataFrame, count: int, path: str) -> None:
    if not count:
        try:
            _ = rows.sparkSession.read.parquet(path).schema
        except AnalysisException:
            return  # no earlier attempt has put rows into quarantine
    is_bad = F.col("_kind").isNotNull() & (F.col("_kind") != SKIPPED)
    bad = rows.where(is_bad).select("_aside.*", F.col("_reason").alias("reason"))
    bad.write.mode("overwrite").parquet(path)


def publish(rows: DataFrame, batch: int, target: MoveTarget) -> None:
    """Publish rows under the query's id; the log drops a batch that was published before."""
    options = {
        "metadata": target.metadata,
        "txnAppId": query_id(rows.sparkSession, target.checkpoint),
        "txnVersion": str(batch),
        "createLog": str(target.create).lower(),
    }
    if target.log is not None:
        options["log"] = target.log
    if target.partitions is not None:
        options["partitions"] = str(target.partitions)
    rows.write.format("bookkeeper").options(**options).mode("append").save()


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return Spark's id of the query of a checkpoint; batches are published under this id."""
    [text] = small_files(spark).texts(f"{checkpoint.rstrip('/')}/metadata").values()
    return str(json.loads(text)["id"])


def union(frames: list[DataFrame]) -> DataFrame:
    """Return the rows of all frames, which must have equal columns."""
    return reduce(DataFrame.union, frames)
