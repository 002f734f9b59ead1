"""A log becomes a table, the table a sum, and what is large goes into another log.

`BOOKIE_METADATA` is the URI of the metadata store. The log `orders` has values such as
``{"id": 1, "shop": "a", "price": 12}``. Each run takes what is new, each record once.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the field's name for it)

METADATA = os.environ["BOOKIE_METADATA"]
LOG = os.environ.get("ORDERS_LOG", "orders")
LARGE = 90


def session() -> SparkSession:
    """The session that Spark runs the pipeline in."""
    found = SparkSession.active()
    assert found is not None
    return found


@dp.table
def orders() -> DataFrame:
    """A streaming table: the records of the log."""
    stream = session().readStream.format("bookkeeper").option("metadata", METADATA)
    records = stream.option("log", LOG).option("startingOffsets", "earliest").load()
    value = F.from_json(F.col("value").cast("string"), "id BIGINT, shop STRING, price INT")
    return records.select("partition", "offset", value.alias("order")).select(
        "partition", "offset", "order.*"
    )


@dp.materialized_view
def turnover() -> DataFrame:
    """What each shop has sold."""
    shops = session().read.table("orders").groupBy("shop")
    return shops.agg(F.count("*").alias("orders"), F.sum("price").alias("turnover"))


dp.create_sink(
    "large_orders",
    "bookkeeper",
    {"metadata": METADATA, "log": f"{LOG}-large", "createLog": "true"},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders of a high price, into a log of their own."""
    found = session().readStream.table("orders").where(F.col("price") >= LARGE)
    return found.select(
        F.col("shop").alias("key"), F.to_json(F.struct("id", "price")).alias("value")
    )
