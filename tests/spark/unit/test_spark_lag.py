"""The lag of a query, from its progress."""

from __future__ import annotations

from typing import Any

from bookie.spark.lag import StreamLag, stream_lag


def progress(end: Any, latest: Any) -> dict[str, Any]:
    """A report of Spark."""
    return {"sources": [{"endOffset": end, "latestOffset": latest}]}


def test_the_figures_of_kafkas_source() -> None:
    """A partition that was not read yet is behind by all of its records."""
    end, latest = {"a": {"0": 4}}, {"a": {"0": 10, "1": 3}}
    wanted = StreamLag(3, 6, 4.5, {("a", 0): 6, ("a", 1): 3})
    assert stream_lag(progress(end, latest)) == wanted
    assert stream_lag(progress('{"a": {"0": 4}}', '{"a": {"0": 10, "1": 3}}')) == wanted


def test_a_reader_may_be_ahead_of_the_last_look() -> None:
    found = stream_lag(progress({"a": {"0": 12}}, {"a": {"0": 10}}))
    assert found == StreamLag(0, 0, 0.0, {("a", 0): 0})


def test_no_figures_before_the_first_look() -> None:
    assert stream_lag(None) is None
    assert stream_lag(progress(None, None)) is None
    assert stream_lag(progress({"a": {"0": 4}}, None)) is None
