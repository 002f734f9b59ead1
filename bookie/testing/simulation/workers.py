"""Simulated threads, which run blocking work in the event loop at moments that the seed chooses.

Each simulated thread is a lane: a line of callbacks that the event loop runs in order. In each disk
call (`pause`), callbacks of other lanes may run before the call continues, as with real threads;
the seed decides. For example, the engine accepts adds between the write and the sync of a block, or
the journal continues during an index transaction. Disk calls are nested: a call continues only
after all calls that began during the call have ended. The results of one thread reach the event
loop in order: some results at once, others later.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from bookie.testing.simulation.loop import SimulatedLoop

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

START_SECONDS_MAX = 0.001
"""The longest time in seconds until a thread begins its work."""


class SimulatedWorker(Generic[T, R]):
    """A simulated thread that handles queued items in batches."""

    def __init__(
        self,
        threads: SimulatedWorkers,
        handle: Callable[[list[T], Callable[[R], None]], None],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._threads = threads
        self._handle = handle
        self._done = done
        self._failed = failed
        self._lane = threads.loop.new_lane()
        self._hand_back = threads.loop.new_lane()
        self._queue: deque[T] = deque()
        self._results: deque[R] = deque()
        self._scheduled = self._active = self._ended = self._abandoned = False

    def submit(self, item: T) -> None:
        self._queue.append(item)
        if not self._scheduled and not self._ended:
            self._scheduled = True
            self._threads.start(self._lane, self._work)

    def close(self) -> None:
        assert not self._active, "closed in the middle of a block"
        self._work()
        self._ended = True

    def abandon(self) -> None:
        self._ended = self._abandoned = True

    def _work(self) -> None:
        self._scheduled = False
        if self._ended or not self._queue or self._active:
            return
        items = list(self._queue)
        self._queue.clear()
        self._active = True
        try:
            self._handle(items, self._post)
        except BaseException as error:  # noqa: BLE001  (handed to the engine, as from a thread)
            self._ended = True
            self._threads.loop.call_in_lane(self._hand_back, self._report, error)
        finally:
            self._active = False
        if self._queue and not self._ended and not self._scheduled:
            self._scheduled = True
            self._threads.start(self._lane, self._work)

    def _post(self, result: R) -> None:
        self._results.append(result)
        if self._threads.hands_back_at_once():
            # Deliver earlier results first.
            while self._results:
                self._deliver()
        else:
            self._threads.loop.call_in_lane(self._hand_back, self._deliver)

    def _deliver(self) -> None:
        if self._results:
            result = self._results.popleft()
            if not self._abandoned:
                self._done(result)

    def _report(self, error: BaseException) -> None:
        while self._results:
            self._deliver()
        if not self._abandoned:
            self._failed(error)


class _Pool:
    """A simulated thread that runs one function after another."""

    def __init__(self, lane: int, hand_back: int) -> None:
        self.lane = lane
        self.hand_back = hand_back
        self.queue: deque[Callable[[], None]] = deque()
        self.active = False


class SimulatedWorkers:
    """Makes simulated threads; `interleaving` is the share of disk calls that run other lanes."""

    def __init__(self, loop: SimulatedLoop, seed: int, interleaving: float = 0.0) -> None:
        self.loop = loop
        self._random = random.Random(f"workers/{seed}")
        self._interleaving = interleaving
        self._pools: dict[str, _Pool] = {}

    def pause(self) -> None:
        """At random, let callbacks of other lanes run, as if this thread were in a system call."""
        if self._interleaving and self._random.random() < self._interleaving:
            for _ in range(self._random.randint(1, 4)):
                if not self.loop.step_other():
                    return

    def start(self, lane: int, work: Callable[[], None]) -> None:
        """Make `work` ready on a thread's lane, now or after a short time."""
        if self._interleaving and self._random.random() < 0.5:
            delay = self._random.random() * START_SECONDS_MAX
            self.loop.call_later(delay, self.loop.call_in_lane, lane, work)
        else:
            self.loop.call_in_lane(lane, work)

    def hands_back_at_once(self) -> bool:
        """True if the event loop gets a thread's next result at once; False to delay the result."""
        return not self._interleaving or self._random.random() < 0.5

    def batch_worker(
        self,
        name: str,
        handle: Callable[[list[T], Callable[[R], None]], None],
        done: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> SimulatedWorker[T, R]:
        return SimulatedWorker(self, handle, done, failed)

    async def run(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        thread = self._pools.get(pool)
        if thread is None:
            thread = self._pools[pool] = _Pool(self.loop.new_lane(), self.loop.new_lane())
        result: asyncio.Future[R] = self.loop.create_future()

        def call() -> None:
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  (handed to the caller, as from a thread)
                self.loop.call_in_lane(thread.hand_back, _fail, result, error)
            else:
                self.loop.call_in_lane(thread.hand_back, _succeed, result, value)

        thread.queue.append(call)
        self.start(thread.lane, lambda: self._work(thread))
        return await result

    async def run_through(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self.run(pool, function, *args, **kwargs)

    async def drained(self) -> None:
        while not self.is_idle:
            for pool in sorted(self._pools):
                await self.run(pool, int)

    @property
    def is_idle(self) -> bool:
        return not any(thread.active or thread.queue for thread in self._pools.values())

    def _work(self, thread: _Pool) -> None:
        if thread.active:
            return
        thread.active = True
        try:
            while thread.queue:
                thread.queue.popleft()()
        finally:
            thread.active = False


def _succeed(result: asyncio.Future[Any], value: object) -> None:
    if not result.done():
        result.set_result(value)


def _fail(result: asyncio.Future[Any], error: BaseException) -> None:
    if not result.done():
        result.set_exception(error)
