"""A task reads a large ledger in little memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bookie.sync import SyncBookKeeper

LEDGER_MB = 300
ENTRY = os.urandom(4096)
WORKER_MB_MAX = 400


def peak_megabytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: the most memory that its process ever had, after it has taken all."""
    for _ in batches:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    yield pa.RecordBatch.from_pydict({"megabytes": pa.array([peak], pa.int64())})


def test_a_worker_reads_a_large_ledger(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one task, so that the ledger is far larger than what it may keep."""
    with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        for _ in range(LEDGER_MB):
            writer.append_many([ENTRY] * 256)
    frame = (
        spark.read.format("bookkeeper")
        .option("metadata", uri)
        .option("ledgers", str(writer.ledger_id))
        .option("maxBytesPerPartition", "1g")
        .option("minPartitions", "1")
        .load()
    )
    # The source and this function share the process of the task.
    found = frame.mapInArrow(peak_megabytes, "megabytes long").collect()
    assert frame.count() == LEDGER_MB * 256
    with capsys.disabled():
        print(f"\na worker that reads {LEDGER_MB} MB had {found[0].megabytes} MB at most")
    assert found[0].megabytes < WORKER_MB_MAX
