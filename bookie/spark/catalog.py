"""The options of tables in Spark's catalog: ``CREATE TABLE t USING bookkeeper OPTIONS (…)``.

Spark passes a table's options to the source only while the table is created. Later Spark passes
only the columns. So each column carries the table's options in its metadata, which queries ignore.

While the table is created, Spark passes each option twice: under its name, and under ``option.``
plus its name. Spark also passes its own properties, such as ``owner``, and the properties in
``TBLPROPERTIES``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from bookie.errors import BadRequestError
from bookie.spark.connecting import FILE_OPTIONS

CARRIED = "bookkeeper.options"
"""The key of the table's options in the metadata of a column."""

POSITIONS = ("offset", "ledgerid", "entryid")
"""Columns of a table whose values are a record's position in the log; no writer sets them."""

_COPY = "option."
_CONNECTION = {
    "metadata",
    "metadataserviceuri",
    "passwordfile",
    "log",
    *map(str.lower, FILE_OPTIONS),
}

_ALTERNATIVES = (
    {"metadata", "metadataserviceuri"},
    {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"},
    {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"},
    {"maxentriespertrigger", "maxoffsetspertrigger"},
    {"minentriespertrigger", "minoffsetspertrigger"},
)
"""Groups of options. An option in a query overrides all of the table's options of its group."""


def options_at_creation(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that Spark is creating; None if Spark is creating no table.

    Raises:
        BadRequestError: the table has a LOCATION.
    """
    lower = {name.lower(): text for name, text in given.items()}
    found = {
        name.removeprefix(_COPY): text for name, text in lower.items() if name.startswith(_COPY)
    }
    if not found:
        return None
    if "location" in lower:
        raise BadRequestError(
            "a table of bookkeeper has no LOCATION and no option path; name its log by the option "
            "log"
        )
    return found


def carrying(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the same columns, with `options` in the metadata of each column."""
    text = json.dumps({"columns": schema.names, "options": options}, sort_keys=True)
    return StructType(
        [StructField(one.name, one.dataType, one.nullable, {CARRIED: text}) for one in schema]
    )


def _carried(schema: StructType) -> dict[str, str]:
    """Return the table's options in the columns' metadata; {} if the columns are not the table's.

    If a user selects some columns of a table and writes these columns elsewhere, the table's
    options have no effect.
    """
    texts = {one.metadata.get(CARRIED, "") for one in schema}
    if len(texts) != 1 or not (text := texts.pop()):
        return {}
    kept = json.loads(text)
    return dict(kept["options"]) if kept["columns"] == schema.names else {}


def options_of_read(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: the table's options, overridden by the query's options.

    Raises:
        BadRequestError: neither the query nor the table names the cluster.
    """
    lower = {name.lower(): text for name, text in given.items()}
    kept = _carried(schema)
    for group in _ALTERNATIVES:
        if group & lower.keys():
            kept = {name: text for name, text in kept.items() if name not in group}
    found = kept | lower
    if not {"metadata", "metadataserviceuri"} & found.keys():
        raise BadRequestError(
            "Spark keeps no options of a table that is made with columns; leave the columns out: "
            "CREATE TABLE t USING bookkeeper OPTIONS (metadata 'URI', log 'NAME')"
        )
    return found


def options_of_write(given: Mapping[str, str], schema: StructType) -> tuple[dict[str, str], bool]:
    """Return the options of a write, and True if the write is an ``INSERT INTO`` a table.

    Of the table's options, only the metadata URI, the log and the paths of secret files apply to a
    write.

    Raises:
        BadRequestError: the table shows ledgers or the cluster, so queries can only read the table.
    """
    lower = {name.lower(): text for name, text in given.items()}
    kept = _carried(schema)
    if {"metadata", "metadataserviceuri"} & lower.keys() or not kept:
        return lower, False
    for name in ("table", "ledgers"):
        if name in kept:
            raise BadRequestError(
                f"a table with the option {name} is only read; make one with the option log to "
                "insert into"
            )
    return {name: text for name, text in kept.items() if name in _CONNECTION} | lower, True
