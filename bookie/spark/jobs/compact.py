"""Compact: join many small ledgers of a log into a few; records and offsets stay the same.

The driver chooses groups of consecutive small ranges. Each task copies one group into a new ledger.
Then the driver publishes all copies of a partition in one step and deletes the old ledgers. The
driver finishes a few partitions, with their deletions, before other partitions begin. After an
interruption, run the job again; see `bookie.log.compact.compaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from bookie.log.catalog.log_metadata import LogChunk, LogRange, decode_log_chunk, encode_log_chunk
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.compaction import CompactionGroup, CopiedGroup
from bookie.log.compact.plan import CompactionLimits
from bookie.spark.collecting import collected
from bookie.spark.connecting import SparkConnection
from bookie.spark.executors import cores

GROUPS = "number BIGINT, partition INT, logId STRING, ranges BINARY"
COPIES = "number BIGINT, copied BINARY, reason STRING"


@dataclass(frozen=True, slots=True)
class CompactionSummary:
    """The outcome of a compaction."""

    ledgers_before: int
    ledgers_after: int
    joined: int
    """The number of new ranges; each was made by joining several consecutive ranges."""
    copied_bytes: int
    """The payload bytes of the ranges that were joined."""
    overtaken: int
    """The number of groups that a truncation or another compaction changed before the join."""
    left: tuple[str, ...]
    """The reasons why other small ranges were not joined."""


def compact(
    spark: SparkSession,
    metadata: str,
    log: str,
    limits: CompactionLimits | None = None,
    *,
    password_file: str | None = None,
) -> CompactionSummary:
    """Compact each partition of a log separately.

    Args:
        spark: the session.
        metadata: the URI of the metadata store, as the executors reach it.
        log: the log's name.
        limits: decide which ranges are small enough to join; None for the defaults.
        password_file: a file on every machine that holds the password of the log's ledgers.

    Raises:
        BadRequestError: the limits are not valid.
        NoSuchLogError: there is no such log.
        MetadataError: the metadata store failed; compact again.
    """
    connection = SparkConnection(metadata, password_file or "")
    maintenance = connection.client().maintenance()
    plan = maintenance.plan_compaction(log, limits or CompactionLimits())
    left = list(plan.left.values())
    joined = copied_bytes = overtaken = 0
    for some in _rounds(list(plan.by_partition().items()), 4 * cores(spark)):
        groups = [group for _, of_partition in some for group in of_partition]
        copies = _copy(spark, connection, log, groups)
        for partition, _ in some:
            ours = [one for one in copies if one.group.partition == partition]
            done = maintenance.publish_compaction(partition, ours)
            joined += done.joined
            copied_bytes += done.size_bytes
            overtaken += done.overtaken
            left += done.failures
    ledgers = {one.ledger_id for _, one in maintenance.history(log)}
    return CompactionSummary(
        plan.ledgers, len(ledgers), joined, copied_bytes, overtaken, tuple(left)
    )


_Work = tuple[LogPartition, Sequence[CompactionGroup]]


def _rounds(work: Sequence[_Work], groups_min: int) -> Iterator[list[_Work]]:
    """Divide the partitions into rounds; only the last may have fewer than `groups_min` groups."""
    some: list[_Work] = []
    for one in work:
        some.append(one)
        if sum(len(groups) for _, groups in some) >= groups_min:
            yield some
            some = []
    if some:
        yield some


def _copy(
    spark: SparkSession, connection: SparkConnection, log: str, groups: Sequence[CompactionGroup]
) -> list[CopiedGroup]:
    """Copy each group in a separate task, and return one result for each group."""
    rows = [
        (at, one.partition.number, one.log_id, encode_log_chunk(LogChunk(0, one.ranges)))
        for at, one in enumerate(groups)
    ]
    frame = spark.createDataFrame(rows, GROUPS).repartition(len(rows))
    return [
        CopiedGroup(groups[row["number"]], _range_of(row["copied"]), row["reason"])
        for row in collected(frame.mapInArrow(_copying(connection, log), COPIES))
    ]


def _copying(
    connection: SparkConnection, log: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that each task runs; Spark sends this function to the executors."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        maintenance = connection.client().maintenance()
        for batch in batches:
            for row in batch.to_pylist():
                group = CompactionGroup(
                    LogPartition(LogName.parse(log), row["partition"]),
                    row["logId"],
                    decode_log_chunk(row["ranges"]).ranges,
                )
                copy = maintenance.copy_group(group, connection.password())
                after = None if copy.after is None else _bytes_of(copy.after)
                yield pa.RecordBatch.from_pydict(
                    {
                        "number": pa.array([row["number"]], pa.int64()),
                        "copied": pa.array([after], pa.binary()),
                        "reason": pa.array([copy.reason], pa.string()),
                    }
                )

    return run


def _bytes_of(one: LogRange) -> bytes:
    return encode_log_chunk(LogChunk(0, (one,)))


def _range_of(data: bytes | None) -> LogRange | None:
    return None if data is None else decode_log_chunk(bytes(data)).ranges[0]
