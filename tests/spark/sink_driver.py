"""A driver of its own, which a test kills: ``python -m tests.spark.sink_driver SPECIFICATION``.

The specification is JSON: ``uri``, ``directory``, ``query``, ``logs``, and ``kill_at``. That is the
point of `faulty_sink` at which both JVM and driver are killed, or nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.faulty_sink import plant
from tests.spark.sink_streams import FileStream, file_streams


def main() -> None:
    """Run the stream to its end, or die."""
    asked = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    stream = FileStream(
        spark,
        asked["uri"],
        Path(asked["directory"]),
        asked["query"],
        tuple(asked["logs"]),
        files=3,
    )
    if asked["kill_at"]:
        gateway = spark.sparkContext._jvm
        assert gateway is not None
        jvm = gateway.java.lang.ProcessHandle.current().pid()
        plant(stream.faults, asked["kill_at"], f"kill {jvm} {os.getpid()}")
    with file_streams(spark):
        stream.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
