"""Finds the reason, as a sentence, why a text does not fit a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from bookie.errors import BadRequestError

CORRUPT = "_corrupt_record"
"""The column that Spark's parsers fill if a text does not fit the schema."""

_SHOWN = 60
"""The largest number of letters that a reason quotes from a text."""

_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def ddl(fields: Sequence[StructField]) -> str:
    """Return the text form of a schema, which Spark can parse."""
    return ", ".join(
        f"`{one.name.replace('`', '``')}` {one.dataType.simpleString()}" for one in fields
    )


def require_flat(schema: StructType) -> None:
    """Check that a CSV file can hold each column of a schema.

    Raises:
        BadRequestError: a column is a structure, a map or an array.
    """
    for one in schema.fields:
        if isinstance(one.dataType, StructType | MapType | ArrayType):
            raise BadRequestError(
                f"a column of CSV cannot be {one.dataType.simpleString()}; make {one.name} a STRING"
            )


def csv_texts(text: Column, fields: Sequence[StructField], options: Mapping[str, str]) -> Column:
    """Parse a CSV text into text columns.

    Parsing is slow, so store the result in a column of the frame.
    """
    plain = {name: one for name, one in options.items() if name.lower() not in _OF_FILES}
    texts = [StructField(one.name, StringType()) for one in fields]
    columns = ddl([*texts, StructField(CORRUPT, StringType())])
    return F.from_csv(text, columns, {**plain, **_OPTIONS})


def csv_misfit(
    text: Column, texts: Column, fields: Sequence[StructField], value: Callable[[str], Column]
) -> Column:
    """Return the reason why a CSV text does not fit the schema; null if the text is null.

    Args:
        text: the text of a row that does not fit; null for other rows.
        texts: the result of `csv_texts` for this text.
        fields: the columns that the row should have.
        value: returns the value that Spark has parsed for the column with a given name; null if
            Spark has parsed no value.
    """
    count = F.lit(f"the row does not have {len(fields)} columns")
    return F.when(
        text.isNotNull(),
        F.coalesce(
            F.when(texts.getField(CORRUPT).isNotNull(), count),
            *(_no_value(one, texts.getField(one.name), value(one.name)) for one in fields),
            F.lit("Spark cannot read the row"),
        ),
    )


_OF_FILES = ("header", "multiline", "encoding", "charset", "linesep")


def json_parts(
    text: Column, schema: StructType, options: Mapping[str, str]
) -> tuple[Column, Column]:
    """Parse a JSON text twice: with the schema's types, and with text columns; both are slow."""
    plain = {name: one for name, one in options.items() if name.lower() not in _OF_FILES}
    corrupt = StructField(CORRUPT, StringType())
    found = F.from_json(text, StructType([*schema.fields, corrupt]), {**plain, **_OPTIONS})
    texts = StructType([StructField(one.name, StringType()) for one in schema.fields])
    return found, F.from_json(text, texts, {**plain, "mode": "PERMISSIVE"})


def is_one_value(text: Column) -> Column:
    """True if a text is exactly one JSON value, without any text after it."""
    # Spark's parsers ignore everything after the first value.
    count = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.coalesce(count == 1, F.lit(False))


def json_misfit(text: Column, found: Column, texts: Column, schema: StructType) -> Column:
    """Return the reason why a JSON text does not fit the schema; null if the text fits.

    The arguments `found` and `texts` are results of `json_parts`.
    """
    return F.when(
        found.isNull() | found.getField(CORRUPT).isNotNull(),
        F.coalesce(
            F.when(text.isNull(), F.lit("the value is null")),
            F.when(texts.isNull() | ~is_one_value(text), F.lit("it is no JSON object")),
            *(
                _no_value(one, texts.getField(one.name), found.getField(one.name))
                for one in schema.fields
            ),
            F.lit("a part of it does not fit the schema"),
        ),
    )


def decimal_misfit(text: Column, name: str, kind: DecimalType) -> Column:
    """Return the reason why a text is no exact decimal of type `kind`; null if it is exact."""
    fraction = F.regexp_extract(text, r"\.([0-9]*?)0*\s*$", 1)
    says = F.lit(f"{name} has more digits than {kind.simpleString()}: ")
    shown = F.substr(text, F.lit(1), F.lit(_SHOWN))
    return F.coalesce(
        _no_value(StructField(name, kind), text, text.try_cast(kind)),
        F.when(text.rlike("[eE]"), F.lit(f"{name} is written with an exponent")),
        F.when(F.length(fraction) > kind.scale, F.concat(says, shown)),
    )


def _no_value(column: StructField, text: Column, value: Column) -> Column:
    says = F.lit(f"{column.name} is no {column.dataType.simpleString()}: ")
    shown = F.substr(text, F.lit(1), F.lit(_SHOWN))
    return F.when(text.isNotNull() & value.isNull(), F.concat(says, shown))
