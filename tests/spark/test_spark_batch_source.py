"""Logs and ledgers as frames."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from bookie.api import LogPolicy, NewRecord
from bookie.sync import SyncBookKeeper

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
PLAIN_MS = 1_700_000_000_000


def load(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    """A frame."""
    return spark.read.format("bookkeeper").options(metadata=uri, **options).load()


def rows_of(frame: DataFrame, *order: str) -> list[Row]:
    """All rows, sorted."""
    return frame.orderBy(*order).collect()


def test_a_log_with_all_its_columns(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """Keys, headers, times, ledgers that roll."""
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        writer.append_many([b"a", b"b"], partition=0)
        writer.roll()
        rich = NewRecord(b"c", b"key", {"h": b"1", "i": b""}, PLAIN_MS)
        positions = writer.append_many([rich, b"d"], partition=1)
        frame = load(spark, uri, log=log, includeHeaders="true")
        found = rows_of(frame, "partition", "offset")
        assert [bytes(row.value) for row in found] == [b"a", b"b", b"c", b"d"]
        assert {(row.log, row.partition, row.offset) for row in found} == {
            (log, 0, 0),
            (log, 0, 1),
            (log, 1, 0),
            (log, 1, 1),
        }
        third = found[2]
        assert bytes(third.key) == b"key"
        assert [(one.key, bytes(one.value)) for one in third.headers] == [("h", b"1"), ("i", b"")]
        assert (third.ledgerId, third.entryId) == (positions[0].ledger_id, positions[0].entry_id)
        assert third.timestamp.timestamp() * 1000 == PLAIN_MS
        assert found[0].key is None
        assert found[0].headers == []


def test_trap_2_a_frame_is_a_snapshot(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """It is planned at its first action; another load sees more."""
    with bk.open_log(log) as writer:
        writer.append_many([b"a", b"b"])
        frame = load(spark, uri, log=log)
        assert frame.count() == 2
        writer.append(b"c")
        assert frame.count() == 2
        assert [row.offset for row in rows_of(frame, "offset")] == [0, 1]
        assert load(spark, uri, log=log).count() == 3


def test_trap_1_filters_are_never_pushed(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """One frame, several filters, in any order: the rows are right."""
    with bk.open_log(log) as writer:
        writer.append_many([NewRecord(b"%d" % n, b"%d" % (n % 3)) for n in range(30)])
    frame = load(spark, uri, log=log).selectExpr("cast(key as string) k", "offset")
    assert frame.filter("k = '1'").count() == 10
    assert frame.count() == 30
    both = frame.filter("k = '0'").union(frame.filter("k = '1'"))
    assert {row.k for row in both.collect()} == {"0", "1"}
    assert both.count() == 20


def test_where_reading_begins_and_ends(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    with bk.open_log(log) as writer:
        writer.append_many([NewRecord(b"%d" % n, None, {}, PLAIN_MS + n) for n in range(10)])

    def values(**options: Any) -> list[int]:
        return sorted(
            int(bytes(row.value)) for row in load(spark, uri, log=log, **options).collect()
        )

    offsets = f'{{"{log}": {{"0": %d}}}}'
    assert values(startingOffsets=offsets % 7) == [7, 8, 9]
    assert values(startingOffsets=offsets % 2, endingOffsets=offsets % 5) == [2, 3, 4]
    assert values(startingOffsets="latest") == []
    assert values(startingOffsets=offsets % -1) == []
    assert values(startingOffsets=offsets % -2) == list(range(10))
    assert values(startingTimestamp=PLAIN_MS + 4, endingTimestamp=PLAIN_MS + 6) == [4, 5]
    assert values(startingTimestamp="2023-11-14T22:13:20.008Z") == [8, 9]


def test_many_logs_partitions_and_kafkas_names(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    for name in (f"{log}-a", f"{log}-b", f"{log}-c"):
        bk.create_log(name, partitions=2)
        with bk.open_log(name) as writer:
            writer.append_many([b"0"], partition=0)
            writer.append_many([b"1"], partition=1)
    assert load(spark, uri, logs=f"{log}-a, {log}-b").count() == 4
    assert load(spark, uri, logPattern=f"{log}-[bc]").count() == 4
    some = load(spark, uri, partitions=f'{{"{log}-a": [1], "{log}-b": [0, 1]}}')
    assert {(row.log, row.partition) for row in some.collect()} == {
        (f"{log}-a", 1),
        (f"{log}-b", 0),
        (f"{log}-b", 1),
    }
    kafkas = load(spark, uri, subscribe=f"{log}-a", columns="topic,partition,value")
    assert kafkas.columns == ["topic", "partition", "value"]
    assert {row.topic for row in kafkas.collect()} == {f"{log}-a"}
    assert load(spark, uri, subscribePattern=f"{log}-.*").count() == 6


def test_trap_10_nothing_to_read(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    bk.create_log(log)
    assert load(spark, uri, log=log).collect() == []
    assert load(spark, uri, logPattern="no-such-log-.*").count() == 0


def test_ledgers_and_their_parts(spark: SparkSession, uri: str, bk: SyncBookKeeper) -> None:
    """Closed and open ones; nobody is fenced."""
    with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        writer.append_many([b"x" * n for n in range(100)])
        closed = writer.ledger_id
    with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        writer.append_many([b"y", b"z"])
        writer.append(b"not confirmed for others yet, perhaps")
        found = load(spark, uri, ledgers=f"{closed}-{writer.ledger_id}", minPartitions="4")
        rows = rows_of(found.filter(f"ledgerId = {closed}"), "entryId")
        assert [(row.entryId, row.length) for row in rows] == [(n, n) for n in range(100)]
        mine = rows_of(found.filter(f"ledgerId = {writer.ledger_id}"), "entryId")
        assert [bytes(row.value) for row in mine][:2] == [b"y", b"z"]
        writer.append(b"it still writes")
    small = load(spark, uri, ledgers=str(closed), includeValue="false")
    assert small.columns == ["ledgerId", "entryId", "length"]
    assert small.count() == 100


def test_what_was_truncated_is_an_error_or_left_out(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    with bk.open_log(log) as writer:
        writer.append_many([b"%d" % n for n in range(10)])
    start = f'{{"{log}": {{"0": 2}}}}'
    bk.truncate_log(log, before=5)
    with pytest.raises(AnalysisException, match="the earliest one is 5; set failOnDataLoss to fal"):
        load(spark, uri, log=log, startingOffsets=start).collect()
    lenient = load(spark, uri, log=log, startingOffsets=start, failOnDataLoss="false")
    assert sorted(int(bytes(row.value)) for row in lenient.collect()) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what to read"),
        ({"log": "a", "ledgers": "1"}, "not both"),
        ({"log": "no-such-log"}, "no log"),
        ({"ledgers": "1-"}, "a list such as 1,2,10-20"),
        ({"ledgers": "987654321"}, "ledger 987654321 does not exist"),
        ({"logPattern": "("}, "no regular expression"),
        ({"partitions": "[1]"}, "is JSON such as"),
        ({"log": "a", "startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"log": "a", "endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"log": "a", "columns": "value,colour"}, "the option columns has colour"),
        ({"log": "a", "startingOfsets": "latest"}, "do you mean startingOffsets"),
        ({"log": "a", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
    ],
)
def test_what_is_wrong_is_said_when_the_frame_is_made(
    spark: SparkSession, uri: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(spark, uri, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"LOG": {"0": 0}}'}, "startingOffsets says nothing of partition 1"),
        ({"startingOffsets": '{"LOG": {"0": 0, "1": 9}}'}, "which ends at 1"),
        ({"endingOffsets": '{"LOG": {"0": 0, "1": 0, "2": 0}}'}, "which is not read"),
    ],
)
def test_wrong_offsets_are_said_before_any_task(
    spark: SparkSession,
    uri: str,
    bk: SyncBookKeeper,
    log: str,
    options: dict[str, str],
    message: str,
) -> None:
    bk.create_log(log, partitions=2)
    with bk.open_log(log) as writer:
        writer.append(b"1", partition=1)
    given = {name: text.replace("LOG", log) for name, text in options.items()}
    with pytest.raises(AnalysisException, match=message):
        load(spark, uri, log=log, **given).count()


def test_tasks_are_cut_by_bytes(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    """A little is one task; more if they are asked for; no record is lost or doubled."""
    bk.create_log(log, policy=ONE_COPY)
    with bk.open_log(log) as writer:
        writer.append_many([b"%01000d" % n for n in range(1000)])
        writer.roll()
        writer.append_many([b"%01000d" % n for n in range(1000, 2000)])
        for options, tasks in (
            ({}, range(1, 2)),
            ({"minPartitions": "4"}, range(4, 7)),
            ({"maxBytesPerPartition": "100k"}, range(20, 24)),
        ):
            frame = load(spark, uri, log=log, **options)
            assert frame.rdd.getNumPartitions() in tasks
            found = [int(bytes(row.value)) for row in rows_of(frame, "offset")]
            assert found == list(range(2000))


def test_arrow_strictness(spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str) -> None:
    """Spark compares names, order, types and nullability: any choice of columns has to pass."""
    with bk.open_log(log) as writer:
        writer.append_many([b"plain"] * 3)
        writer.append_many([NewRecord(b"rich", b"k", {"h": b"1"})])
    for columns in (
        "headers,value,key",
        "timestamp,offset",
        "entryId,ledgerId,partition,LOG",
        "headers",
        "key",
    ):
        frame = load(spark, uri, log=log, columns=columns, includeHeaders="true")
        assert [one.lower() for one in frame.columns] == columns.lower().split(",")
        assert len(frame.collect()) == 4
    without = load(spark, uri, log=log, includeValue="false")
    assert "value" not in without.columns
    assert {row.offset for row in without.collect()} == {0, 1, 2, 3}
