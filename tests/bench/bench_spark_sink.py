"""How fast Spark's sink is, beside what Spark can hand over and what the bookie takes.

    python -m tests.bench.bench_spark_sink [--megabytes 256] [--rounds 3] [--directory DIR]

Rows of one size come out of Spark by two tasks. `count` is a sink that only counts them: the
ceiling of the transport. `encode` makes records of them and drops them. `log` is the product's
sink: into a transactional log on one bookie, one copy. `writers` is two processes that write the
same records by `bookie.sync` without Spark: the ceiling of the storage. All share one machine and
take turns. Each figure is the median of its rounds; nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import bookie.sync
from bookie.api import LogPolicy
from bookie.log.catalog.log_metadata import NO_TIME_MS
from bookie.log.record.log_record import plain_prefix
from bookie.spark.sink_options import SinkColumns
from bookie.spark.sink_rows import encode_rows, read_rows
from bookie.sync import shared_client
from bookie.sync.loop_thread import Resident, this_process
from tests.bench.processes import served

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
TASKS = 2
LOG = "bench"
PIECE_ROWS = 1024


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task has seen."""

    rows: int


class CountingSink(DataSourceArrowWriter):
    """Counts, and makes records if it is asked to."""

    def __init__(self, encodes: bool) -> None:
        self.encodes = encodes

    def write(self, iterator: Iterator[Any]) -> Counted:
        rows = 0
        for batch in iterator:
            rows += batch.num_rows
            if self.encodes:
                for piece in read_rows(batch, SinkColumns(0)).pieces(PIECE_ROWS):
                    encode_rows(piece, 0, NO_TIME_MS)
        return Counted(rows)


class CountingSource(DataSource):
    """``format("counting")``."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> CountingSink:
        return CountingSink(self.options["encodes"] == "true")


def write_alone(uri: str, size: int, rows: int) -> None:
    """What one process without Spark does."""
    client = shared_client(uri)
    payloads = [plain_prefix(0) + os.urandom(size)] * PIECE_ROWS
    with client.open_range_writer(LOG, f"alone-{os.getpid()}") as writer:
        sent = [writer.append_encoded(payloads, 0) for _ in range(rows // PIECE_ROWS)]
        for one in sent:
            one.result()
        writer.cut()


def alone(uri: str, size: int, rows: int) -> float:
    """Rows a second of processes without Spark; their start does not count."""
    code = (
        "import sys, time; from tests.bench.bench_spark_sink import write_alone\n"
        f"write_alone({uri!r}, {size}, {PIECE_ROWS}); print(flush=True); input(); "
        f"write_alone({uri!r}, {size}, {rows // TASKS}); print(flush=True); input()"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(TASKS)
    ]
    times = []
    for _ in range(2):
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        times.append(time.perf_counter())
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    for process in running:
        process.communicate()
    return rows / (times[1] - times[0])


def timed(rows: int, work: Callable[[], object]) -> float:
    """Rows a second."""
    begin = time.perf_counter()
    work()
    return rows / (time.perf_counter() - begin)


def measure(spark: SparkSession, uri: str, size: int, rows: int, rounds: int) -> None:
    """One size."""
    value = F.lit("x" * size).cast("binary").alias("value")
    frame: DataFrame = spark.range(rows, numPartitions=TASKS).select(value)
    counting = frame.write.format("counting").mode("append")
    log = frame.write.format("bookkeeper").option("metadata", uri).option("log", LOG).mode("append")
    ways: dict[str, Callable[[], float]] = {
        "count": lambda: timed(rows, counting.option("encodes", "false").save),
        "encode": lambda: timed(rows, counting.option("encodes", "true").save),
        "log": lambda: timed(rows, log.save),
        "writers": lambda: alone(uri, size, rows),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            rate = way()
            if number:
                rates[name].append(rate)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(
            f"{size:5} B {name:8} {rate:12,.0f} rows/s {rate * size / 1e6:8.0f} MB/s   "
            f"log/{name} {medians['log'] / rate:5.0%}   "
            f"({min(rates[name]):,.0f} to {max(rates[name]):,.0f})",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="values of each write")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=arguments.directory) as directory:
        running = Resident(this_process.home(), served(Path(directory)))
        cluster = running.open()
        with bookie.sync.connect(cluster.uri) as bk:
            bk.create_log(LOG, transactional=True, policy=ONE_COPY)
        spark = (
            SparkSession.builder.master(f"local[{TASKS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(CountingSource)
        for size in (1024, 100):
            rows = (arguments.megabytes << 20) // size // (1 if size > 100 else 4)
            measure(spark, cluster.uri, size, rows, arguments.rounds)
        spark.stop()
        running.close()


if __name__ == "__main__":
    main()
