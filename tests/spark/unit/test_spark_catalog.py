"""The options that columns of a table carry."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

from bookie.errors import BadRequestError
from bookie.spark.catalog import carrying, options_at_creation, options_of_read, options_of_write

COLUMNS = StructType().add("value", BinaryType()).add("offset", LongType())
OPTIONS = {"metadata": "URI", "log": "orders", "columns": "value,offset"}


def made(**options: str) -> StructType:
    """The columns of a table, as Spark keeps them."""
    found = carrying(COLUMNS, options)
    return StructType.fromJson(found.jsonValue())


def test_options_are_those_with_copies() -> None:
    """Spark adds properties of its own, and those of the user."""
    sparks = {"provider": "bookkeeper", "owner": "root", "comment": "mine"}
    copies = {"option.Metadata": "URI", "option.log": "orders"}
    assert options_at_creation({**sparks, "metadata": "URI", "log": "orders", **copies}) == {
        "metadata": "URI",
        "log": "orders",
    }
    assert options_at_creation({"metadata": "URI", "log": "orders"}) is None
    with pytest.raises(BadRequestError, match="no LOCATION"):
        options_at_creation({**copies, "location": "file:/tmp/x", "path": "file:/tmp/x"})


def test_a_read_has_the_options_of_its_table() -> None:
    assert options_of_read({}, made(**OPTIONS)) == OPTIONS
    given = {"columns": "value", "startingOffsets": "latest"}
    assert options_of_read(given, made(**OPTIONS)) == {
        **OPTIONS,
        "columns": "value",
        "startingoffsets": "latest",
    }
    started = made(metadata="URI", log="orders", startingoffsets="earliest")
    at = {"startingTimestamp": "1700000000000"}
    assert options_of_read(at, started) == {
        "metadata": "URI",
        "log": "orders",
        "startingtimestamp": "1700000000000",
    }
    assert options_of_read({"METADATA": "URI"}, COLUMNS) == {"metadata": "URI"}
    with pytest.raises(BadRequestError, match="leave the columns out"):
        options_of_read({}, COLUMNS)


def test_a_write_has_them_unless_it_goes_elsewhere() -> None:
    """Columns that rows bring along from a table they were read of decide nothing."""
    table = made(**OPTIONS)
    assert options_of_write({}, table) == ({"metadata": "URI", "log": "orders"}, True)
    secret = {"cafile": "ca.pem", "certificatefile": "c.pem", "keyfile": "k.pem", "tokenfile": "t"}
    written, _ = options_of_write({}, made(**OPTIONS, **secret))
    assert written == {"metadata": "URI", "log": "orders", **secret}
    elsewhere = {"metadata": "OTHER", "log": "copy"}
    assert options_of_write(elsewhere, table) == (elsewhere, False)
    assert options_of_write({}, StructType(table.fields[:1])) == ({}, False)
    mixed = StructType([table.fields[0], COLUMNS.fields[1]])
    assert options_of_write({}, mixed) == ({}, False)
    for name in ("table", "ledgers"):
        with pytest.raises(BadRequestError, match=f"the option {name} is only read"):
            options_of_write({}, made(metadata="URI", **{name: "x"}))
