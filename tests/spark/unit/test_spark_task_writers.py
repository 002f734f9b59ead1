"""Writers stay open between tasks, and no longer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, cast

from bookie.errors import OperationTimeoutError
from bookie.spark import task_writers as module
from bookie.spark.task_writers import IDLE_SECONDS_MAX, TaskWriters, WriterKey, task_writers


class CountingWriter:
    """Only counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self, *, timeout: float | None = None) -> None:
        """Count, and fail as a ledger does that cannot be closed."""
        self.closed += 1
        raise OperationTimeoutError(f"not closed within {timeout} seconds")


class SetTimers:
    """A clock and timers that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def timer(self, seconds: float, call: Callable[[], None]) -> threading.Thread:
        """The callback for the time when so many seconds are over; the test calls it."""
        self.due.append((self.now + seconds, call))
        return threading.Thread()

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        due, self.due = self.due, []
        for at, call in due:
            if at <= self.now:
                call()
            else:
                self.due.append((at, call))


def key(number: int) -> WriterKey:
    """One of many keys."""
    return WriterKey("local:///x", "query", "log", number)


def writers_of(timers: SetTimers, most: int = 8) -> TaskWriters:
    """Writers on a clock that the test moves."""
    return TaskWriters(idle_writers_max=most, monotonic=lambda: timers.now, timer=timers.timer)


def fake() -> Any:
    """A writer as its type says."""
    return cast("Any", CountingWriter())


def test_a_writer_is_one_tasks_at_a_time() -> None:
    writer = fake()
    writers = writers_of(SetTimers())
    assert writers.take(key(0)) is None
    writers.give_back(key(0), writer)
    assert writers.take(key(1)) is None
    taken = [writers.take(key(0)) for _ in range(2)]
    assert (taken == [writer, None], writer.closed) == (True, 0)


def test_idle_writers_are_closed_and_busy_ones_are_not() -> None:
    timers = SetTimers()
    writers = writers_of(timers)
    early, late, busy = fake(), fake(), fake()
    writers.give_back(key(0), early)
    writers.give_back(key(2), busy)
    timers.move(IDLE_SECONDS_MAX - 1)
    writers.give_back(key(1), late)
    taken = writers.take(key(2))
    timers.move(1)
    assert (early.closed, late.closed, busy.closed) == (1, 0, 0)
    timers.move(IDLE_SECONDS_MAX - 1)
    assert (early.closed, late.closed, busy.closed) == (1, 1, 0)
    assert (writers.take(key(0)), taken is busy) == (None, True)
    assert timers.due == []


def test_the_number_of_idle_writers_is_bounded() -> None:
    writers, all_of_them = writers_of(SetTimers(), most=2), [fake() for _ in range(4)]
    for number, writer in enumerate(all_of_them[:3]):
        writers.give_back(key(number), writer)
    assert [writer.closed for writer in all_of_them] == [1, 0, 0, 0]
    writers.give_back(key(2), all_of_them[3])
    assert [writer.closed for writer in all_of_them] == [1, 0, 1, 0]


def test_a_forked_process_has_writers_of_its_own() -> None:
    module._writers.clear()
    mine = task_writers()
    assert task_writers() is mine
    mine.pid = os.getpid() + 1
    assert task_writers() is not mine
    module._writers.clear()
