"""The begin and end of a stream's batches, without Spark and without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bookie.env import SystemClock
from bookie.errors import BadRequestError, LogTruncatedError
from bookie.log.read.survey import LogSpan
from bookie.spark import stream_source
from bookie.spark.connecting import SparkConnection
from bookie.spark.options import SparkOptions
from bookie.spark.selection import LogSelection, Surveys
from bookie.spark.source_options import LogSource, take_source
from bookie.spark.stream_source import LogStreamReader

ALL = ReadAllAvailable()


class ALog:
    """A survey of a log that a test makes and changes."""

    def __init__(self, *bounds: tuple[int, int], log_id: str = "1", entry_bytes: int = 10) -> None:
        """`bounds` are those of its partitions."""
        self.now = list(bounds)
        self.definition = SimpleNamespace(log_id=log_id, partitions=len(bounds))
        self._entry_bytes = entry_bytes
        self.before_spans: Callable[[], object] = lambda: None
        """Called when the planner asks for spans, after it has the bounds."""

    def bounds(self) -> Sequence[tuple[int, int]]:
        """By partition."""
        return tuple(self.now)

    def spans(self, partition: int, start: int, end: int) -> Sequence[LogSpan]:
        """One; what was truncated cannot be asked for."""
        self.before_spans()
        earliest = self.now[partition][0]
        if start < earliest:
            raise LogTruncatedError("gone", earliest_offset=earliest)
        return [LogSpan(start, end, self._entry_bytes * (end - start))]


class Logs:
    """The logs that there are, and streams over them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_name: dict[str, ALog] = {}
        self.while_waiting: Callable[[], object] = lambda: None
        """Called while a stream waits for a record."""
        self.seconds = 0.0
        monkeypatch.setattr(stream_source, "survey", self._survey)
        monkeypatch.setattr(SystemClock, "monotonic", lambda: self.seconds)
        client = SimpleNamespace(await_records=lambda *_, **__: self.while_waiting())
        monkeypatch.setattr(SparkConnection, "client", lambda _: client)

    def _survey(self, *_: object) -> Surveys:
        return Surveys(cast("Any", dict(self.by_name)), LogSelection(pattern=".*"))

    def stream(self, **options: str) -> LogStreamReader:
        """A new query over all logs."""
        given = {"metadata": "local:///metadata", "logPattern": ".*", **options}
        source = take_source(SparkOptions(given), is_stream=True)
        assert isinstance(source, LogSource)
        return LogStreamReader(source)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    """No log yet."""
    return Logs(monkeypatch)


def bare(offsets: Any) -> dict[str, dict[str, int]]:
    """Offsets without the ids of their logs."""
    return {
        log: {key: at for key, at in each.items() if key != "id"} for log, each in offsets.items()
    }


def started(logs: Logs, **options: str) -> tuple[LogStreamReader, Any]:
    """A stream whose first batch was pinned, and its start."""
    stream = logs.stream(**options)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    return stream, start


def test_a_query_starts_where_its_options_say(logs: Logs) -> None:
    """The earliest record need not be the first one."""
    logs.by_name["a"] = ALog((3, 9), (0, 4))
    for options, offsets in (
        ({}, {"0": 9, "1": 4}),
        ({"startingOffsets": "earliest"}, {"0": 3, "1": 0}),
        ({"startingOffsets": '{"a": {"0": -2, "1": -1}}'}, {"0": 3, "1": 4}),
        ({"startingOffsets": '{"a": {"0": 5, "1": 4}}'}, {"0": 5, "1": 4}),
    ):
        assert bare(logs.stream(**options).initialOffset()) == {"a": offsets}


def test_a_stream_goes_on_with_the_other_name_of_its_log(logs: Logs) -> None:
    """Older versions kept the name of a log as the query gave it."""
    logs.by_name["a"] = ALog((0, 9))
    stream = logs.stream()
    end = stream.latestOffset({"default/a": {"0": 4, "id": "1"}}, ALL)
    assert bare(end) == {"a": {"0": 9}}
    (split,) = stream.partitions({"default/a": {"0": 4, "id": "1"}}, end)
    assert cast("Any", split).slice.start == 4


def test_a_start_behind_the_end_is_refused(logs: Logs) -> None:
    """Records that come would be passed over."""
    logs.by_name["a"] = ALog((0, 4))
    stream = logs.stream(startingOffsets='{"a": {"0": 5}}')
    with pytest.raises(BadRequestError, match="has 5 for partition 0 of a, which ends at 4"):
        stream.initialOffset()


def test_the_first_offset_is_the_start_itself(logs: Logs) -> None:
    """Spark keeps it with an empty batch, whatever is there by then."""
    log = logs.by_name["a"] = ALog((0, 4))
    stream = logs.stream()
    start = stream.initialOffset()
    assert bare(start) == {"a": {"0": 4}}
    log.now = [(0, 9)]
    assert stream.initialOffset() == start
    assert stream.latestOffset(start, ALL) == start
    assert bare(stream.latestOffset(start, ALL)) == {"a": {"0": 9}}


def test_a_stream_waits_for_a_record(logs: Logs) -> None:
    """Records that come meanwhile are in the answer."""
    log = logs.by_name["a"] = ALog((0, 4))
    stream, start = started(logs)
    logs.while_waiting = lambda: log.now.__setitem__(0, (0, 6))
    assert bare(stream.latestOffset(start, ALL)) == {"a": {"0": 6}}


def test_an_end_that_goes_back_for_a_moment_loses_nothing(logs: Logs) -> None:
    """The bookies that know the end are away. After a minute it is another log."""
    log = logs.by_name["a"] = ALog((0, 9))
    stream, start = started(logs)
    log.now = [(0, 5)]
    assert stream.latestOffset(start, ALL) == start
    logs.seconds = stream_source.BEHIND_SECONDS - 1
    assert stream.latestOffset(start, ALL) == start
    log.now = [(0, 9)]
    assert stream.latestOffset(start, ALL) == start
    log.now = [(0, 5)]
    logs.seconds += 2
    assert stream.latestOffset(start, ALL) == start, "the minute begins anew"
    logs.seconds += stream_source.BEHIND_SECONDS
    with pytest.raises(LogTruncatedError, match="ends at 5 and was read up to 9"):
        stream.latestOffset(start, ALL)


def test_a_log_that_is_deleted_is_a_loss(logs: Logs) -> None:
    """Or is left out, if the query may lose records."""
    logs.by_name.update(a=ALog((0, 4)), b=ALog((0, 4)))
    careful, start = started(logs)
    careless, _ = started(logs, failOnDataLoss="false")
    del logs.by_name["b"]
    with pytest.raises(LogTruncatedError, match="the log b was deleted; set failOnDataLoss"):
        careful.latestOffset(start, ALL)
    assert bare(careless.latestOffset(start, ALL)) == {"a": {"0": 4}}


def test_a_log_that_is_made_anew_is_a_loss(logs: Logs) -> None:
    """Also if it is longer already than what was read of the former one."""
    logs.by_name["a"] = ALog((0, 4))
    stream, start = started(logs)
    logs.by_name["a"].now = [(0, 5)]
    end = stream.latestOffset(start, ALL)
    assert bare(end) == {"a": {"0": 5}}
    logs.by_name["a"] = ALog((0, 9), log_id="2")
    with pytest.raises(LogTruncatedError, match="the log a was deleted and made anew"):
        stream.latestOffset(end, ALL)


def test_available_now_ends_with_what_was_there(logs: Logs) -> None:
    """Records that come while it runs are for the next query."""
    log = logs.by_name["a"] = ALog((0, 9))
    stream, start = started(logs, startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    log.now = [(0, 50)]
    for expected in (5, 9, 9):
        start = stream.latestOffset(start, ReadMaxRows(5))
        assert bare(start) == {"a": {"0": expected}}


def test_a_batch_keeps_both_limits(logs: Logs) -> None:
    """Spark takes one of them, and this source keeps the other one."""
    logs.by_name["a"] = ALog((0, 1000), entry_bytes=100)
    stream, start = started(
        logs, startingOffsets="earliest", maxEntriesPerTrigger="500", maxBytesPerTrigger="2000"
    )
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert bare(stream.latestOffset(start, limit)) == {"a": {"0": 20}}
    stream, start = started(
        logs, startingOffsets="earliest", maxEntriesPerTrigger="7", maxBytesPerTrigger="2000"
    )
    assert bare(stream.latestOffset(start, stream.getDefaultReadLimit())) == {"a": {"0": 7}}


def test_truncated_bytes_do_not_count(logs: Logs) -> None:
    """A partition was truncated behind what the query has read: its spans begin later."""
    log = logs.by_name["a"] = ALog((0, 10), entry_bytes=100)
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1000"}
    stream, start = started(logs, failOnDataLoss="false", **options)
    log.now = [(8, 14)]
    assert bare(stream.latestOffset(start, stream.getDefaultReadLimit())) == {"a": {"0": 14}}


@pytest.mark.parametrize(
    "limit", [{}, {"maxBytesPerTrigger": "40"}], ids=["without a limit", "with a limit of bytes"]
)
def test_records_that_are_truncated_while_a_batch_is_planned(
    logs: Logs, limit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The bounds are known, and retention removes records before the planner has the spans."""
    log = logs.by_name["a"] = ALog((0, 10))
    options = {"startingOffsets": "earliest", **limit}
    careful, start = started(logs, **options)
    careless, _ = started(logs, failOnDataLoss="false", **options)

    def read(stream: LogStreamReader, earliest: int) -> list[tuple[int, int]]:
        log.now = [(0, 10)]
        log.before_spans = lambda: log.now.__setitem__(0, (earliest, 12))
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        log.now = [(0, 10)]
        slices = [cast("Any", split).slice for split in stream.partitions(start, end)]
        return [(one.start, one.end) for one in slices]

    assert read(careless, 6) == [(6, 10)]
    assert "6 records of partition 0 of a were truncated, from offset 0 on" in caplog.text
    assert "go on at offset 6" in caplog.text
    assert read(careless, 11) == []
    assert "10 records of partition 0 of a were truncated, from offset 0 on" in caplog.text
    with pytest.raises(LogTruncatedError, match="gone; set failOnDataLoss to false to go on"):
        read(careful, 6)


def test_a_limit_of_rows_passes_over_truncated_records_at_once(logs: Logs) -> None:
    """A stream that lags far behind does not make a batch of nothing for every two records."""
    log = logs.by_name["a"] = ALog((0, 10))
    stream, start = started(logs, startingOffsets="earliest", failOnDataLoss="false")
    log.now = [(1000, 1010)]
    end = stream.latestOffset(start, ReadMaxRows(2))
    assert bare(end) == {"a": {"0": 1002}}
    (split,) = stream.partitions(start, end)
    part = cast("Any", split).slice
    assert (part.start, part.end) == (1000, 1002)


def test_a_loss_is_reported_before_a_batch_has_its_least_rows(logs: Logs) -> None:
    log = logs.by_name["a"] = ALog((0, 10))
    stream, start = started(logs, startingOffsets="earliest", minEntriesPerTrigger="10")
    end = stream.latestOffset(start, ALL)
    log.now = [(12, 14)]
    assert bare(stream.latestOffset(end, ALL)) == {"a": {"0": 14}}


def test_a_partition_that_is_new_begins_at_its_earliest_record(logs: Logs) -> None:
    """Of a log that came to match the pattern, and was truncated before that."""
    logs.by_name["a"] = ALog((0, 4))
    stream, start = started(logs)
    logs.by_name["b"] = ALog((7, 9))
    end = stream.latestOffset(start, ALL)
    assert bare(end) == {"a": {"0": 4}, "b": {"0": 9}}
    (split,) = stream.partitions(start, end)
    part = cast("Any", split).slice
    assert (part.log, part.partition, part.start, part.end) == ("b", 0, 7, 9)
    assert stream.partitions(end, end) == []
