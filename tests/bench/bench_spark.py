"""How fast Spark reads logs, beside what Python can hand over; and both ways beside Kafka.

    python -m tests.bench.bench_spark [--megabytes 256] [--rounds 3] [--kafka] [--directory DIR]

Rows of one size go into Spark by two tasks, and are dropped there. `transport` is a source in
Python that gives the same Arrow batch again and again: the ceiling. `log` reads a transactional log
on one bookie, one copy. `reader` is two processes that read the same log by `bookie.sync` without
Spark: the ceiling of the storage. With `--kafka` the same rows are written to a broker and read,
through Spark's own source and sink, with the broker's defaults and with a sync before each answer.
Then ``migrate-from-kafka`` moves them into a log, and the rows of both are compared.
All share one machine and take turns. Figures are medians; nothing is asserted.
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
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import bookie.sync
from bookie.api import LogPolicy
from bookie.entry.entry import Entries
from bookie.log.record.log_record import LogPosition, plain_prefix
from bookie.log.record.log_records import decode_log_records
from bookie.spark.columns import BATCH_BYTES, BATCH_ROWS, LogBatches, SourceColumns
from bookie.spark.jobs.migrate import MigratePlan, migrate_from_kafka
from bookie.spark.jobs.moving import MoveTarget
from bookie.sync.loop_thread import Resident, this_process
from tests.bench.processes import served
from tests.servers.kafka_broker import kafka_broker

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
TASKS = 2
COLUMNS = SourceColumns(("value", "offset", "timestamp"))


class RepeatedReader(DataSourceReader):
    """Gives one batch again and again."""

    def __init__(self, size: int, rows: int) -> None:
        self.size, self.rows = size, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        count = min(BATCH_ROWS, BATCH_BYTES // self.size)
        entries = Entries(range(count), [plain_prefix(0) + bytes(self.size)] * count)
        records = decode_log_records(entries, LogPosition(0, 0, 0))
        batch = next(LogBatches(COLUMNS, "log", 0).encode(records))
        for _ in range(self.rows // TASKS // batch.num_rows):
            yield batch


class RepeatedSource(DataSource):
    """``format("repeated")``."""

    @classmethod
    def name(cls) -> str:
        return "repeated"

    def schema(self) -> StructType:
        return COLUMNS.schema()

    def reader(self, schema: StructType) -> RepeatedReader:
        del schema
        return RepeatedReader(int(self.options["size"]), int(self.options["rows"]))


def read_alone(uri: str, log: str, part: int) -> int:
    """What one process without Spark does: a half of the log, in batches."""
    client = bookie.sync.shared_client(uri)
    (bounds,) = client.survey_log(log).bounds()
    half = bounds[1] // TASKS
    reader = client.log_reader(log, start=part * half, end=(part + 1) * half)
    return sum(len(batch) for batch in reader.batches())


def alone(uri: str, log: str, rows: int) -> float:
    """Rows a second of processes without Spark; their start does not count."""
    code = (
        "from tests.bench.bench_spark import read_alone; import bookie.sync\n"
        f"bookie.sync.shared_client({uri!r}); print(flush=True); input()\n"
    )
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                code + f"read_alone({uri!r}, {log!r}, {part}); print(flush=True)",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(TASKS)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    begin = time.perf_counter()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    seconds = time.perf_counter() - begin
    for process in running:
        process.communicate()
    return rows / seconds


def timed(rows: int, work: Callable[[], object]) -> float:
    """Rows a second."""
    begin = time.perf_counter()
    work()
    return rows / (time.perf_counter() - begin)


def drained(frame: DataFrame) -> None:
    """Read all, keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def show(size: int, rates: dict[str, list[float]]) -> None:
    """Print the medians."""
    for name, found in rates.items():
        rate = statistics.median(found)
        print(
            f"{size:5} B {name:22} {rate:12,.0f} rows/s {rate * size / 1e6:8.0f} MB/s   "
            f"({min(found):,.0f} to {max(found):,.0f})",
            flush=True,
        )


def in_turns(rounds: int, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each way once a round; the first round only warms up."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            rate = way()
            if number:
                rates[name].append(rate)
    return rates


def measure(spark: SparkSession, uri: str, size: int, rows: int, rounds: int) -> None:
    """One size of values, without Kafka."""
    log = f"bench-{size}"
    with bookie.sync.connect(uri) as bk:
        bk.create_log(log, transactional=True, policy=ONE_COPY)
    value = F.lit("x" * size).cast("binary").alias("value")
    frame = spark.range(rows, numPartitions=TASKS).select(value)
    options = {"metadata": uri, "log": log}
    frame.write.format("bookkeeper").options(**options).mode("append").save()
    repeated = spark.read.format("repeated").option("size", size).option("rows", rows).load()

    def read_log() -> None:
        # A frame is planned once; the plan is part of the cost.
        columns = "value,offset,timestamp"
        drained(spark.read.format("bookkeeper").options(columns=columns, **options).load())

    show(
        size,
        in_turns(
            rounds,
            {
                "transport": lambda: timed(rows, lambda: drained(repeated)),
                "log": lambda: timed(rows, read_log),
                "reader": lambda: alone(uri, log, rows),
            },
        ),
    )


def beside_kafka(
    spark: SparkSession, uri: str, address: str, name: str, size: int, rows: int, rounds: int
) -> None:
    """The same rows through both, written and read."""
    frame = spark.range(rows, numPartitions=TASKS).select(
        F.col("id").cast("string").cast("binary").alias("key"),
        F.lit("x" * size).cast("binary").alias("value"),
    )
    turn = 0

    def logs() -> dict[str, str]:
        return {"metadata": uri, "log": f"beside-{name}-{size}-{turn}".replace(" ", "-")}

    def write_log() -> None:
        nonlocal turn
        turn += 1
        with bookie.sync.connect(uri) as bk:
            bk.create_log(logs()["log"], partitions=TASKS, transactional=True, policy=ONE_COPY)
        frame.write.format("bookkeeper").options(**logs()).mode("append").save()

    def read_log() -> None:
        drained(spark.read.format("bookkeeper").options(**logs()).load())

    kafka = {"kafka.bootstrap.servers": address}

    def write_kafka() -> None:
        topic = f"beside-{size}-{turn}"
        frame.write.format("kafka").options(topic=topic, **kafka).mode("append").save()

    def read_kafka() -> None:
        topic = f"beside-{size}-{turn}"
        drained(spark.read.format("kafka").options(subscribe=topic, **kafka).load())

    show(
        size,
        in_turns(
            rounds,
            {
                "log, written": lambda: timed(rows, write_log),
                f"{name}, written": lambda: timed(rows, write_kafka),
                "log, read": lambda: timed(rows, read_log),
                f"{name}, read": lambda: timed(rows, read_kafka),
            },
        ),
    )


def migrate(
    spark: SparkSession, uri: str, address: str, size: int, rows: int, checkpoint: Path
) -> None:
    """Move the rows of one topic into a log, with their keys and partitions, and compare them."""
    topic, log = f"beside-{size}-1", f"migrated-{size}"
    with bookie.sync.connect(uri) as bk:
        bk.create_log(log, partitions=TASKS, transactional=True, policy=ONE_COPY)
    begin = time.perf_counter()
    plan = MigratePlan(address, topic, keeps_partitions=True)
    moved = migrate_from_kafka(spark, plan, MoveTarget(uri, log, str(checkpoint))).rows
    seconds = time.perf_counter() - begin
    columns = ["key", "value", "timestamp", "partition"]
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    before = kafka.option("subscribe", topic).load().select(*columns)
    after = spark.read.format("bookkeeper").option("metadata", uri).option("log", log).load()
    left = before.exceptAll(after.select(*columns)).count()
    assert (moved, after.count(), left) == (rows, rows, 0), (moved, left)
    print(f"{size:5} B moved from Kafka, equal: {rows} rows, {rows / seconds:,.0f} rows/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="values of each size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", action="store_true", help="a broker beside; needs mvn")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=arguments.directory)
            )
        )
        brokers: dict[str, str] = {}
        jars = ""
        if arguments.kafka:
            for name, is_synced in (("kafka", False), ("kafka synced", True)):
                home = directory / name.replace(" ", "-")
                home.mkdir()
                broker = stack.enter_context(kafka_broker(home, TASKS, is_synced=is_synced))
                brokers[name], jars = broker.address, broker.spark_jars
        bookies = directory / "bookie"
        bookies.mkdir()
        running = Resident(this_process.home(), served(bookies))
        uri = running.open().uri
        stack.callback(running.close)
        spark = (
            SparkSession.builder.master(f"local[{TASKS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.jars", jars)
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
            .getOrCreate()
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(RepeatedSource)
        for size in (1024, 100):
            rows = (arguments.megabytes << 20) // size // (1 if size > 100 else 4)
            measure(spark, uri, size, rows, arguments.rounds)
            for name, address in brokers.items():
                beside_kafka(spark, uri, address, name, size, rows, arguments.rounds)
            for address in list(brokers.values())[:1]:
                migrate(spark, uri, address, size, rows, directory / f"migrated-{size}")


if __name__ == "__main__":
    main()
