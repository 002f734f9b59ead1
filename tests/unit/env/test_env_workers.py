"""Workers: batches in order, one completion at a time, failures told once, nothing after them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from bookie.env import ThreadWorkers


async def test_a_worker_takes_everything_that_is_queued() -> None:
    """Items that gather while it is busy are one batch; results reach the loop in order."""
    batches: list[list[int]] = []
    results: list[int] = []
    entered, opened = threading.Event(), threading.Event()
    finished = asyncio.Event()

    def handle(items: list[int], post: Callable[[int], None]) -> None:
        batches.append(items)
        if len(batches) == 1:
            entered.set()
            assert opened.wait(10)
        for item in items:
            post(item)

    def done(result: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        results.append(result)
        if result == 9:
            finished.set()

    async with ThreadWorkers() as workers:
        worker = workers.batch_worker("t", handle, done, lambda error: None)
        worker.submit(0)
        assert await asyncio.to_thread(entered.wait, 10)
        for item in range(1, 10):
            worker.submit(item)
        opened.set()
        await finished.wait()
        worker.close()
    assert batches == [[0], list(range(1, 10))]
    assert results == list(range(10))


async def test_closing_handles_what_is_queued() -> None:
    """Nothing that was submitted is dropped."""
    handled: list[int] = []

    def handle(items: list[int], post: Callable[[int], None]) -> None:
        handled.extend(items)

    async with ThreadWorkers() as workers:
        worker = workers.batch_worker("t", handle, lambda result: None, lambda error: None)
        for item in range(1000):
            worker.submit(item)
        worker.close()
    assert handled == list(range(1000))


async def test_a_worker_that_fails_says_so_once_and_stops() -> None:
    """Items behind the failure are never handled."""
    handled: list[int] = []
    failures: list[BaseException] = []
    failed = asyncio.Event()

    def handle(items: list[int], post: Callable[[int], None]) -> None:
        handled.extend(items)
        raise OSError(5, "broken")

    def told(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    async with ThreadWorkers() as workers:
        worker = workers.batch_worker("t", handle, lambda result: None, told)
        worker.submit(1)
        await failed.wait()
        worker.submit(2)
        worker.close()
    assert handled == [1]
    assert [type(error) for error in failures] == [OSError]


async def test_an_abandoned_worker_reports_nothing() -> None:
    """It hung in a device; whatever it finds out later comes too late."""
    told: list[object] = []
    entered, opened = threading.Event(), threading.Event()

    def handle(items: list[int], post: Callable[[int], None]) -> None:
        entered.set()
        assert opened.wait(10)
        post(1)
        raise OSError(5, "broken")

    async with ThreadWorkers() as workers:
        worker = workers.batch_worker("t", handle, told.append, told.append)
        worker.submit(1)
        assert await asyncio.to_thread(entered.wait, 10)
        worker.abandon()
        opened.set()
        worker.close()
        await asyncio.sleep(0)
    assert told == []


async def test_one_pool_keeps_the_order_and_cancelling_stops_nothing() -> None:
    """Only the caller goes; the function runs to its end, before the next of its pool."""
    ran: list[str] = []
    entered, opened = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert opened.wait(10)
        ran.append("slow")

    async with ThreadWorkers() as workers:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(workers.run("index", slow))
            await asyncio.to_thread(entered.wait, 10)
            first.cancel()
        opened.set()
        await workers.run("index", ran.append, "next")
    assert ran == ["slow", "next"]


async def test_drained_waits_for_what_nobody_waits_for() -> None:
    """Also in a pool of several threads, and whatever a function comes to."""
    entered, opened = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert opened.wait(10)
        raise ZeroDivisionError

    async with ThreadWorkers() as workers:
        idle = [workers.is_idle]
        await workers.drained()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(workers.run("read", slow))
            await asyncio.to_thread(entered.wait, 10)
            first.cancel()
        idle.append(workers.is_idle)
        async with asyncio.TaskGroup() as tasks:
            drained = tasks.create_task(workers.drained())
            assert await workers.run("read", int, "7") == 7
            assert not drained.done()
            opened.set()
        idle.append(workers.is_idle)
    assert idle == [True, False, True]


async def _turns() -> None:
    """Let tasks that were cancelled go on to what they wait for next."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_cancelled_reader_ends_with_what_is_being_read_for_it() -> None:
    """It is in memory so long. Work that no thread has begun ends at once, unread."""
    read: list[int] = []
    entered, opened = threading.Event(), threading.Event()

    def slow(number: int) -> None:
        entered.set()
        assert opened.wait(10)
        read.append(number)
        raise ZeroDivisionError

    async with ThreadWorkers(read_threads=1) as workers, asyncio.TaskGroup() as tasks:
        begun = tasks.create_task(workers.run_through("read", slow, 1))
        await asyncio.to_thread(entered.wait, 10)
        waiting = tasks.create_task(workers.run_through("read", slow, 2))
        await _turns()
        begun.cancel()
        waiting.cancel()
        await _turns()
        ended = begun.done(), waiting.done()
        opened.set()
        await asyncio.wait((begun,))
        assert begun.cancelled()
    assert ended == (False, True)
    assert read == [1]


async def test_errors_of_a_function_reach_its_caller() -> None:
    """As they are."""
    async with ThreadWorkers() as workers:
        with pytest.raises(ZeroDivisionError):
            await workers.run("read", divmod, 1, 0)
