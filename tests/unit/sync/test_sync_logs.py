"""Logs without an event loop: writers, readers, consumers, groups, publishers and cursors."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import cast

import pytest

from bookie.api import AutoCommit, LogPolicy, NewRecord
from bookie.errors import (
    BadRequestError,
    CursorLostError,
    LogTakenOverError,
    NoSuchLedgerError,
    NoSuchLogError,
    OperationTimeoutError,
)
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogRecord, encode_log_record
from bookie.sync import SyncBookKeeper
from bookie.sync.given_records import GivenRecords
from bookie.sync.log_reader import SyncLogReader
from bookie.sync.loop_thread import this_process

WAIT_SECONDS_MAX = 120.0


def fill(bk: SyncBookKeeper, count: int, name: str = "orders") -> list[bytes]:
    """A log of so many records, in several ledgers."""
    values = [b"%d" % number for number in range(count)]
    with bk.open_log(name) as log:
        for first in range(0, count, 40):
            log.append_many(values[first : first + 40])
            log.roll()
    return values


def test_what_is_appended_is_read(bk: SyncBookKeeper) -> None:
    """One by one and many at once, with keys and headers, across a roll."""
    with bk.open_log("orders") as log:
        first = log.append(b"0", key=b"k", headers={"h": b"v"}, timestamp=7)
        log.roll()
        others = log.append_many(chain([b"1"], [NewRecord(b"2", key=b"")]))
        assert [first.offset, *(one.offset for one in others)] == [0, 1, 2]
        assert (log.name, list(log.partitions), log.error) == ("orders", [0], None)
        assert log.next_offset() == 3
        with pytest.raises(BadRequestError):
            log.append_many([1])  # type: ignore[list-item]
    found = list(bk.read_log("orders"))
    assert [one.value for one in found] == [b"0", b"1", b"2"]
    assert [one.position for one in found] == [first, *others]
    assert (found[0].key, found[0].headers, found[0].timestamp_ms) == (b"k", {"h": b"v"}, 7)


def test_a_writer_that_was_taken_over_says_so(bk: SyncBookKeeper) -> None:
    """An error of its block is not replaced by that."""
    old = bk.open_log("orders")
    with bk.open_log("orders") as new:
        assert new.epoch() > old.epoch()
        assert new.append(b"new").offset == 0
    with pytest.raises(LogTakenOverError):
        old.append(b"old")
    with pytest.raises(KeyError), old:
        raise KeyError
    assert [one.value for one in bk.read_log("orders")] == [b"new"]


def test_logs_are_made_listed_described_truncated_and_deleted(bk: SyncBookKeeper) -> None:
    """The verbs that concern no handle."""
    bk.create_log("plain", partitions=2, policy=LogPolicy(retention_seconds=3600))
    fill(bk, 80)
    assert sorted(bk.list_logs()) == ["orders", "plain"]
    assert bk.log_status("plain").definition.partitions == 2
    assert bk.truncate_log("orders", before=40) == 40
    assert [one.offset for one in bk.read_log("orders")] == list(range(40, 80))
    assert not bk.sweep_logs(dry_run=True).ledgers
    bk.delete_log("orders")
    with pytest.raises(NoSuchLogError):
        next(bk.read_log("orders"))


def test_a_reader_goes_on_where_a_loop_was_left(bk: SyncBookKeeper) -> None:
    """Records that were read ahead stay, and position and lag are the caller's."""
    values = fill(bk, 200)
    with bk.log_reader("orders") as reader:
        positions = [reader.position]
        assert reader.lag() >= 200
        assert [one.value for one in islice(reader, 50)] == values[:50]
        positions.append(reader.position)
        assert reader.lag() == 150
        found = [one.value for batch in reader.batches() for one in batch]
        assert found == values[50:]
        positions.append(reader.position)
        assert reader.lag() == 0
        assert [one and one.offset for one in positions] == [None, 49, 199]
        with bk.open_log("orders") as log:
            log.append(b"later")
        assert [one.value for one in reader] == [b"later"]
    assert list(reader) == []


def test_a_reader_seeks_in_the_middle_of_a_loop(bk: SyncBookKeeper) -> None:
    """The loop goes on from there; a wrong place leaves it where it was."""
    fill(bk, 100)
    with bk.log_reader("orders", timeout=WAIT_SECONDS_MAX) as reader:
        seen = []
        for record in reader:
            seen.append(record.offset)
            if len(seen) == 5:
                with pytest.raises(BadRequestError):
                    reader.seek(-1)
            if len(seen) == 10:
                reader.seek(95)
        assert seen == [*range(10), *range(95, 100)]
        assert reader.position is not None
        assert reader.position.offset == 99
        reader.seek("earliest")
        assert next(iter(reader)).offset == 0


def test_seeking_in_one_partition_leaves_the_others(bk: SyncBookKeeper) -> None:
    """Records that were read ahead of them are read again."""
    bk.create_log("wide", partitions=2)
    with bk.open_log("wide") as log:
        for partition in range(2):
            log.append_many([b"%d" % number for number in range(50)], partition=partition)
    with bk.log_reader("wide") as reader:
        first = next(iter(reader)).partition
        reader.seek(40, partition=first)
        seen: dict[int, list[int]] = {0: [], 1: []}
        for record in reader:
            seen[record.partition].append(record.offset)
        assert seen == {first: list(range(40, 50)), 1 - first: list(range(50))}
        with pytest.raises(BadRequestError):
            reader.seek(0, partition=2)
        assert reader.position is not None
        last = reader.position
        reader.seek(last)
        assert [one.position for one in reader] == [last]
        with pytest.raises(BadRequestError, match="is in partition"):
            reader.seek(last, partition=1 - last.partition)
        assert list(reader) == []
    with (
        bk.log_reader("wide", partition=1) as reader,
        pytest.raises(BadRequestError, match="is in partition 0, not in partition 1"),
    ):
        reader.seek(last._replace(partition=0))


def test_seeking_in_one_partition_leaves_what_was_read_ahead_of_others(bk: SyncBookKeeper) -> None:
    """Several batches of one partition were read ahead: it goes on with the first of them."""
    bk.create_log("wide", partitions=2)
    with bk.open_log("wide") as log:
        for first in range(0, 50, 10):
            log.append_many([b"%d" % (first + n) for n in range(10)], partition=0)
            log.roll()
        log.append(b"other", partition=1)
    with bk.log_reader("wide", timeout=WAIT_SECONDS_MAX) as reader:
        seen = [next(iter(reader)) for _ in range(3)]
        pump = reader._batches
        assert pump is not None
        wait_until(lambda: pump._ended.is_set() or len(pump.waiting) >= 2)
        reader.seek("earliest", partition=1)
        seen += list(reader)
    offsets = [one.offset for one in seen if one.partition == 0]
    assert offsets == list(range(50))


def test_the_lag_of_a_reader_counts_what_was_read_ahead(bk: SyncBookKeeper) -> None:
    """Whole batches that nobody has asked for yet."""
    with bk.open_log("orders") as log:
        for first in range(0, 50, 10):
            log.append_many([b"%d" % (first + n) for n in range(10)])
            log.roll()
    with bk.log_reader("orders") as reader:
        next(iter(reader))
        pump = reader._batches
        assert pump is not None
        wait_until(lambda: pump._ended.is_set() or len(pump.waiting) >= 2)
        assert pump.waiting
        assert reader.lag() == 49


def test_a_reader_goes_on_after_an_error() -> None:
    """The next loop begins a new iteration of the reader behind it."""

    class Failing:
        """A reader that fails once, behind its first batch."""

        def __init__(self) -> None:
            self.iterations = 0

        async def batches(self) -> AsyncGenerator[Sequence[int], None]:
            self.iterations += 1
            yield [self.iterations]
            if self.iterations == 1:
                raise NoSuchLedgerError("once")

    reader = SyncLogReader(this_process.home(), cast("LogReader", Failing()), None)
    records: Iterator[object] = iter(reader)
    assert next(records) == 1
    with pytest.raises(NoSuchLedgerError):
        next(records)
    records = iter(reader)
    assert list(records) == [2]
    reader.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when something holds, which the loop of the clients brings about."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS_MAX / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("what was waited for does not happen")


def test_a_follower_waits_and_a_wait_may_be_repeated(bk: SyncBookKeeper) -> None:
    """The next loop goes on behind a timeout."""
    with bk.open_log("orders") as log, bk.log_reader("orders", follow=True) as reader:
        log.append(b"0")
        assert next(iter(reader)).value == b"0"
        reader._timeout = 0.05
        assert reader._batches is not None
        reader._batches.timeout = 0.05
        with pytest.raises(OperationTimeoutError):
            next(iter(reader))
        reader._batches.timeout = WAIT_SECONDS_MAX
        log.append(b"1")
        assert next(iter(reader)).value == b"1"


def test_a_dropped_reader_stops_reading(bk: SyncBookKeeper) -> None:
    """The client closes at once although nobody closed its followers."""
    fill(bk, 10)
    for record in bk.log_reader("orders", follow=True):
        if record.offset == 5:
            break
    for record in bk.read_log("orders", follow=True):
        if record.offset == 5:
            break


def test_a_commit_covers_what_the_caller_was_given(bk: SyncBookKeeper) -> None:
    """And not the rest of the batch, which the next consumer gets."""
    values = fill(bk, 100)
    with bk.consume("orders", cursor="billing") as consumer:
        assert [one.value for one in islice(consumer, 7)] == values[:7]
        consumer.commit()
        assert (consumer.committed, consumer.position) == (7, 7)
        assert consumer.lag() == bk.cursors("orders").lag("billing")
        assert [one.value for one in islice(consumer, 3)] == values[7:10]
        with pytest.raises(BadRequestError):
            consumer.commit(1000)
        consumer.commit(8)
    with bk.consume("orders", cursor="billing") as consumer:
        assert consumer.token > 1
        assert consumer.partition.number == 0
        given: list[bytes] = []
        for batch in consumer.batches():
            given += [one.value for one in batch]
            if len(given) == 92:
                break
        assert given == values[8:]


def test_automatic_commits_leave_the_record_in_hand(bk: SyncBookKeeper) -> None:
    """It is finished when the caller asks for the next one."""
    fill(bk, 100)
    with bk.consume("orders", cursor="auto", auto_commit=AutoCommit(every_records=3)) as consumer:
        assert [one.offset for one in islice(consumer, 10)] == list(range(10))
        assert consumer.committed == 9
    with bk.consume("orders", cursor="auto") as consumer:
        assert next(iter(consumer)).offset == 9


def test_a_wait_of_a_consumer_may_be_repeated(bk: SyncBookKeeper) -> None:
    """A record that comes meanwhile is given out by the next wait."""
    consuming = bk.consume("orders", cursor="slow", timeout=0.05)
    with bk.open_log("orders") as log, consuming as consumer:
        with pytest.raises(OperationTimeoutError):
            next(iter(consumer))
        log.append(b"0")
        consumer._timeout = WAIT_SECONDS_MAX
        assert next(iter(consumer)).value == b"0"
        bk.cursors("orders").reset("slow")
        with pytest.raises(CursorLostError):
            consumer.commit()


def test_a_batch_that_comes_with_the_timeout_is_not_lost(bk: SyncBookKeeper) -> None:
    """It has arrived in the loop, and the caller has just given the wait up."""
    fill(bk, 80)
    with bk.consume("orders", cursor="billing", timeout=WAIT_SECONDS_MAX) as consumer:
        consumer._run(consumer._arrive(), None)
        consumer._run(consumer._arrive(), None)
        consumer.commit()
        assert consumer.committed == 0
        assert [one.offset for one in islice(consumer, 80)] == list(range(80))


def test_a_lost_partition_does_not_keep_others_from_being_committed(bk: SyncBookKeeper) -> None:
    """The cursor of one was reset: that is an error, once, and the others are committed."""
    bk.create_log("jobs", partitions=3)
    with (
        bk.open_log("jobs") as log,
        bk.join_group("g", logs=["jobs"], member="a", timeout=WAIT_SECONDS_MAX) as member,
    ):
        for partition in range(3):
            log.append_many([b"%d" % number for number in range(5)], partition=partition)
        seen = list(islice(member, 15))
        lost = seen[0].partition
        bk.cursors("jobs").reset("g", "earliest", partition=lost)
        with pytest.raises(CursorLostError):
            member.commit()
        found = {one.partition.number: one.cursor.offset for one in bk.group_status("g").cursors}
        assert found == {number: 0 if number == lost else 5 for number in range(3)}
        member.commit()


@pytest.mark.parametrize("auto_commit", [None, AutoCommit(every_seconds=3600)])
def test_a_partition_that_left_when_all_was_committed_is_no_loss(
    bk: SyncBookKeeper, auto_commit: AutoCommit | None
) -> None:
    """Whether the caller committed its records, or the member did on the way."""
    bk.create_log("jobs", partitions=2)
    joining = partial(bk.join_group, "g", logs=["jobs"], timeout=WAIT_SECONDS_MAX)
    with (
        bk.open_log("jobs") as log,
        joining(member="a", auto_commit=auto_commit) as first,
    ):
        wait_until(lambda: len(first.assignment) == 2)
        for partition in range(2):
            log.append_many([b"%d" % number for number in range(5)], partition=partition)
        for record in islice(first, 10):
            if auto_commit is None:
                first.commit(record)
        with joining(member="c"):
            first._timeout = 0.01
            with pytest.raises(OperationTimeoutError):
                next(iter(first))
            wait_until(lambda: len(first.assignment) == 1)
            first.commit()
        found = {one.partition.number: one.cursor.offset for one in bk.group_status("g").cursors}
        assert found == {0: 5, 1: 5}


def test_a_partition_that_left_before_a_commit_is_a_loss(bk: SyncBookKeeper) -> None:
    """A commit of an earlier record does not cover the later ones."""
    bk.create_log("jobs", partitions=2)
    joining = partial(bk.join_group, "g", logs=["jobs"], timeout=WAIT_SECONDS_MAX)
    with bk.open_log("jobs") as log, joining(member="a") as first:
        for partition in range(2):
            log.append_many([b"%d" % number for number in range(5)], partition=partition)
        for record in islice(first, 10):
            if record.offset == 3:
                first.commit(record)
        with joining(member="c"):
            first._timeout = 0.01
            with pytest.raises(OperationTimeoutError):
                next(iter(first))
            wait_until(lambda: len(first.assignment) == 1)
            with pytest.raises(CursorLostError):
                first.commit()
            first.commit()


def test_cursors_are_made_moved_and_deleted(bk: SyncBookKeeper) -> None:
    """All verbs of cursors."""
    fill(bk, 80)
    cursors = bk.cursors("orders")
    cursors.create("audit", 10, protected=False)
    cursors.commit("audit", 20)
    cursors.protect("audit")
    assert cursors.all()["audit"][0].offset == 20
    assert cursors.reset("audit", 5) == {0: 5}
    (status,) = cursors.status("audit")
    assert status.lag == cursors.lag("audit") == status.end_offset - 5
    cursors.delete("audit")
    assert cursors.all() == {}


def test_members_share_partitions_and_commit_what_they_were_given(bk: SyncBookKeeper) -> None:
    """Both get records at the same time, in threads of their own, and all of them together."""
    bk.create_log("jobs", partitions=2)
    both = threading.Event()
    with bk.open_log("jobs") as log:

        def note(assigned: frozenset[object]) -> None:
            if len(assigned) == 1:
                both.set()

        first = bk.join_group("g", logs=["jobs"], member="a", timeout=WAIT_SECONDS_MAX)
        second = bk.join_group(
            "g", logs=["jobs"], member="b", on_change=note, timeout=WAIT_SECONDS_MAX
        )
        with first, second:
            assert both.wait(WAIT_SECONDS_MAX)
            for partition in range(2):
                log.append_many([b"%d" % number for number in range(20)], partition=partition)
            (mine,), (other,) = first.assignment, second.assignment
            assert mine != other
            for member in (first, second):
                assert [one.value for one in islice(member, 5)] == [b"%d" % n for n in range(5)]
                member.commit()
            assert {one.cursor.offset for one in bk.group_status("g").cursors} == {5}
            record = next(iter(first))
            assert (record.log_partition, record.token) == (mine, first.tokens[mine])
            first.commit(record)
            assert len(next(first.batches())) > 0
            assert (first.name, first.generation > 0) == ("a", True)
    assert list(bk.list_groups()) == ["g"]


def test_ranges_are_written_published_and_aborted(bk: SyncBookKeeper) -> None:
    """As executors and the driver of a pipeline do."""
    bk.create_log("sink", transactional=True)
    publisher = bk.publisher("sink")
    assert publisher.definition().partitions == 1
    with bk.open_range_writer("sink", "app") as writer:
        writer.append_encoded([encode_log_record(LogRecord(5, b"0", b"k"))], 5).result()
        assert writer.append_many([b"1", b"2"]) == 2
        published = writer.cut()
        writer.append(b"dropped")
        writer.discard()
        assert writer.cut() is None
    assert published is not None
    assert list(bk.read_log("sink")) == []
    assert publisher.last_batch("app") == -1
    assert publisher.publish("app", 0, [published])
    assert not publisher.publish("app", 0, [published])
    assert publisher.last_batch("app") == 0
    assert [one.value for one in bk.read_log("sink")] == [b"0", b"1", b"2"]
    assert next(iter(bk.read_log("sink"))).key == b"k"
    assert publisher.abort([published]) == []


def batches_of(*sizes: int) -> Iterator[Sequence[int]]:
    """Consecutive numbers."""
    at = 0
    for size in sizes:
        yield list(range(at, at := at + size))


def test_dropped_records_do_not_count_as_given() -> None:
    """The last one given stays the last one."""
    source = batches_of(3, 2, 4)
    given = GivenRecords(lambda: next(source))
    seen = [given.last]
    for number in given:
        seen.append(number)
        if number == 1:
            assert list(given.rest) == [2]
            assert list(given.drop_rest()) == [2]
            assert given.last == 1
    assert seen == [None, 0, 1, *range(3, 9)]
    assert given.last == 8
    assert not given.rest
