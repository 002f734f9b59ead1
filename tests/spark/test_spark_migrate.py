"""Records of Kafka become records of logs; what Kafka has and logs have not is treated as said.

There is no Kafka here: frames have the columns of Spark's source for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookie.errors import BadRequestError
from bookie.log.catalog.log_policy import LogPolicy
from bookie.spark.jobs import moving
from bookie.spark.jobs.migrate import MigratePlan, migrate_batch, migrate_from_kafka
from bookie.spark.jobs.moving import MoveTarget
from bookie.sync import SyncBookKeeper

COLUMNS = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "timestamp TIMESTAMP, topic STRING, partition INT, offset BIGINT"
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


@pytest.fixture(autouse=True)
def _known_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that no stream runs has no checkpoint with an id."""
    monkeypatch.setattr(moving, "query_id", lambda *_: "query")


def records(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Records of partition 3, from offset 7 on."""
    plain: dict[str, Any] = {
        "key": None,
        "value": b"v",
        "headers": [],
        "timestamp": AT,
        "topic": "t",
    }
    whole = [{**plain, "partition": 3, "offset": 7 + at, **row} for at, row in enumerate(rows)]
    names = ("key", "value", "headers", "timestamp", "topic", "partition", "offset")
    frame = [tuple(row[name] for name in names) for row in whole]
    return spark.createDataFrame(frame, COLUMNS)


def plan(topics: str = "t", **options: Any) -> MigratePlan:
    """A plan for topics."""
    return MigratePlan("127.0.0.1:1", topics, **options)


def test_tombstones(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    target = MoveTarget(uri, log, str(tmp_path), create=True, partitions=2)
    frame = records(spark, {"key": b"a"}, {"key": b"b", "value": None}, {"value": b""})
    says = (
        "topic t, partition 3, offset 8: the value is null, which is a tombstone; --tombstones "
        "skip leaves such records out, and --tombstones empty gives them an empty value"
    )
    with pytest.raises(BadRequestError, match=says):
        migrate_batch(frame, 0, plan(), target)
    assert not list(tmp_path.iterdir())
    migrate_batch(frame, 0, plan(tombstones="skip"), target)
    assert bk.publisher(log).definition().partitions == 2
    assert sorted((one.key, one.value) for one in bk.read_log(log) if one.key) == [(b"a", b"v")]
    notes = spark.read.json(str(tmp_path / "moved")).collect()
    assert [(one["rows"], one["quarantined"], one["skipped"]) for one in notes] == [(2, 0, 1)]
    migrate_batch(frame, 1, plan(tombstones="empty"), target)
    found = sorted((one.key or b"", one.value) for one in bk.read_log(log))
    assert found == [(b"", b""), (b"", b""), (b"a", b"v"), (b"a", b"v"), (b"b", b"")]
    assert {one.timestamp_ms for one in bk.read_log(log)} == {int(AT.timestamp() * 1000)}


def test_headers_and_rows_that_no_record_holds(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """A batch that is published, or comes again, has the same quarantine."""
    bk.create_log(log, partitions=4, transactional=True)
    most = bk.publisher(log).bounds().size_bytes_max - 24
    repeated = [("a", b"1"), ("b", None), ("a", b"2"), ("a", None)]
    ahead = datetime(2300, 1, 1, tzinfo=UTC)
    frame = records(
        spark,
        {"headers": repeated, "key": b"k"},
        {"headers": [], "value": b"x" * most},
        {"headers": [("a", b""), ("a", b""), ("a#2", b"")], "value": b"same"},
        {"headers": [("n" * 65_536, b"")], "value": b"long"},
        {"value": b"x" * (most + 1)},
        {"headers": [("a", b"b")], "value": b"x" * (most - 11)},
        {"timestamp": ahead, "value": b"late"},
    )
    target = MoveTarget(uri, log, str(tmp_path), too_large="quarantine")
    says = r"offset 13: the time 10413792000000 ms .*; --times-ahead quarantine .* ahead_seconds"
    with pytest.raises(BadRequestError, match=says):
        migrate_batch(frame, 0, plan(keeps_partitions=True), target)
    with pytest.raises(
        BadRequestError, match=r"offset 11: the record has .*--too-large quarantine"
    ):
        migrate_batch(frame, 0, plan(times_ahead="quarantine"), MoveTarget(uri, log, str(tmp_path)))
    for _ in range(2):
        wanted = plan(keeps_partitions=True, times_ahead="quarantine")
        migrate_batch(frame, 0, wanted, target)
        small, large = sorted(bk.read_log(log, partition=3), key=lambda one: len(one.value))
        assert dict(small.headers) == {"a": b"1", "b": b"", "a#2": b"2", "a#3": b""}
        assert (small.key, small.value, len(large.value)) == (b"k", b"v", most)
        bad = spark.read.parquet(str(tmp_path / "quarantine")).orderBy("offset").collect()
        size = most + 25
        assert [(row["offset"], row["reason"]) for row in bad] == [
            (9, "two headers have one name, also with a number behind it"),
            (10, "the name of a header has more than 65535 bytes"),
            (11, f"the record has {size} bytes with key and headers, and the most is {size - 1}"),
            (12, f"the record has {size} bytes with key and headers, and the most is {size - 1}"),
            (13, "the time 10413792000000 ms is further ahead than the log allows"),
        ]
        assert bytes(bad[-1]["value"]) == b"late"
        assert bad[-1]["batch"] == 0


def test_each_topic_has_a_log_with_bounds_of_its_own(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """The log of the second topic allows all times, and is not made again."""
    ahead = datetime(2300, 1, 1, tzinfo=UTC)
    other = {"topic": f"{log}-b", "value": b"w", "timestamp": ahead}
    frame = records(spark, {"topic": f"{log}-a"}, other)
    policy = LogPolicy(ahead_seconds=0)
    bk.create_log(f"{log}-b", transactional=True, policy=policy)
    target = MoveTarget(uri, None, str(tmp_path), create=True)
    migrate_batch(frame, 0, plan(f"{log}-a, {log}-b"), target)
    for name, value in (("a", b"v"), ("b", b"w")):
        assert [one.value for one in bk.read_log(f"{log}-{name}")] == [value]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tombstones": "drop"}, "--tombstones is one of fail, skip, empty, not 'drop'"),
        ({"times_ahead": "now"}, "--times-ahead is one of fail, quarantine, not 'now'"),
        ({"options": {"subscribe": "x"}}, "sets the option subscribe by itself"),
    ],
)
def test_plans_that_are_wrong(spark: SparkSession, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        migrate_from_kafka(spark, plan(**options), MoveTarget("local:///x", "log", "/nowhere"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"too_large": "skip"}, "--too-large is one of fail, quarantine, not 'skip'"),
        ({"partitions": 4}, "--partitions is for a log that is made; add --create"),
        ({"partitions": 99, "create": True}, "--partitions is 1 to 98, not 99"),
    ],
)
def test_targets_that_are_wrong(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        MoveTarget("local:///x", "log", "/nowhere", **options).validate()
