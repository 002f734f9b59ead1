"""Tables of a catalog: ``CREATE TABLE t USING bookkeeper OPTIONS (…)``.

Spark gives the options of such a table to the source only while the table is made. Later it passes
the columns alone. So the columns carry the options, as metadata that queries neither show nor use.

While the table is made, the options come twice: by their names, and with ``option.`` before them.
Beside them are Spark's own properties, such as ``owner``, and those of ``TBLPROPERTIES``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from bookie.errors import BadRequestError

CARRIED = "bookkeeper.options"
"""The key in the metadata of a column."""

POSITIONS = ("offset", "ledgerid", "entryid")
"""Columns of a table that the log fills."""

_COPY = "option."
_CONNECTION = ("metadata", "metadataserviceuri", "passwordfile", "log")

_ALTERNATIVES = (
    {"metadata", "metadataserviceuri"},
    {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"},
    {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"},
    {"maxentriespertrigger", "maxoffsetspertrigger"},
    {"minentriespertrigger", "minoffsetspertrigger"},
)
"""Options of which a read has one. A query that gives one of them replaces the others."""


def options_at_creation(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being made; None if no table is.

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
    """The same columns, each of which carries the options of its table."""
    text = json.dumps({"columns": schema.names, "options": options}, sort_keys=True)
    return StructType(
        [StructField(one.name, one.dataType, one.nullable, {CARRIED: text}) for one in schema]
    )


def _carried(schema: StructType) -> dict[str, str]:
    """The options that the columns carry; none unless they are those of one whole table.

    Rows of a query over a table have some of its columns, and may be written elsewhere.
    """
    texts = {one.metadata.get(CARRIED, "") for one in schema}
    if len(texts) != 1 or not (text := texts.pop()):
        return {}
    kept = json.loads(text)
    return dict(kept["options"]) if kept["columns"] == schema.names else {}


def options_of_read(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read: those of its table, and those of the query, which win.

    Raises:
        BadRequestError: the table has no options.
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
    """The options of a write, and True for an ``INSERT INTO`` a table.

    Options of the table that concern reads alone are left out.

    Raises:
        BadRequestError: nothing is ever written to that table.
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
