"""Write the same odd records to a topic of a Kafka broker, by Spark's sink for it.

python tests/kafka/fill_topic.py BROKERS TOPIC JARS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

COLUMNS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT"
)
ROWS: tuple[tuple[object, ...], ...] = (
    (b"k0", b"plain", [], 0),
    (None, b"no key", None, 1),
    (b"k2", None, [("why", b"a tombstone")], 2),
    (b"k0", b"headers", [("a", b"1"), ("b", None), ("a", b"2"), ("a", None)], 0),
    (b"", b"", [], 1),
    (b"k5", b"x" * 900_000, [], 2),
)
"""Kafka refuses more than a megabyte by default."""


def main() -> None:
    """Write all rows once."""
    brokers, topic, jars = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", jars)
        .getOrCreate()
    )
    try:
        rows = spark.createDataFrame(list(ROWS), COLUMNS).coalesce(1)  # in this order
        target = {"kafka.bootstrap.servers": brokers, "topic": topic, "includeHeaders": "true"}
        rows.write.format("kafka").options(**target).save()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
