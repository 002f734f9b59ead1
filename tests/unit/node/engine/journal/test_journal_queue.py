"""Requests on their way to the journal thread: order, and what waits for company."""

from __future__ import annotations

import pytest

from bookie.env import SystemClock
from bookie.errors import StorageFailedError
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from bookie.node.engine.journal.queue import POSTPONED_MAX, JournalQueue


class Thread:
    """Takes what it is given."""

    def __init__(self) -> None:
        self.given: list[JournalRequest] = []

    def submit(self, item: JournalRequest) -> None:
        """Note it."""
        self.given.append(item)

    def close(self) -> None:
        """Nothing runs."""

    def abandon(self) -> None:
        """Nothing runs."""


@pytest.fixture(name="thread")
def _thread() -> Thread:
    return Thread()


@pytest.fixture(name="queue")
def _queue(thread: Thread) -> JournalQueue:
    queue = JournalQueue(SystemClock())
    queue.worker = thread
    return queue


def request(completed: list[JournalRequest] | None = None) -> JournalRequest:
    """Ten bytes; notes its completion."""
    outcome = [] if completed is None else completed
    return JournalRequest(RequestKind.APPEND, outcome.append, size_bytes=10)


def test_what_may_wait_goes_before_the_next(queue: JournalQueue, thread: Thread) -> None:
    """The thread is not woken for it, and the order of submission is kept."""
    first, second, third, last = request(), request(), request(), request()
    queue.submit(first)
    queue.submit_with_next(second)
    queue.submit_with_next(third)
    assert thread.given == [first]
    assert queue.size_bytes == 10
    queue.submit(last)
    assert thread.given == [first, second, third, last] == list(queue.pending)
    assert not queue.postponed
    queue.reported([first, second])
    assert list(queue.pending) == [third, last]
    assert queue.size_bytes == 20


def test_too_many_that_may_wait_do_not(queue: JournalQueue, thread: Thread) -> None:
    """They are bounded: the one that is too many takes all others along."""
    waiting = [request() for _ in range(POSTPONED_MAX)]
    for item in waiting:
        queue.submit_with_next(item)
    assert not thread.given
    last = request()
    queue.submit_with_next(last)
    assert thread.given == [*waiting, last]


def test_a_failure_completes_everything_in_order(queue: JournalQueue, thread: Thread) -> None:
    """Pending, postponed and later requests end with the error."""
    completed: list[JournalRequest] = []
    items = [request(completed) for _ in range(4)]
    queue.submit(items[0])
    queue.submit_with_next(items[1])
    failure = StorageFailedError("the disk is gone")
    queue.fail(failure)
    queue.submit_with_next(items[2])
    queue.submit(items[3])
    assert completed == items
    assert all(item.error is failure for item in items)
    assert thread.given == items[:1]
    assert not queue.pending
    assert not queue.postponed
