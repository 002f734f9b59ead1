"""The columns of each table, with their types in Spark's spelling.

Spark's parser of column types needs a JVM, but the Python process that plans a query has no JVM. So
this module parses the few types that the tables have.
"""

from __future__ import annotations

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_RANGES = "ARRAY<STRUCT<first: BIGINT, last: BIGINT>>"

_TYPES: dict[str, DataType] = {
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "STRING": StringType(),
    "BOOLEAN": BooleanType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY<BIGINT>": ArrayType(LongType()),
    "ARRAY<STRING>": ArrayType(StringType()),
    "MAP<STRING, BINARY>": MapType(StringType(), BinaryType()),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
    _RANGES: ArrayType(
        StructType([StructField("first", LongType()), StructField("last", LongType())])
    ),
}

TABLES: dict[str, str] = {
    "ledgers": """
        ledgerId BIGINT, state STRING, ensembleSize INT, writeQuorum INT, ackQuorum INT,
        digest STRING, hasPassword BOOLEAN, fragments INT, lastEntryId BIGINT, entries BIGINT,
        length BIGINT, createdAt TIMESTAMP, log STRING, customMetadata MAP<STRING, BINARY>""",
    "fragments": """
        ledgerId BIGINT, fragment BIGINT, lastEntryId BIGINT, entries BIGINT,
        bookies ARRAY<STRING>""",
    "replicas": """
        ledgerId BIGINT, fragment BIGINT, slot INT, bookie STRING, bookieState STRING,
        lastEntryId BIGINT, entries BIGINT, estimatedBytes BIGINT""",
    "bookies": """
        bookie STRING, state STRING, address STRING, rack STRING, zone STRING,
        labels MAP<STRING, STRING>, totalBytes BIGINT, freeBytes BIGINT, incarnation STRING""",
    "logs": """
        log STRING, partition INT, mode STRING, logId STRING, createdAt TIMESTAMP, epoch BIGINT,
        owner STRING, ownerSince TIMESTAMP, startOffset BIGINT, endOffset BIGINT, bytes BIGINT,
        ranges INT, chunks BIGINT, openLedgers ARRAY<BIGINT>, lastTimestamp TIMESTAMP""",
    "cursors": """
        log STRING, partition INT, cursor STRING, offset BIGINT, epoch BIGINT, owner STRING,
        committedAt TIMESTAMP, isProtected BOOLEAN""",
    "history": """
        log STRING, partition INT, number INT, ledgerId BIGINT, firstEntryId BIGINT,
        lastEntryId BIGINT, startOffset BIGINT, endOffset BIGINT, entries BIGINT, bytes BIGINT,
        lastTimestamp TIMESTAMP""",
    "audit": f"""
        ledgerId BIGINT, fragment BIGINT, bookie STRING, firstEntryId BIGINT, lastEntryId BIGINT,
        verdict STRING, entries BIGINT, bytes BIGINT, ranges {_RANGES}, foundOn ARRAY<STRING>,
        detail STRING""",
}
"""The columns of each table as DDL, by the table's name."""


def table_schema(table: str) -> StructType:
    """Return the columns of a table as Spark's schema."""
    # A comma inside <> belongs to a type.
    columns = re.split(r",\s+(?![^<]*>)", " ".join(TABLES[table].split()))
    named = (column.split(" ", 1) for column in columns)
    return StructType([StructField(name, _TYPES[words]) for name, words in named])
