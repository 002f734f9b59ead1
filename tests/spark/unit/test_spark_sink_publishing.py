"""The driver's part of a write, on bookies but without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from bookie.errors import NoSuchLogError
from bookie.spark.connecting import SparkConnection
from bookie.spark.sink_options import SinkColumns, SinkSettings
from bookie.spark.sink_publishing import WrittenRanges, abort_batch, publish_batch
from bookie.spark.sink_task import SinkTask, write_rows
from bookie.spark.sinks import BatchSink
from bookie.spark.task_writers import TaskWriters
from bookie.sync import SyncBookKeeper
from bookie.testing import sync_cluster

APPLICATION = "query"
SETTINGS = SinkSettings(SparkConnection("memory://x"), SinkColumns(value=0, log=1), log=None)


@pytest.fixture
def bk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncBookKeeper]:
    """A client of three bookies, which driver and tasks share."""
    with sync_cluster() as running, running.connect() as client:
        monkeypatch.setattr(SparkConnection, "client", lambda _: client)
        for name in ("a", "b"):
            client.create_log(name, partitions=1, transactional=True)
        yield client


def written(
    bk: SyncBookKeeper, *rows: tuple[str, str], application: str = APPLICATION
) -> WrittenRanges:
    """The message of a task to the driver; it has ledgers of its own."""
    writers = TaskWriters(idle_seconds_max=0, timer=lambda *_: threading.Thread())
    values, logs = zip(*rows, strict=True)
    batch = pa.record_batch({"value": pa.array(values), "log": pa.array(logs)})
    found = write_rows(SinkTask(SETTINGS, application, writers, bk, 0), iter([batch]))
    writers.close_idle()
    return WrittenRanges(application, found)


def values(bk: SyncBookKeeper, log: str) -> list[str]:
    """The records that readers see."""
    return [record.value.decode() for record in bk.read_log(log)]


def ledgers_of(*messages: WrittenRanges) -> set[int]:
    """The ledgers that tasks have written."""
    return {one.ledger_id for each in messages for found in each.ranges.values() for one in found}


def test_a_batch_of_many_tasks_is_published_whole_and_once(bk: SyncBookKeeper) -> None:
    """In the order of the tasks. If it comes again, its new ledgers go."""
    tasks = [written(bk, ("1", "a"), ("2", "b")), written(bk, ("3", "a")), written(bk, ("4", "a"))]
    assert publish_batch(SETTINGS, 0, [tasks[0], None, *tasks[1:]]) == ["a", "b"]
    assert (values(bk, "a"), values(bk, "b")) == (["1", "3", "4"], ["2"])
    again = written(bk, ("1", "a"), ("2", "b"))
    assert publish_batch(SETTINGS, 0, [again]) == ["a", "b"]
    assert (values(bk, "a"), values(bk, "b")) == (["1", "3", "4"], ["2"])
    assert not ledgers_of(again) & set(bk.list_ledgers())
    assert ledgers_of(*tasks) <= set(bk.list_ledgers())
    publish_batch(SETTINGS, 1, [written(bk, ("5", "b"))])
    assert values(bk, "b") == ["2", "5"]


def test_an_abort_leaves_what_is_published_and_goes_on_after_a_failure(
    bk: SyncBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts a batch also if something failed behind its publication."""
    first, second = written(bk, ("1", "b")), written(bk, ("2", "a"), ("3", "b"))
    publish_batch(SETTINGS, 0, [first])
    publisher = bk.publisher

    def publisher_of(log: str) -> object:
        if log == "a":
            raise NoSuchLogError("deleted meanwhile")
        return publisher(log)

    with monkeypatch.context() as failing:
        failing.setattr(bk, "publisher", publisher_of)
        abort_batch(SETTINGS, [first, second, None])
    left = set(bk.list_ledgers())
    assert ledgers_of(first) <= left
    assert {one.ledger_id for one in second.ranges["a"]} <= left
    assert not {one.ledger_id for one in second.ranges["b"]} & left
    assert values(bk, "b") == ["1"]


def test_a_write_with_an_application_happens_once(bk: SyncBookKeeper) -> None:
    """Each version of it. A write without one is always another, and leaves no record."""
    connection, columns = SETTINGS.connection, SETTINGS.columns
    for version in (3, 3, 4, 4, 3):
        named = SinkSettings(connection, columns, None, application="job", version=version)
        BatchSink(named).commit([written(bk, (str(version), "a"), application="job")])
    assert values(bk, "a") == ["3", "4"]
    assert bk.publisher("a").last_batch("job") == 4
    applications = [f"write-{number}" for number in range(2)]
    for application in applications:
        sink = BatchSink(SETTINGS)
        sink.application = application  # instead of a random one
        sink.commit([written(bk, ("x", "b"), application=application)])
    assert values(bk, "b") == ["x", "x"]
    assert [bk.publisher("b").last_batch(one) for one in applications] == [-1, -1]
