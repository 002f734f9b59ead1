"""The streaming source as Spark drives it, without Spark: every step can be seen."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from bookie.api import LogPolicy, NewRecord
from bookie.errors import BadRequestError, LogTakenOverError, LogTruncatedError, NoSuchLogError
from bookie.spark.batch_source import LogBatchReader
from bookie.spark.options import SparkOptions
from bookie.spark.source_options import LogSource, take_source
from bookie.spark.stream_source import LogStreamReader
from bookie.sync import SyncBookKeeper

Offsets = Mapping[str, Mapping[str, int | str]]
ALL = ReadAllAvailable()
ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


def stream(uri: str, **options: Any) -> LogStreamReader:
    """A new query's source."""
    given = {name: str(value) for name, value in options.items()}
    source = take_source(SparkOptions({"metadata": uri, **given}), is_stream=True)
    assert isinstance(source, LogSource)
    return LogStreamReader(source)


def started(uri: str, **options: Any) -> tuple[LogStreamReader, Offsets]:
    """A source whose first batch is over."""
    reader = stream(uri, **options)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    assert reader.partitions(start, start) == []
    return reader, start


def values(reader: LogStreamReader, start: Offsets, end: Offsets) -> list[int]:
    """The records of a batch, read by copies as tasks have them."""
    found: list[int] = []
    for partition in reader.partitions(start, end):
        task = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            assert isinstance(batch, pa.RecordBatch)
            found += [int(one) for one in batch.column("value").to_pylist()]
    return found


def places(offsets: Offsets | None) -> dict[str, dict[str, int]]:
    """Offsets without the ids of their logs."""
    assert offsets is not None
    return {log: {k: v for k, v in of.items() if isinstance(v, int)} for log, of in offsets.items()}


def made_anew(
    bk: SyncBookKeeper, log: str, values: Sequence[bytes], *, partitions: int = 1
) -> None:
    """Delete a log, and make another one of its name, with records in its first partition."""
    bk.delete_log(log)
    bk.create_log(log, partitions=partitions)
    with bk.open_log(log) as writer:
        writer.append_many(values, partition=0)


def numbers(*some: int) -> Sequence[bytes]:
    """Values of records."""
    return [b"%d" % one for one in some]


def test_trap_3_the_first_batch_is_pinned(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """Its end is its start, which stays what it is; a restart of the batch loses nothing."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
        reader = stream(uri, log=log)
        start = reader.initialOffset()
        writer.append_many(numbers(3, 4))
        assert reader.initialOffset() == start
        assert places(start) == {log: {"0": 2}}
        assert reader.latestOffset(start, ALL) == start
        # Spark has kept only the end of batch 0, and starts anew.
        again = stream(uri, log=log)
        assert places(again.initialOffset()) == {log: {"0": 4}}
        assert again.partitions(again.initialOffset(), start) == []
        end = again.latestOffset(start, ALL)
        assert values(again, start, end) == [3, 4]


def test_trap_8_limits_of_rows_and_bytes_are_kept_together(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """Spark passes one limit; the other is kept too, unless all is asked for."""
    bk.create_log(log, policy=ONE_COPY)
    with bk.open_log(log) as writer:
        writer.append_many([b"%0100d" % n for n in range(1000)])
    first: dict[str, Any] = {"log": log, "startingOffsets": "earliest"}
    reader, start = started(uri, **first, maxEntriesPerTrigger=300, maxBytesPerTrigger="10k")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    end = reader.latestOffset(start, limit)
    count = places(end)[log]["0"]
    assert 60 <= count <= 102  # some 128 bytes each
    assert values(reader, start, end) == list(range(count))
    assert places(reader.latestOffset(start, ALL)) == {log: {"0": 1000}}
    assert places(reader.reportLatestOffset()) == {log: {"0": 1000}}

    rows, start = started(uri, **first, maxOffsetsPerTrigger=300)
    assert places(rows.latestOffset(start, rows.getDefaultReadLimit())) == {log: {"0": 300}}
    size, start = started(uri, **first, maxBytesPerTrigger="10k")
    assert size.getDefaultReadLimit() == ReadMaxBytes(10240)
    assert size.latestOffset(start, size.getDefaultReadLimit()) == end
    free, start = started(uri, **first)
    assert free.getDefaultReadLimit() == ALL
    assert places(free.latestOffset(start, ReadMaxRows(7))) == {log: {"0": 7}}


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxBytes(1)])
def test_the_smallest_limit_still_advances_every_partition(
    uri: str, bk: SyncBookKeeper, log: str, limit: ReadLimit
) -> None:
    bk.create_log(log, partitions=3)
    with bk.open_log(log) as writer:
        for partition in range(3):
            writer.append_many(numbers(partition, 10 + partition), partition=partition)
    reader, end = started(uri, log=log, startingOffsets="earliest")
    found: list[list[int]] = []
    for _ in range(2):
        start, end = end, reader.latestOffset(end, limit)
        found.append(values(reader, start, end))
    assert found == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("limits", [{"maxEntriesPerTrigger": 50}, {"maxBytesPerTrigger": "6k"}])
def test_a_long_backlog_starves_no_short_partition(
    uri: str, bk: SyncBookKeeper, log: str, limits: dict[str, Any]
) -> None:
    """Each batch takes from all partitions that have records, also when its limit is small."""
    bk.create_log(log, partitions=4, policy=ONE_COPY)
    with bk.open_log(log) as writer:
        writer.append_many([b"%0100d" % n for n in range(2000)], partition=0)
        for partition in range(1, 4):
            writer.append_many(numbers(1, 2, 3), partition=partition)
    reader, end = started(uri, log=log, startingOffsets="earliest", **limits)
    for batch in range(1, 4):
        start, end = end, reader.latestOffset(end, reader.getDefaultReadLimit())
        assert [end[log][str(partition)] for partition in range(1, 4)] == [batch] * 3
        assert 30 <= int(end[log]["0"]) - int(start[log]["0"]) <= 50


def test_a_batch_waits_until_it_is_large_enough_or_old_enough(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """Records from before the start are read at once; a restart delays none further."""
    with bk.open_log(log) as writer:
        writer.append(b"0")
        least: dict[str, Any] = {"log": log, "minEntriesPerTrigger": 3}
        reader, start = started(uri, startingOffsets="earliest", **least)
        first = reader.latestOffset(start, ALL)
        assert first[log]["0"] == 1
        writer.append_many(numbers(1, 2))
        assert reader.latestOffset(first, ALL) == first
        writer.append(b"3")
        second = reader.latestOffset(first, ALL)
        assert values(reader, first, second) == [1, 2, 3]

        hasty = stream(uri, maxTriggerDelay="1ms", **least)
        assert hasty.latestOffset(second, ALL) == second
        writer.append(b"4")
        assert hasty.latestOffset(second, ALL)[log]["0"] == 5
        assert stream(uri, **least).latestOffset(second, ALL)[log]["0"] == 5

        # A query that ends waits for nothing.
        ending = stream(uri, **least)
        ending.prepareForTriggerAvailableNow()
        third = ending.latestOffset(second, ALL)
        assert third[log]["0"] == 5
        assert ending.latestOffset(third, ALL) == third


def test_a_start_by_times_of_partitions(uri: str, bk: SyncBookKeeper, log: str) -> None:
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        for partition in range(2):
            for number in range(4):
                record = NewRecord(b"%d" % number, timestamp_ms=1000 * (number + 1))
                writer.append_many([record], partition=partition)
    times = json.dumps({log: {"0": 1500, "1": "1970-01-01T00:00:04Z"}})
    reader, start = started(uri, log=log, startingOffsetsByTimestamp=times)
    assert (start[log]["0"], start[log]["1"]) == (1, 3)
    assert values(reader, start, reader.latestOffset(start, ALL)) == [1, 2, 3, 3]
    for wrong, message in {
        json.dumps({log: {"0": 1}}): "startingTimestamp says nothing of partition 1",
        json.dumps({log: {"0": 1, "1": 1, "2": 1}}): "names partition 2 of .*, which is not read",
    }.items():
        with pytest.raises(BadRequestError, match=message):
            stream(uri, log=log, startingTimestamp=wrong).initialOffset()


def test_a_waiting_stream_wakes_for_a_record(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """It waits inside `latestOffset`, and the writer's record ends the wait."""
    with bk.open_log(log) as writer:
        writer.append(b"1")
        reader, start = started(uri, log=log)
        assert reader.latestOffset(start, ALL) == start  # after a whole wait
        found: list[Offsets] = []
        waiting = threading.Thread(target=lambda: found.append(reader.latestOffset(start, ALL)))
        waiting.start()
        writer.append(b"2")
        waiting.join()
    (end,) = found
    if end == start:  # the machine was so slow that the wait was over first
        end = reader.latestOffset(start, ALL)
    assert values(reader, start, end) == [2]


def test_new_logs_of_a_pattern_with_all_their_partitions(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """They are read from their beginning, although the query starts at the latest record."""
    reader, start = started(uri, logPattern=f"{log}-.*")
    assert start == {}
    with bk.open_log(f"{log}-b") as writer:
        writer.append_many(numbers(1, 2))
    end = reader.latestOffset(start, ALL)
    assert places(end) == {f"{log}-b": {"0": 2}}
    assert values(reader, start, end) == [1, 2]
    bk.create_log(f"{log}-a", partitions=2)
    with bk.open_log(f"{log}-a") as writer:
        writer.append_many(numbers(3, 4), partition=1)
    later = reader.latestOffset(end, ALL)
    wanted = {f"{log}-a": {"0": 0, "1": 2}, f"{log}-b": {"0": 2}}
    assert json.dumps(places(later)) == json.dumps(wanted)
    assert values(reader, end, later) == [3, 4]


def test_a_takeover_is_not_noticed(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """Another owner fences the ledger and goes on in a new one."""
    former = bk.open_log(log)
    former.append_many(numbers(0, 1))
    reader, start = started(uri, log=log, startingOffsets="earliest")
    end = reader.latestOffset(start, ALL)
    with bk.open_log(log) as writer:
        writer.append_many(numbers(2, 3))
        later = reader.latestOffset(end, ALL)
        assert values(reader, start, later) == [0, 1, 2, 3]
        assert values(reader, end, later) == [2, 3]
    with pytest.raises(LogTakenOverError):
        former.close()


def test_truncation_is_an_error_that_names_the_earliest_record(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    with bk.open_log(log) as writer:
        writer.append_many(numbers(*range(10)))
    reader, start = started(uri, log=log, startingOffsets="earliest")
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    bk.truncate_log(log, before=6)
    with pytest.raises(LogTruncatedError, match="the earliest one is 6; set failOnDataLoss"):
        reader.partitions(start, end)
    with pytest.raises(LogTruncatedError, match="the earliest one is 6; set failOnDataLoss"):
        _read_all(reader, planned)
    lenient = stream(uri, log=log, failOnDataLoss="false")
    assert values(lenient, start, end) == [6, 7, 8, 9]
    assert values(lenient, start, {log: {"0": 4}}) == []


def test_a_deleted_log_is_an_error_or_left_out(uri: str, bk: SyncBookKeeper, log: str) -> None:
    for name in (f"{log}-a", f"{log}-b"):
        with bk.open_log(name) as writer:
            writer.append_many(numbers(1, 2))
    readers = [
        started(uri, logPattern=f"{log}-.*", startingOffsets="earliest", failOnDataLoss=fails)
        for fails in ("true", "false")
    ]
    (strict, start), (lenient, _) = readers
    end = strict.latestOffset(start, ALL)
    assert lenient.latestOffset(start, ALL) == end
    bk.delete_log(f"{log}-a")
    for step in (lambda: strict.partitions(start, end), lambda: strict.latestOffset(end, ALL)):
        with pytest.raises(LogTruncatedError, match=f"the log {log}-a was deleted; set failOn"):
            step()
    assert values(lenient, start, end) == [1, 2]
    with bk.open_log(f"{log}-a") as writer:
        writer.append_many(numbers(5, 6, 7))
    later = lenient.latestOffset(end, ALL)
    assert places(later) == {f"{log}-a": {"0": 3}, f"{log}-b": {"0": 2}}
    assert values(lenient, end, later) == [5, 6, 7]


@pytest.mark.parametrize("records", [1, 2, 6])
def test_a_log_that_was_made_anew_while_the_query_was_down(
    uri: str, bk: SyncBookKeeper, log: str, records: int
) -> None:
    """It is another log, however many records it has, and read from its beginning or not at all."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    first, start = started(uri, log=log, startingOffsets="earliest")
    end = first.latestOffset(start, ALL)
    later = numbers(*range(10, 10 + records))
    made_anew(bk, log, later)
    for step in (
        lambda: stream(uri, log=log).latestOffset(end, ALL),
        lambda: stream(uri, log=log).partitions(start, end),
    ):
        with pytest.raises(LogTruncatedError, match=f"{log} was deleted and made anew; give"):
            step()
    lenient = stream(uri, log=log, failOnDataLoss="false")
    assert values(lenient, start, end) == []
    limit = ReadMaxRows(1)
    found: list[int] = []
    while (behind := lenient.latestOffset(end, limit)) != end:
        found += values(lenient, end, behind)
        # A batch that is repeated by another process has the same records.
        assert values(stream(uri, log=log, failOnDataLoss="false"), end, behind) == found[-1:]
        end = behind
    assert found == [int(one) for one in later]


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_log_that_was_made_anew_with_fewer_partitions(
    uri: str, bk: SyncBookKeeper, log: str, has_ids: bool
) -> None:
    """Also the offsets of older versions, which have no ids, tell this."""
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2), partition=0)
        writer.append_many(numbers(3, 4), partition=1)
    reader, start = started(uri, log=log, startingOffsets="earliest")
    end: Offsets = reader.latestOffset(start, ALL)
    if not has_ids:
        start, end = places(start), places(end)
    made_anew(bk, log, numbers(5, 6, 7))
    for step in (
        lambda: stream(uri, log=log).latestOffset(end, ALL),
        lambda: stream(uri, log=log).partitions(start, end),
    ):
        with pytest.raises(LogTruncatedError, match=f"{log} was deleted and made anew; give"):
            step()
    lenient = stream(uri, log=log, failOnDataLoss="false")
    later = lenient.latestOffset(end, ALL)
    assert places(later) == {log: {"0": 3}}
    assert values(lenient, end, later) == [5, 6, 7]


def test_offsets_of_an_older_version_have_no_ids(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """They open, and the next batch has the ids."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2, 3))
    former: Offsets = {log: {"0": 2}}
    reader = stream(uri, log=log)
    assert values(reader, {log: {"0": 1}}, former) == [2]
    end = reader.latestOffset(former, ALL)
    assert places(end) == {log: {"0": 3}}
    assert end != {log: {"0": 3}}
    assert values(reader, former, end) == [3]
    # Nothing is new; the ids are.
    assert stream(uri, log=log).latestOffset({log: {"0": 3}}, ALL) == end


def test_offsets_of_an_older_version_that_are_beyond_the_end(
    uri: str, bk: SyncBookKeeper, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is another one. At first the bookies that know more may be away."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    former: Offsets = {log: {"0": 5}}
    assert stream(uri, log=log).latestOffset(former, ALL) == former
    monkeypatch.setattr("bookie.spark.stream_source.BEHIND_SECONDS", 0)
    with pytest.raises(LogTruncatedError, match=r"ends at 2 and was read up to 5.*made anew"):
        stream(uri, log=log).latestOffset(former, ALL)
    lenient = stream(uri, log=log, failOnDataLoss="false")
    end = lenient.latestOffset(former, ALL)
    assert places(end) == {log: {"0": 2}}
    assert values(lenient, former, end) == [1, 2]


def test_the_same_log_that_ends_before_what_was_read(
    uri: str, bk: SyncBookKeeper, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not made anew, so nobody says so; a query that ends does not end before it is said."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    reader, start = started(uri, log=log)
    beyond: Offsets = {log: {**start[log], "0": 5}}
    assert reader.latestOffset(beyond, ALL) == beyond
    monkeypatch.setattr("bookie.spark.stream_source.BEHIND_SECONDS", 0.5)
    until_now = stream(uri, log=log)
    until_now.prepareForTriggerAvailableNow()
    with pytest.raises(LogTruncatedError, match=r"ends at 2 and was read up to 5: .*are lost"):
        until_now.latestOffset(beyond, ALL)


def test_a_task_of_a_log_that_was_made_anew_meanwhile(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """It was planned with the former log, whose records it does not find in the new one."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    options = {"log": log, "startingOffsets": "earliest"}
    strict, start = started(uri, **options)
    lenient = stream(uri, **options, failOnDataLoss="false")
    end = strict.latestOffset(start, ALL)
    planned = strict.partitions(start, end), lenient.partitions(start, end)
    made_anew(bk, log, numbers(5, 6, 7))
    with pytest.raises(LogTruncatedError, match=f"{log} was deleted and made anew; give"):
        _read_all(strict, planned[0])
    assert [list(lenient.read(one)) for one in planned[1]] == [[]]
    bk.delete_log(log)
    with pytest.raises(LogTruncatedError, match=f"{log} was deleted; set failOn"):
        _read_all(strict, planned[0])
    assert [list(lenient.read(one)) for one in planned[1]] == [[]]


def test_a_frame_of_a_log_that_was_made_anew_since_it_was_planned(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """Its tasks read nothing of the new log."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    source = take_source(SparkOptions({"metadata": uri, "log": log}), is_stream=False)
    assert isinstance(source, LogSource)
    frame = LogBatchReader(source)
    planned = frame.partitions()
    made_anew(bk, log, numbers(5, 6, 7))
    with pytest.raises(LogTruncatedError, match="made anew; load the frame again; set failOn"):
        list(frame.read(planned[0]))


def test_a_named_log_that_was_deleted(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """An error, or the others go on; made anew, it is read from its beginning."""
    names = f"{log}-a,{log}-b"
    for name in names.split(","):
        with bk.open_log(name) as writer:
            writer.append_many(numbers(1, 2))
    reader, start = started(uri, logs=names, startingOffsets="earliest")
    end = reader.latestOffset(start, ALL)
    bk.delete_log(f"{log}-b")
    for step in (
        lambda: stream(uri, logs=names).latestOffset(end, ALL),
        lambda: stream(uri, logs=names).partitions(start, end),
    ):
        with pytest.raises(LogTruncatedError, match=f"the log {log}-b was deleted; set failOn"):
            step()
    lenient = stream(uri, logs=names, failOnDataLoss="false")
    assert values(lenient, start, end) == [1, 2]
    with bk.open_log(f"{log}-a") as writer:
        writer.append_many(numbers(3))
    later = lenient.latestOffset(end, ALL)
    assert places(later) == {f"{log}-a": {"0": 3}}
    assert values(lenient, end, later) == [3]
    with bk.open_log(f"{log}-b") as writer:
        writer.append_many(numbers(7, 8))
    last = lenient.latestOffset(later, ALL)
    assert values(lenient, later, last) == [7, 8]


def test_a_new_query_needs_the_logs_that_it_names(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """A name that is written wrong is no loss of data."""
    bk.create_log(f"{log}-a")
    lenient = stream(uri, logs=f"{log}-a,{log}-wrong", failOnDataLoss="false")
    with pytest.raises(NoSuchLogError, match=f"{log}-wrong"):
        lenient.initialOffset()


def test_a_log_that_was_left_out_of_the_options(uri: str, bk: SyncBookKeeper, log: str) -> None:
    """Nobody calls it deleted. Its offset is kept, so that it goes on when it is named again."""
    both, one = f"{log}-a,{log}-b", f"{log}-a"
    for name in both.split(","):
        with bk.open_log(name) as writer:
            writer.append_many(numbers(1, 2))
    reader, start = started(uri, logs=both, startingOffsets="earliest")
    end = reader.latestOffset(start, ALL)
    without = stream(uri, logs=one)
    # A batch that is repeated has the same records.
    assert values(without, start, end) == [1, 2, 1, 2]
    for name in both.split(","):
        with bk.open_log(name) as writer:
            writer.append_many(numbers(3))
    later = without.latestOffset(end, ReadMaxBytes(1 << 20))
    assert places(later) == {f"{log}-a": {"0": 3}, f"{log}-b": {"0": 2}}
    assert values(without, end, later) == [3]
    assert without.latestOffset(later, ALL) == later
    again = stream(uri, logs=both)
    last = again.latestOffset(later, ALL)
    assert places(last) == {f"{log}-a": {"0": 3}, f"{log}-b": {"0": 3}}
    assert values(again, later, last) == [3]
    bk.delete_log(f"{log}-b")
    assert without.latestOffset(last, ALL) == last


def test_a_partition_that_was_left_out_of_the_options(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        for partition in range(2):
            writer.append_many(numbers(partition), partition=partition)
    reader, start = started(uri, log=log, startingOffsets="earliest")
    end = reader.latestOffset(start, ALL)
    one = stream(uri, partitions=json.dumps({log: [1]}))
    assert values(one, start, end) == [0, 1]
    assert one.latestOffset(end, ALL) == end


def test_offsets_of_another_log_of_the_name_are_no_start(
    uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """Those of a progress have the id of their log."""
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
    reader, start = started(uri, log=log)
    given = json.dumps(start)
    assert stream(uri, log=log, startingOffsets=given).initialOffset() == start
    made_anew(bk, log, numbers(5, 6, 7))
    with pytest.raises(BadRequestError, match=f"another log {log}"):
        stream(uri, log=log, startingOffsets=given).initialOffset()
    assert reader.source.fail_on_data_loss


def test_available_now_ends_where_it_was_asked(uri: str, bk: SyncBookKeeper, log: str) -> None:
    with bk.open_log(log) as writer:
        writer.append_many(numbers(1, 2))
        reader = stream(uri, log=log, startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        writer.append_many(numbers(3))
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
        end = reader.latestOffset(start, ALL)
        assert places(end) == {log: {"0": 2}}
        assert reader.latestOffset(end, ALL) == end


def test_trap_10_a_task_with_nothing_to_read(uri: str, bk: SyncBookKeeper, log: str) -> None:
    bk.create_log(log)
    reader, start = started(uri, log=log)
    assert list(reader.read(InputPartition(None))) == []
    assert places(start) == {log: {"0": 0}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledgers": "1"}, "a stream reads logs"),
        ({"log": "a", "endingOffsets": "latest"}, "a stream has no end"),
        ({"log": "a", "maxEntriesPerTrigger": "0"}, "maxEntriesPerTrigger is a number from 1 on"),
        ({"log": "a", "maxBytesPerTrigger": "much"}, "maxBytesPerTrigger is a size"),
        (
            {"log": "a", "maxEntriesPerTrigger": "1", "maxOffsetsPerTrigger": "1"},
            "mean the same; give one",
        ),
    ],
)
def test_options_that_no_stream_has(uri: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        stream(uri, **options)


def _read_all(reader: LogStreamReader, planned: Sequence[InputPartition]) -> None:
    for partition in planned:
        list(reader.read(partition))
