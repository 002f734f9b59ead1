"""Logs through Spark Connect: this process has neither Java nor a connection to the bookies.

    SPARK_REMOTE=sc://localhost:15002 python examples/spark/connect.py --metadata URI

Only the server and its executors need bookie and reach the cluster. Here `pyspark[connect]` is
enough. The program writes rows to a log and reads them back. A stream copies them into a second
log, exactly once; then SQL reads a table about the cluster.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from pyspark.sql import SparkSession


def main(remote: str, metadata: str, log: str, rows: int, checkpoints: str) -> None:
    """All of it; raises SystemExit if rows are lost or doubled."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    source = {"metadata": metadata, "log": log}
    target = {"metadata": metadata, "log": f"{log}-copy"}

    numbers = spark.range(rows).selectExpr(
        "cast(id % 7 AS string) AS key", "to_json(struct(id, id % 97 AS shop)) AS value"
    )
    numbers.write.format("bookkeeper").options(**source, createLog="true").mode("append").save()
    frame = spark.read.format("bookkeeper").options(**source).load()
    shops = frame.selectExpr("get_json_object(cast(value AS string), '$.shop') AS shop")
    print(f"{log} has {frame.count()} records of {shops.distinct().count()} shops")

    stream = spark.readStream.format("bookkeeper").options(**source, startingOffsets="earliest")
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("bookkeeper")
        .options(**target, createLog="true", checkpointLocation=f"{checkpoints}/{log}-copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = spark.read.format("bookkeeper").options(**target).load()
    print(f"the stream copied {copied.count()} records to {log}-copy")

    table = spark.read.format("bookkeeper").options(metadata=metadata, table="logs").load()
    table.createOrReplaceTempView("logs")
    found = spark.sql(
        "SELECT log, sum(endOffset) AS records FROM logs WHERE log IN (:one, :two) "
        "GROUP BY log ORDER BY log",
        args={"one": source["log"], "two": target["log"]},
    )
    for row in found.collect():
        print(f"table logs: {row['log']} {row['records']}")
    if not copied.select("value").distinct().count() == copied.count() == rows:
        raise SystemExit("rows are lost or doubled")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", default=os.environ.get("SPARK_REMOTE", "sc://localhost:15002"))
    parser.add_argument("--metadata", required=True, help="as the server reaches it")
    parser.add_argument("--log", default="numbers", help="it must be new")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument(
        "--checkpoints", default=tempfile.gettempdir(), help="a directory that the server reaches"
    )
    given = parser.parse_args()
    main(given.remote, given.metadata, given.log, given.rows, given.checkpoints)
