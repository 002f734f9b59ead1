"""Exports that are refused before anything is read, without Spark's JVM."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from bookie.errors import BadRequestError
from bookie.spark.jobs.export import ORIGIN, ExportPlan


def schema(*names: str, kind: DataType | None = None) -> StructType:
    """Columns of these names."""
    return StructType([StructField(name, kind or LongType()) for name in names])


@pytest.mark.parametrize(
    "name", [*(f"_{one}" for one in ORIGIN), "_Log", "_corrupt_record", "_CORRUPT_record"]
)
def test_a_schema_may_not_have_a_column_of_the_export(name: str) -> None:
    """Spark would find the collision in the first batch, after the marks are written."""
    for value_format in ("json", "csv"):
        plan = ExportPlan("/x", value_format, schema("id", name))
        with pytest.raises(BadRequestError, match=f"may not have a column {name}: exports use"):
            plan.validate()


def test_columns_that_spark_would_refuse_in_the_first_batch() -> None:
    with pytest.raises(BadRequestError, match="has two columns ID; rename one"):
        ExportPlan("/x", "json", schema("id", "ID")).validate()
    nested = schema("id", kind=ArrayType(StringType()))
    with pytest.raises(BadRequestError, match="a column of CSV cannot be array<string>; make id"):
        ExportPlan("/x", "csv", nested).validate()
    ExportPlan("/x", "json", nested).validate()
    with pytest.raises(BadRequestError, match="no column shop to partition by; it has id, _log, "):
        ExportPlan("/x", "json", schema("id"), ("shop",)).validate()
    with pytest.raises(BadRequestError, match="no column headers to partition by; it has key, "):
        ExportPlan("/x", partition_by=("headers",)).validate()


def test_what_an_export_takes() -> None:
    """Names of the log itself are free, and columns of the origin may divide the files."""
    ExportPlan("/x", "json", schema("log", "key", "Id"), ("id", "_partition", "LOG")).validate()
    ExportPlan("/x", partition_by=("partition", "ledgerId")).validate()
