"""A driver that gets no connection asks again: real frames, and sockets that fail at first."""

from __future__ import annotations

import pyspark.util
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from bookie.spark.collecting import TRIES, collected
from bookie.spark.jobs.stats import stats
from bookie.spark.session import plain_error

_open = pyspark.util.local_connect_and_auth


class ClosedSocket:
    """Opens sockets after some tries that fail as on a busy machine."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, conn_info: str | int | None, auth_secret: str | None) -> tuple[object, ...]:
        """The method that PySpark calls."""
        if self.left:
            self.left -= 1
            return _open("/nowhere/socket", None)
        return _open(conn_info, auth_secret)


def test_rows_are_asked_for_again(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = ClosedSocket(TRIES - 1)
    monkeypatch.setattr(pyspark.util, "local_connect_and_auth", closed)
    assert [row[0] for row in collected(spark.range(3))] == [0, 1, 2]
    assert closed.left == 0
    closed.left = 1
    assert len(stats(spark, uri).bookies) == 3
    assert closed.left == 0


def test_a_driver_that_never_gets_one_says_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's own error is about a variable."""
    monkeypatch.setattr(pyspark.util, "local_connect_and_auth", ClosedSocket(TRIES))
    with pytest.raises((PySparkRuntimeError, UnboundLocalError)) as caught:
        collected(spark.range(3))
    said = plain_error(caught.value)
    assert said is not None
    assert str(said) == "Spark's driver got no connection: the machine is busy; run it again"
