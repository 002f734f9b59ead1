"""Iterators over async generators, and calls that wait: bounds, ends, errors, interruptions."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Iterable
from typing import Self

import pytest

from bookie.errors import NoSuchEntryError, OperationTimeoutError
from bookie.sync import SyncBookKeeper, SyncHandle, SyncIterator
from bookie.sync.iterator import Batches, Pump
from bookie.sync.loop_thread import this_process

WAIT_SECONDS_MAX = 120.0


class Source(SyncHandle):
    """An async generator that tells what became of it."""

    def __init__(self, items: int, *, error: Exception | None = None) -> None:
        super().__init__(this_process.home())
        self.items = items
        self.error = error
        self.yielded = 0
        self.ended = threading.Event()
        self.stuck = threading.Event()
        """Set when it waits for something that never comes."""

    async def _generate(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.items):
                self.yielded += 1
                yield number
            if self.error is not None:
                raise self.error
            self.stuck.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    def iterate(self, *, ahead: int = 4, timeout: float | None = None) -> SyncIterator[int]:
        """Iterate over it."""
        return self._iterate(self._generate(), ahead=ahead, timeout=timeout)

    def turns(self) -> None:
        """Let the loop do all that it can."""

        async def turn() -> None:
            for _ in range(100):
                await asyncio.sleep(0)

        self._run(turn())

    def wait_forever(self) -> None:
        """A call that Ctrl-C interrupts, sent as soon as it waits in the loop."""

        async def call() -> None:
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        self._run(call())


def test_reading_ahead_is_bounded() -> None:
    """A consumer that takes nothing stops the generator; one that takes lets it go on."""
    source = Source(1000)
    with source.iterate(ahead=4) as numbers:
        source.turns()
        assert source.yielded == 4
        assert [next(numbers) for _ in range(100)] == list(range(100))
        source.turns()
        assert 100 < source.yielded <= 104
    assert source.ended.is_set()


@pytest.mark.parametrize("ahead", [1, 2, 3, 64])
def test_nothing_is_lost_or_repeated(ahead: int) -> None:
    """The faster side does not matter."""
    source = Source(3000, error=NoSuchEntryError("the end"))
    numbers = source.iterate(ahead=ahead)
    assert [next(numbers) for _ in range(3000)] == list(range(3000))
    with pytest.raises(NoSuchEntryError, match="the end"):
        next(numbers)
    assert list(numbers) == []


def test_items_that_come_just_before_the_end_are_not_lost() -> None:
    """A taker that finds nothing, and then the end, looks for items once more."""
    source = Source(3, error=NoSuchEntryError("the end"))
    pump = source._pump(source._generate(), 8, None)
    assert pump._ended.wait(WAIT_SECONDS_MAX)
    pump._wait()
    assert [next(pump) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(NoSuchEntryError, match="the end"):
        next(pump)


def test_an_item_that_comes_just_before_the_wait_is_seen() -> None:
    """A taker takes the flag down before it waits, and looks once more after that."""
    source = Source(1)
    pump = source._pump(source._generate(), 8, 0.2)
    assert source.stuck.wait(WAIT_SECONDS_MAX)
    pump._wait()
    assert next(pump) == 0
    with pytest.raises(OperationTimeoutError):
        pump._wait()
    pump.stop()


def test_closing_cancels_the_generator() -> None:
    """Items that were read ahead are dropped, and closing again has no effect."""
    source = Source(3)
    numbers = source.iterate()
    assert source.stuck.wait(WAIT_SECONDS_MAX)
    assert next(numbers) == 0
    numbers.close()
    assert source.ended.is_set()
    numbers.close()
    assert list(numbers) == []


def test_an_iterator_that_is_closed_at_once_leaves_nothing() -> None:
    """Also one whose generator has not begun."""
    source = Source(3)
    source.iterate().close()
    source.turns()
    assert source.yielded == 0 or source.ended.is_set()


def test_dropping_cancels_the_generator() -> None:
    """As leaving the loop over it does."""
    source = Source(1000)
    for number in source.iterate():
        if number == 10:
            break
    assert source.ended.wait(WAIT_SECONDS_MAX)


def test_a_dropped_read_ends_in_the_loop(bk: SyncBookKeeper) -> None:
    """The client closes at once although a tail was never ended."""
    with bk.create_ledger() as writer:
        writer.append_many([b"x"] * 10)
        for entry in bk.open_ledger(writer.ledger_id).tail():
            if entry.entry_id == 5:
                break


def test_a_wait_that_takes_too_long_may_be_repeated() -> None:
    """Items that come later are not lost."""
    source = Source(1)
    with source.iterate(timeout=0.01) as numbers:
        assert next(numbers) == 0
        for _ in range(2):
            with pytest.raises(OperationTimeoutError):
                next(numbers)
    assert source.ended.is_set()


def test_a_tail_goes_on_behind_a_timeout(bk: SyncBookKeeper) -> None:
    """It waits for the writer, who is slow."""
    with bk.create_ledger() as writer:
        writer.append(b"0")
        tail = bk.open_ledger(writer.ledger_id).tail(timeout=WAIT_SECONDS_MAX)
        assert next(tail).payload == b"0"
        tail._pump.timeout = 0.05
        with pytest.raises(OperationTimeoutError):
            next(tail)
        writer.append(b"1")
        tail._pump.timeout = WAIT_SECONDS_MAX
        assert next(tail).payload == b"1"
    assert list(tail) == []


def test_batches_go_on_behind_a_timeout() -> None:
    """A timeout is no end, which a reader of a log would take it for."""
    home, gate = this_process.home(), asyncio.Event()

    async def batches() -> AsyncGenerator[list[int], None]:
        yield [0]
        await gate.wait()
        yield [1, 2]

    pump = Pump(home, batches(), 2)
    pump.timeout = 0.05
    with SyncIterator(pump, Batches[int](pump).items) as numbers:
        assert next(numbers) == 0
        with pytest.raises(OperationTimeoutError):
            next(numbers)
        pump.timeout = WAIT_SECONDS_MAX
        home.loop.call_soon_threadsafe(gate.set)
        assert list(numbers) == [1, 2]


class Interrupted:
    """A batch whose reader presses Ctrl-C once, between two items."""

    def __init__(self) -> None:
        self._left: list[int | None] = [3, 2, None, 1]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        item = self._left.pop()
        if item is None:
            raise KeyboardInterrupt
        return item


def test_ctrl_c_within_a_batch_loses_no_other_item() -> None:
    """The rest of the batch comes, and then the next batch."""

    async def batches() -> AsyncGenerator[Iterable[int], None]:
        yield [0]
        yield Interrupted()
        yield [4]

    pump = Pump(this_process.home(), batches(), 2)
    with SyncIterator(pump, Batches[int](pump).items) as numbers:
        assert [next(numbers), next(numbers)] == [0, 1]
        with pytest.raises(KeyboardInterrupt):
            next(numbers)
        assert list(numbers) == [2, 3, 4]


def test_ctrl_c_in_a_waiting_call_cancels_it() -> None:
    """The caller gets KeyboardInterrupt, and the loop goes on."""
    source = Source(0)
    with pytest.raises(KeyboardInterrupt):
        source.wait_forever()
    assert source.ended.wait(WAIT_SECONDS_MAX)
    source.turns()


def test_ctrl_c_in_an_iteration_leaves_it_usable() -> None:
    """The wait ends; who wants to go on may."""
    source = Source(1)
    with source.iterate() as numbers:
        assert next(numbers) == 0
        loop = this_process.home().loop
        loop.call_soon_threadsafe(loop.call_later, 0.01, os.kill, os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            next(numbers)
        assert not source.ended.is_set()
    assert source.ended.is_set()


def test_the_error_of_a_call_is_not_taken_for_its_timeout() -> None:
    """A coroutine may raise TimeoutError itself."""

    async def call() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        this_process.home().run(call(), timeout=WAIT_SECONDS_MAX)


def test_complaints_about_other_loops_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC raises them in our loop when another one was closed; other errors are logged."""
    source = Source(0)

    def fail(error: Exception) -> None:
        raise error

    for text in ("Event loop is closed", "a bug"):
        source._home.loop.call_soon_threadsafe(fail, RuntimeError(text))
    source.turns()
    assert "a bug" in caplog.text
    assert "is closed" not in caplog.text
