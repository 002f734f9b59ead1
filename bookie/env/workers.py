"""Blocking work on threads beside the event loop, so that the loop never blocks.

Product code uses only the `Workers` protocol. A simulation implements the protocol by running the
functions in its event loop, at moments that its random seed determines.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class BatchWorker(Protocol[T_contra]):
    """A thread that handles queued items in batches; a batch is all items queued so far."""

    def submit(self, item: T_contra) -> None:
        """Queue `item` without waiting; items are handled in the order of submission.

        Call this in the event loop. The thread may receive the item late, at the end of the event
        loop's turn.
        """

    def close(self) -> None:
        """Handle all queued items, then end the thread and wait for its end."""

    def abandon(self) -> None:
        """Stop the worker without waiting for its thread, which may hang in a device call."""


class Workers(Protocol):
    """Runs blocking work on threads beside the event loop."""

    def batch_worker(
        self,
        name: str,
        handle: Callable[[list[T], Callable[[R], None]], None],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> BatchWorker[T]:
        """Start a worker that calls ``handle(items, post)`` with all queued items.

        The event loop calls `done` with each posted result, in order. If `handle` raises, the event
        loop calls `failed` once with the exception, and the worker handles no more items.
        """

    async def run(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run ``function(*args)`` on a thread of `pool`; each pool starts its functions in order.

        Cancelling the caller does not stop a function that has begun.
        """

    async def run_through(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function like `run`; the caller accounts for the memory of the result.

        If the caller is cancelled before the function has begun, the caller ends at once. If the
        caller is cancelled later, it waits for the function's end or for a second cancellation.
        """

    async def drained(self) -> None:
        """Wait until all functions of all pools have ended, even functions of cancelled callers."""

    @property
    def is_idle(self) -> bool:
        """True if every function of every pool has ended, so that `drained` returns at once."""


class _ThreadBatchWorker(Generic[T, R]):
    """A thread that receives the items of one turn of the event loop together, at the turn's end.

    The thread needs the interpreter's lock when it wakes. If the thread woke in the middle of a
    turn, it would only wait for that lock.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[list[T], Callable[[R], None]], None],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._gathered: list[T] = []
        """Items submitted in the current turn of the event loop."""
        self._queue: SimpleQueue[list[T] | None] = SimpleQueue()
        self._handle = handle
        self._done = done
        self._failed = failed
        self.abandoned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(item)

    def close(self) -> None:
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def abandon(self) -> None:
        self.abandoned = True
        self._queue.put(None)

    def _hand_over(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._queue.put(gathered)

    def _run(self) -> None:
        get, is_empty = self._queue.get, self._queue.empty  # only this thread takes items
        closing = False
        try:
            while not closing:
                turn = get()
                items: list[T] = []
                while turn is not None:
                    items += turn
                    if is_empty():
                        break
                    turn = get()
                closing = turn is None
                if items and not self.abandoned:
                    self._handle(items, self._post)
        except BaseException as error:  # noqa: BLE001  (handed to the loop, which fail-stops)
            if not self.abandoned:
                self._loop.call_soon_threadsafe(self._failed, error)

    def _post(self, result: R) -> None:
        if not self.abandoned:
            self._loop.call_soon_threadsafe(self._done, result)


class ThreadWorkers:
    """`Workers` on real threads for one running event loop; an async context manager."""

    def __init__(self, read_threads: int = 4) -> None:
        self._read_threads = read_threads
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[Future[Any]] = set()
        """All functions that have not ended, including functions of cancelled callers."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=False)

    def batch_worker(
        self,
        name: str,
        handle: Callable[[list[T], Callable[[R], None]], None],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> _ThreadBatchWorker[T, R]:
        assert self._loop is not None, "enter the workers first"
        return _ThreadBatchWorker(name, self._loop, handle, done, failed)

    async def run(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run the function; the pool ``read`` has several threads, any other pool has one.

        If the caller is cancelled before the function begins, the function does not run.
        """
        return await asyncio.wrap_future(self._submit(pool, function, *args, **kwargs))

    async def run_through(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        future = self._submit(pool, function, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                await _ended(future)
            raise

    def _submit(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        executor = self._pools.get(pool)
        if executor is None:
            threads = self._read_threads if pool == "read" else 1
            executor = ThreadPoolExecutor(threads, thread_name_prefix=f"bookie-{pool}")
            self._pools[pool] = executor
        future = executor.submit(function, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def drained(self) -> None:
        while self._running:
            await _ended(*self._running)

    @property
    def is_idle(self) -> bool:
        return not self._running


async def _ended(*futures: Future[Any]) -> None:
    """Wait until all `futures` have ended; ignore their results, which the callers handle."""
    for future in (await asyncio.wait([asyncio.wrap_future(one) for one in futures]))[0]:
        _ = future.cancelled() or future.exception()
