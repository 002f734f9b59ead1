"""One attempt of a task, on bookies but without Spark: what it writes and leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from bookie.errors import BadRequestError, NoSuchLogError
from bookie.log.catalog.log_policy import LogPolicy
from bookie.spark import sink_task
from bookie.spark.connecting import SparkConnection
from bookie.spark.sink_options import SinkColumns, SinkSettings
from bookie.spark.sink_task import LogRanges, SinkTask, find_log, write_rows
from bookie.spark.task_writers import TaskWriters
from bookie.sync import SyncBookKeeper
from bookie.testing import sync_cluster

APPLICATION = "query"
SETTINGS = SinkSettings(SparkConnection("memory://x"), SinkColumns(value=0, log=1), log=None)


@pytest.fixture
def bk() -> Iterator[SyncBookKeeper]:
    """A client of three bookies."""
    with sync_cluster() as running, running.connect() as client:
        for name, partitions in (("a", 1), ("b", 3)):
            client.create_log(name, partitions=partitions, transactional=True)
        yield client


@pytest.fixture
def writers(bk: SyncBookKeeper) -> Iterator[TaskWriters]:
    """Those of a process; at the end all are closed."""
    kept = TaskWriters(idle_seconds_max=0, timer=lambda *_: threading.Thread())
    yield kept
    kept.close_idle()


def rows(*pairs: tuple[str, str]) -> pa.RecordBatch:
    """Values and logs, as a batch."""
    values, logs = zip(*pairs, strict=True)
    return pa.record_batch({"value": pa.array(values), "log": pa.array(logs)})


def attempt(
    bk: SyncBookKeeper, writers: TaskWriters, *batches: pa.RecordBatch, turn: int = 0
) -> LogRanges:
    """The result of an attempt."""
    task = SinkTask(SETTINGS, APPLICATION, writers, bk, turn)
    return write_rows(task, iter(batches))


def publish(bk: SyncBookKeeper, batch: int, written: LogRanges) -> None:
    """Publish each log."""
    for log, ranges in written.items():
        assert bk.publisher(log).publish(APPLICATION, batch, ranges)


def values(bk: SyncBookKeeper, log: str) -> list[str]:
    """The records that readers see."""
    return [record.value.decode() for record in bk.read_log(log)]


def test_ledgers_go_on_from_batch_to_batch(bk: SyncBookKeeper, writers: TaskWriters) -> None:
    first = attempt(bk, writers, rows(("1", "a"), ("2", "b")), rows(("3", "a")))
    assert (values(bk, "a"), values(bk, "b")) == ([], [])
    second = attempt(bk, writers, rows(("4", "a")))
    publish(bk, 0, first)
    publish(bk, 1, second)
    assert (values(bk, "a"), values(bk, "b")) == (["1", "3", "4"], ["2"])
    [one], [other] = first["a"], second["a"]
    assert (one.ledger_id, one.last_entry_id + 1) == (other.ledger_id, other.first_entry_id)


def test_rows_without_keys_go_to_partitions_in_turn(
    bk: SyncBookKeeper, writers: TaskWriters
) -> None:
    batches = [rows((str(number), "b"), (str(number), "b")) for number in range(4)]
    written = attempt(bk, writers, *batches, turn=2)
    found = [(one.partition, one.last_entry_id - one.first_entry_id + 1) for one in written["b"]]
    assert found == [(0, 2), (1, 2), (2, 4)]


def test_two_spellings_of_a_name_are_one_log(bk: SyncBookKeeper, writers: TaskWriters) -> None:
    """Otherwise the log would drop the second range of the batch as published before."""
    written = attempt(bk, writers, rows(("1", "a"), ("2", "default/a"), ("3", "a")))
    assert list(written) == ["a"]
    publish(bk, 0, written)
    assert sorted(values(bk, "a")) == ["1", "2", "3"]


def test_what_a_failed_attempt_wrote_is_in_no_range(
    bk: SyncBookKeeper, writers: TaskWriters
) -> None:
    """Neither in its own nor in that of the next attempt, which has another ledger."""
    done = attempt(bk, writers, rows(("1", "a")))

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(("2", "a"))
        raise ValueError("planted")

    task = SinkTask(SETTINGS, APPLICATION, writers, bk, 0)
    with pytest.raises(ValueError, match="planted"):
        write_rows(task, failing())
    again = attempt(bk, writers, rows(("2", "a")))
    publish(bk, 0, done)
    publish(bk, 1, again)
    assert values(bk, "a") == ["1", "2"]
    assert done["a"][0].ledger_id != again["a"][0].ledger_id


def test_a_record_that_is_too_large_fails_the_attempt(
    bk: SyncBookKeeper, writers: TaskWriters
) -> None:
    says = (
        r"the row 4 of its task \(log a, partition 0\) has 5242896 bytes with key and headers, and "
        "a record has at most 4194268; filter such rows out"
    )
    with pytest.raises(BadRequestError, match=says):
        attempt(bk, writers, rows(("1", "a"), ("2", "b")), rows(("3", "b"), ("x" * (5 << 20), "a")))
    publish(bk, 0, attempt(bk, writers, rows(("1", "a"))))
    assert values(bk, "a") == ["1"]


def test_the_largest_record_fits(bk: SyncBookKeeper, writers: TaskWriters) -> None:
    largest = bk.publisher("a").bounds().size_bytes_max - 16
    publish(bk, 0, attempt(bk, writers, rows(("x" * largest, "a"))))
    assert list(map(len, values(bk, "a"))) == [largest]
    with pytest.raises(BadRequestError, match=r"the row 1 .* has 4194269 bytes"):
        attempt(bk, writers, rows(("x" * (largest + 1), "a")))


def test_a_time_too_far_ahead_names_its_row(bk: SyncBookKeeper, writers: TaskWriters) -> None:
    """As of microseconds that are given as milliseconds."""
    ahead = datetime(2300, 1, 1, tzinfo=UTC)
    fine = datetime(2020, 1, 1, tzinfo=UTC)
    columns = SinkColumns(value=0, key=1, timestamp=2)
    settings = SinkSettings(SparkConnection("memory://x"), columns, log="a")
    times = pa.array([fine, None, ahead, fine], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": ["1", "2", "3", "4"], "key": list("kxyz"), "at": times})
    says = (
        r"the row 3 of its task \(log a, partition 0, key b'y'\) has the time 10413792000000 ms "
        r"\(2300-01-01T00:00:00.000Z\), more than 86400 s ahead; correct the column timestamp"
    )
    task = SinkTask(settings, APPLICATION, writers, bk, 0)
    with pytest.raises(BadRequestError, match=says):
        write_rows(task, iter([batch]))
    bk.delete_log("a")
    bk.create_log("a", transactional=True, policy=LogPolicy(ahead_seconds=0))
    publish(bk, 0, write_rows(SinkTask(settings, APPLICATION, writers, bk, 0), iter([batch])))
    assert values(bk, "a") == ["1", "2", "3", "4"]


def test_many_rows_keep_their_order(
    bk: SyncBookKeeper, writers: TaskWriters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a task has to wait for the ledgers."""
    monkeypatch.setattr(sink_task, "UNDER_WAY_BYTES_MAX", 10_000)
    monkeypatch.setattr(sink_task, "PIECE_ROWS", 7)
    expected = [f"{number:100}" for number in range(2000)]
    publish(bk, 0, attempt(bk, writers, rows(*((one, "a") for one in expected))))
    assert values(bk, "a") == expected


def test_what_is_under_way_has_a_bound(
    bk: SyncBookKeeper, writers: TaskWriters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece at least, however large it is."""
    monkeypatch.setattr(sink_task, "UNDER_WAY_BYTES_MAX", 5_000)
    monkeypatch.setattr(sink_task, "PIECE_ROWS", 20)
    task = SinkTask(SETTINGS, APPLICATION, writers, bk, 0)
    for _ in range(5):
        task.add(rows(*((f"{number:100}", "a") for number in range(100))))
        assert task._under_way
        assert sum(size for _, size in task._under_way) == task._under_way_bytes <= 5_000
    task.finish()


def test_a_task_writes_to_so_many_partitions(
    bk: SyncBookKeeper, writers: TaskWriters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_task, "TASK_RANGES_MAX", 1)
    with pytest.raises(BadRequestError, match=r'more than 1 partitions .*repartition\("log"\)'):
        attempt(bk, writers, rows(("1", "a"), ("2", "b")))


def test_logs_that_are_missing_or_owned(bk: SyncBookKeeper) -> None:
    bk.create_log("owned")
    says = (
        "owned has an exclusive writer, .*`bookie log create NAME --transactional --partitions N`"
    )
    with pytest.raises(BadRequestError, match=says):
        find_log(bk, "owned", creates=True)
    with pytest.raises(NoSuchLogError, match=r'no log new; .*option\("createLog", "true"\)'):
        find_log(bk, "new", creates=False)
    made = find_log(bk, "new", creates=True)
    assert find_log(bk, "new", creates=True) == made
    assert find_log(bk, "wide", creates=True, partitions=5).partitions == 5
    assert find_log(bk, "wide", creates=True, partitions=6).partitions == 5


def test_a_log_that_was_made_anew_gets_new_writers(
    bk: SyncBookKeeper, writers: TaskWriters
) -> None:
    attempt(bk, writers, rows(("1", "a")))
    bk.delete_log("a")
    bk.create_log("a", transactional=True)
    publish(bk, 0, attempt(bk, writers, rows(("2", "a"))))
    assert values(bk, "a") == ["2"]
