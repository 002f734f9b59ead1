"""A pipeline on Spark, from rows to files and back to whole copies; prints what happened.

    make spark-demo

It starts three bookies on this machine and writes rows into a log, exactly once. A stream copies
them into Parquet files; it is killed in the middle, and goes on. Then a bit is flipped in a file of
a bookie that is stopped. An audit finds it, a repair mends it, and a second audit finds nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import bookie.sync
from bookie.spark.jobs.audit import audit, audit_page
from bookie.spark.jobs.repair import repair
from bookie.spark.session import open_session

LOG = "sales"
MARK = '"number":4711,'
BATCHES = 6
"""The stream needs at least so many, so that it can be killed between two of them."""


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Three bookies run; the URI of their metadata."""
    words = [sys.executable, "-m", "bookie", "local", "--data", str(directory), "--bookies", "3"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            if not any("The cluster is up" in line for line in supervisor.stdout):
                raise SystemExit("the bookies did not start")
            yield f"local://{directory}/metadata"
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.communicate()


def write(spark: SparkSession, uri: str, rows: int) -> None:
    """Rows into the log, in one transaction."""
    frame = spark.range(rows, numPartitions=4).selectExpr(
        "cast(id % 1000 AS string) AS key",
        """to_json(struct(id AS number, id % 97 AS shop, concat('item ', id % 13) AS item,
           repeat('.', 100) AS filler)) AS value""",
    )
    frame.write.format("bookkeeper").option("metadata", uri).option("log", LOG).mode(
        "append"
    ).save()


def stream(uri: str, directory: Path, rows: int, *, slowly: bool) -> None:
    """The log into Parquet files, up to its end; `slowly` in small batches."""
    spark = open_session("demo", "local[2]", {})
    reader = spark.readStream.format("bookkeeper").option("metadata", uri).option("log", LOG)
    reader = reader.option("startingOffsets", "earliest")
    if slowly:
        reader = reader.option("maxEntriesPerTrigger", rows // BATCHES)
    query = (
        reader.load()
        .selectExpr("partition", "offset", "cast(value AS string) AS value")
        .writeStream.format("parquet")
        .option("path", str(directory / "parquet"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def stream_that_is_killed(uri: str, directory: Path, rows: int) -> int:
    """Kill the stream's process after its second batch with rows; the batches it had committed."""
    words = [sys.executable, __file__, "--rows", str(rows), "stream", uri, str(directory)]
    commits = directory / "checkpoint" / "commits"
    # What its workers say when they are killed is noise.
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        while driver.poll() is None:
            done = len([one for one in commits.glob("*") if one.name.isdigit()])
            if done >= 3:  # the first one is empty
                os.killpg(driver.pid, signal.SIGKILL)
                return done
            time.sleep(0.05)
    raise SystemExit("the stream ended before it could be killed")


def flip_bit(directory: Path) -> Path:
    """Flip a bit of one record, in the files of a bookie that is stopped."""
    for path in sorted((directory / "bookie-2").rglob("*")):
        if path.is_file() and (at := path.read_bytes().find(MARK.encode())) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                first = file.read(1)[0]
                file.seek(at)
                file.write(bytes([first ^ 1]))
            return path
    raise SystemExit("the bookie does not have the record")


def main() -> None:
    """All of it, or the stream alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if arguments.part:
        _, uri, home = arguments.part
        stream(uri, Path(home), arguments.rows, slowly=True)
        return
    directory = Path(tempfile.mkdtemp(prefix="bookie-spark-demo-"))
    run(directory, arguments.rows)
    print(f"everything is in {directory}")


def run(directory: Path, rows: int) -> None:
    """The demo; raises SystemExit if something is not as it should be."""
    data = directory / "cluster"
    with cluster(data) as uri:
        with bookie.sync.connect(uri) as bk:
            bk.create_log(LOG, partitions=2, transactional=True)
        spark = open_session("demo", "local[2]", {})
        begin = time.monotonic()
        write(spark, uri, rows)
        print(f"wrote {rows:,} rows in {time.monotonic() - begin:.1f} s, in one transaction")
        spark.stop()
        done = stream_that_is_killed(uri, directory, rows)
        print(f"killed the stream after {done} batches, and started it again")
        stream(uri, directory, rows, slowly=False)
        spark = open_session("demo", "local[2]", {})
        found = spark.read.parquet(str(directory / "parquet"))
        numbers = found.selectExpr("get_json_object(value, '$.number') AS number")
        counted, distinct = found.count(), numbers.distinct().count()
        print(f"Parquet has {counted:,} rows, {distinct:,} of them different")
        spark.stop()
        if not counted == distinct == rows:
            raise SystemExit("rows are lost or doubled")
    print(f"flipped a bit in {flip_bit(data).relative_to(data)}")
    with cluster(data) as uri:
        spark = open_session("demo", "local[2]", {})
        report = str(directory / "report")
        first = audit(spark, uri, report)
        page = directory / "audit.html"
        page.write_text(audit_page(first), encoding="utf-8")
        print(f"audit: {first.sentence}")
        mended = repair(spark, uri, report)
        print(f"repair: {dict(mended.copies)}")
        second = audit(spark, uri, report)
        print(f"audit: {second.sentence}")
        spark.stop()
        print(f"pictures: {page}")
        if not first.has_damage or second.has_damage:
            raise SystemExit("the damage was not found, or not mended")


if __name__ == "__main__":
    main()
