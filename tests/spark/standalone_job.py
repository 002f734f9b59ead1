"""A program for ``spark-submit``: rows into a log and out of it, by executors of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

ROWS = 2000


def process_of(_rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The executor that a task runs in."""
    yield os.getppid(), os.getpid()


def main(uri: str, log: str) -> None:
    """Write, read, and print what was found."""
    spark = SparkSession.builder.appName("standalone").getOrCreate()
    options = {"metadata": uri, "log": log}
    numbers = spark.range(0, ROWS, numPartitions=4)
    rows = numbers.selectExpr("cast(id % 7 AS string) AS key", "cast(id AS string) AS value")
    rows.write.format("bookkeeper").options(**options).mode("append").save()
    found = spark.read.format("bookkeeper").options(**options).load()
    values = found.selectExpr("cast(cast(value AS string) AS int) AS value")
    distinct = values.distinct().count()
    daemons = spark.sparkContext.parallelize(range(8), 8).mapPartitions(process_of).collect()
    print(f"FOUND {found.count()} {distinct} {len({parent for parent, _ in daemons})}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
