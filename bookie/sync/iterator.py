"""Plain iterators over async generators, which the event loop reads in advance."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import Any, Generic, TypeVar

from bookie.sync.loop_thread import Closing, LoopThread, late

T = TypeVar("T")


class Pump(Generic[T]):
    """Reads an async generator in the event loop; another thread takes the items from a buffer.

    The buffer holds about `ahead` items. The event loop has no reference to the iterator that takes
    the items, so the garbage collector can free the iterator.
    """

    def __init__(self, home: LoopThread, source: AsyncGenerator[T, None], ahead: int) -> None:
        self.home = home
        self.timeout: float | None = None
        self._source = source
        self._low = ahead // 2
        self._ahead = ahead
        self._items: deque[T] = deque()
        self._ready = threading.Event()
        """Set when an item may be ready, or when the generator may have ended."""
        self._room = asyncio.Event()
        self._is_full = False
        self._is_closed = False
        self.is_spent = False
        """True once the caller has seen the end of the generator."""
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self.future: Future[None] = asyncio.run_coroutine_threadsafe(self._run(), home.loop)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Wait for the next item and return it.

        Raises:
            OperationTimeoutError: no item came within the timeout; a later call waits for the same
                item.
        """
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                self._wait()
                continue
            if self._is_full and len(self._items) <= self._low:
                self._is_full = False
                self.home.loop.call_soon_threadsafe(self._room.set)
            return item

    def _wait(self) -> None:
        """Wait for an item; at the generator's end, raise its error or StopIteration."""
        if self._ended.is_set():
            if self._items:
                return
            error, self._error = self._error, None
            self.is_spent = True
            raise error or StopIteration
        self.home.require_caller()
        self._ready.clear()
        # An item that was added before `clear` will not set the event again, so check the buffer
        # first.
        if not (self._items or self._ended.is_set() or self._ready.wait(self.timeout)):
            raise late(self.timeout)

    def cancel(self) -> None:
        """Cancel the generator in the loop without waiting; any thread may call this method."""
        self._is_closed = True
        if self.home.pid == os.getpid() and not self._ended.is_set():
            self.home.loop.call_soon_threadsafe(self._cancel_task)

    def wait_for_end(self) -> None:
        """Wait until the generator has ended, then drop the items in the buffer."""
        if not self.home.is_here:
            self.home.require_caller()
            self._ended.wait()
        self._items.clear()
        self._error = None

    def stop(self) -> list[T]:
        """Cancel the generator, wait for its end, and return the items in the buffer."""
        self.cancel()
        self.home.require_caller()
        self._ended.wait()
        items = []
        while self._items:
            items.append(self._items.popleft())
        self._error = None
        return items

    @property
    def waiting(self) -> deque[T]:
        """A copy of the items in the buffer.

        Use `waiting` only in the event loop's thread, because that thread adds items.
        """
        return self._items.copy()

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            if not self._is_closed:
                await self._fill()
        except Exception as error:  # noqa: BLE001  (raised where the items are taken)
            self._error = error
        finally:
            try:
                await self._source.aclose()
            finally:
                self._task = None
                self._ended.set()
                self._ready.set()

    async def _fill(self) -> None:
        async for item in self._source:
            self._items.append(item)
            if not self._ready.is_set():
                self._ready.set()
            if len(self._items) < self._ahead:
                continue
            self._room.clear()
            self._is_full = True
            while len(self._items) > self._low and self._is_full:
                await self._room.wait()
                self._room.clear()


class Batches(Iterator[Iterator[T]]):
    """Yields an iterator over each batch of a pump, and keeps the iterator of the last batch."""

    def __init__(self, pump: Pump[Any]) -> None:
        self._pump = pump
        self._last: Iterator[T] = iter(())

    def __next__(self) -> Iterator[T]:
        self._last = iter(next(self._pump))
        return self._last

    def items(self) -> Iterator[T]:
        """Return the remaining items of the last batch, and then the items of further batches."""
        return chain.from_iterable(chain((self._last,), self))


class SyncIterator(Iterator[T], Closing):
    """A plain iterator over an async generator, which is read a few items in advance.

    The iteration ends with `close`, at the end of a `with` block, or when the iterator is garbage
    collected. The event loop then cancels the generator. If an item takes longer than the timeout,
    `next` raises OperationTimeoutError; the caller can then continue the iteration.

    Args:
        pump: reads the generator.
        items: returns an iterator over the remaining items of the pump, such as the records of its
            batches.
    """

    def __init__(self, pump: Pump[Any], items: Callable[[], Iterator[T]]) -> None:
        self._pump = pump
        self._remaining = items
        self._items = items()

    def __del__(self) -> None:
        pump: Pump[Any] | None = getattr(self, "_pump", None)
        if pump is not None:
            pump.cancel()

    def __next__(self) -> T:
        try:
            return next(self._items)
        except StopIteration:
            raise
        except BaseException:
            # After an error, such as a timeout or Ctrl-C, `itertools.chain` may end for good.
            self._items = self._remaining()
            raise

    def close(self) -> None:
        """Cancel the generator and end the iteration; a second call does nothing."""
        self._pump.cancel()
        self._pump.wait_for_end()
        self._items = iter(())
