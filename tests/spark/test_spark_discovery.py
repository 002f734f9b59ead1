"""Spark finds the source by itself."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession


def test_the_format_is_found_without_registering(spark: SparkSession) -> None:
    """It has no options, so the source answers, and says so."""
    with pytest.raises(AnalysisException, match="the option metadata is missing"):
        spark.read.format("bookkeeper").load()
