"""An event loop in virtual time that runs ready callbacks in a seeded order.

The loop uses no selector, threads or signals. When no callback is ready, the clock jumps to the
next timer. If no timer is set either, `run` raises an error that names the waiting tasks. Each
callback belongs to a *lane*; each task and each simulated thread has its own lane. Callbacks of a
lane run in the order in which they became ready, as asyncio promises. The seed decides which lane
runs next, in one of three modes:

========  ====================================================================================
mode      which lane runs next
========  ====================================================================================
FIFO      the lane that waits longest, as in asyncio
UNIFORM   any lane, each with the same probability
PRIORITY  the lane with the highest random priority; at a few random steps the running lane gets
          the lowest priority. This mode finds races that need few, but particular, changes of lane.
========  ====================================================================================

The same seed gives the same order of steps in any process, because no step depends on memory
addresses or on hashes of strings. `trace` is a checksum of all steps so far; equal runs have equal
checksums.

Source: A randomized scheduler with probabilistic guarantees of finding bugs (Burckhardt et al.).
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar
from zlib import crc32

T = TypeVar("T")

_LANE: ContextVar[int] = ContextVar("lane", default=0)
MAIN_LANE = 0

PRIORITY_CHANGES = 12
"""The number of times per `PRIORITY_SPAN` steps that the running lane gets the lowest priority."""
PRIORITY_SPAN = 2000
PRIORITY_STEPS_MAX = 64
"""A lane that runs more steps in a row gets the lowest priority, so no lane blocks the others."""

STEPS_MAX = 2_000_000
"""A run with more steps than this counts as endless."""


class Mode(enum.Enum):
    """The rule by which the loop chooses the next lane."""

    FIFO = "fifo"
    UNIFORM = "uniform"
    PRIORITY = "priority"


class Sockets(Protocol):
    """Connects the processes of a simulation by streams of bytes."""

    async def connect(self, factory: Any, host: str, port: int, /) -> tuple[Any, Any]:
        """Connect to an address; see `create_connection` of asyncio."""

    async def accept(self, listening: Any, /) -> tuple[Any, Any]:
        """Return the next connection of a listening socket; see `sock_accept`."""

    async def start(self, factory: Any, accepted: Any, /) -> tuple[Any, Any]:
        """Give an accepted connection its protocol; see `connect_accepted_socket`."""


class SimulationStuckError(AssertionError):
    """The main task is unfinished, but no callback is ready or scheduled."""


class _Future(asyncio.Future[T]):
    """A future whose hash is a serial number, so that the order in sets is always the same."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    """A task whose hash is a serial number, so that the order in sets is always the same."""

    def __init__(
        self,
        number: int,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: Context,
    ) -> None:
        self._number = number
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


def simulated_loop(seed: int = 0, mode: Mode = Mode.FIFO) -> SimulatedLoop:
    """Return a new loop, whose virtual time begins at 0."""
    # Methods for signals and processes raise NotImplementedError.
    return SimulatedLoop(seed, mode)  # type: ignore[abstract]


class SimulatedLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time; `simulated_loop` creates it."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self._random = random.Random(f"loop/{seed}")
        self._mode = mode
        self._now = 0.0
        self._ready: dict[int, deque[asyncio.Handle]] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._lanes = MAIN_LANE
        self._priorities: dict[int, float] = {}
        self._lowest = 0.0
        self._falls = set(self._random.sample(range(PRIORITY_SPAN), PRIORITY_CHANGES))
        self._same_lane_steps = 0
        self._last_lane = -1
        self._entered: list[int] = []
        """The lanes whose callbacks run now, one within the other; the innermost lane is last."""
        self._running = False
        self._closed = False
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self.steps = 0
        self.trace = 0
        """A running checksum of all steps and of the texts passed to `note`."""
        self.unhandled: list[dict[str, Any]] = []
        """The contexts of unhandled errors; `run` raises an AssertionError for the first error."""
        self.sockets: Sockets | None = None
        """The simulated network of the processes; if it is None, the loop refuses to connect."""

    # --- for the simulation --------------------------------------------------------------

    def note(self, text: str) -> None:
        self.trace = crc32(text.encode(), self.trace)

    def new_lane(self) -> int:
        self._lanes += 1
        self._priorities[self._lanes] = 1.0 + self._random.random()
        return self._lanes

    def call_in_lane(self, lane: int, callback: Callable[..., object], *args: Any) -> None:
        """Make ``callback(*args)`` ready in `lane`, to run when the loop chooses this lane."""
        context = copy_context()
        context.run(_LANE.set, lane)
        self.call_soon(callback, *args, context=context)

    def context_in_lane(self, lane: int, context: Context) -> Context:
        """Return a copy of `context` whose callbacks run in `lane`."""
        context = context.copy()
        context.run(_LANE.set, lane)
        return context

    def call_in_lane_at(
        self, lane: int, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        context = copy_context()
        context.run(_LANE.set, lane)
        return self.call_at(when, callback, *args, context=context)

    def step_other(self) -> bool:
        """Run one ready callback of another lane, within the running callback.

        A simulated thread calls this method within a system call, to simulate that the event loop
        continues while the thread blocks. The method returns True if it ran a callback. Within a
        task, the method does nothing, because a task does not block.
        """
        candidates = [lane for lane in self._ready if lane not in self._entered]
        if not candidates or asyncio.current_task(self) is not None:
            return False
        self._step(self._choose(candidates))
        return True

    def block(self, seconds: float) -> None:
        """Block the running callback for virtual `seconds`, in which other lanes may run."""
        until = self._now + seconds
        if asyncio.current_task(self) is None:
            while True:
                self._fire_timers()
                if self.step_other():
                    continue
                if not self._timers or self._timers[0][0] > until:
                    break
                self._now = max(self._now, self._timers[0][0])
        self._now = max(self._now, until)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine `main` to its end and return its result.

        Raises:
            SimulationStuckError: every task waits, and no timer is set; or the run has too many
                steps.
        """
        previous = events._get_running_loop()
        assert previous is None or not self._running
        task = self.create_task(main, name="main")
        self._running = True
        events._set_running_loop(self)
        try:
            while not task.done():
                self._turn()
            # A real loop also runs its ready callbacks before it stops.
            for _ in range(1000):
                if not self._ready:
                    break
                self._turn()
        finally:
            events._set_running_loop(previous)
            self._running = False
        if self.unhandled:
            context = self.unhandled[0]
            error = context.get("exception")
            raise AssertionError(context["message"]) from error
        return task.result()

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended, in the order of their creation."""
        return [task for task in self._tasks.values() if not task.done()]

    def _turn(self) -> None:
        timers = self._timers
        if not self._ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                waiting = "; ".join(repr(task) for task in self.unfinished())
                raise SimulationStuckError(f"everything waits: {waiting}")
            self._now = max(self._now, timers[0][0])
        self._fire_timers()
        if self._ready:
            self._step(self._choose(list(self._ready)))

    def _fire_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            _, _, handle = heapq.heappop(timers)
            if not handle.cancelled():
                self._enqueue(handle)

    def _choose(self, lanes: list[int]) -> int:
        if self._mode is Mode.FIFO or len(lanes) == 1:
            return lanes[0]
        if self._mode is Mode.UNIFORM:
            return lanes[self._random.randrange(len(lanes))]
        lane = max(lanes, key=lambda item: self._priorities.get(item, 1.0))
        self._same_lane_steps = self._same_lane_steps + 1 if lane == self._last_lane else 0
        self._last_lane = lane
        if self.steps % PRIORITY_SPAN in self._falls or self._same_lane_steps > PRIORITY_STEPS_MAX:
            self._lowest -= 1.0
            self._priorities[lane] = self._lowest
            self._same_lane_steps = 0
        return lane

    def _step(self, lane: int) -> None:
        handles = self._ready[lane]
        handle = handles.popleft()
        # First come, first served: a lane that has more callbacks moves behind the other lanes.
        del self._ready[lane]
        if handles:
            self._ready[lane] = handles
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise SimulationStuckError(f"{STEPS_MAX} steps, and no end")
        self.trace = crc32(b"%d" % lane, self.trace)
        self._entered.append(lane)
        try:
            handle._run()
        finally:
            self._entered.pop()

    def _enqueue(self, handle: asyncio.Handle) -> None:
        lane = handle._context.get(_LANE, MAIN_LANE)  # type: ignore[attr-defined]  # not in typeshed
        handles = self._ready.get(lane)
        if handles is None:
            handles = self._ready[lane] = deque()
        handles.append(handle)

    # --- the interface of asyncio --------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # typeshed's overloads bind the arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is only one thread

    def call_later(  # type: ignore[override]  # as above
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing, because the loop ignores a cancelled timer when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        self._numbers += 1
        return _Future(self._numbers, self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        lane = self.new_lane()
        return self.create_task_in_lane(lane, coro, name or f"lane-{lane}", context)

    def create_task_in_lane(
        self,
        lane: int,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        name: object,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task in `lane`; tasks of one lane run in the order in which they are ready."""
        context = copy_context() if context is None else context.copy()
        context.run(_LANE.set, lane)
        self._numbers += 1
        number = self._numbers
        task: asyncio.Task[T] = _Task(number, coro, self, str(name), context)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    async def create_connection(  # type: ignore[override]  # only what carriers pass
        self,
        protocol_factory: Any,
        host: str,
        port: int,
        *,
        ssl: None = None,
        server_hostname: None = None,
    ) -> tuple[Any, Any]:
        assert ssl is server_hostname is None, "the simulation has no TLS"
        assert self.sockets is not None, "the simulation has no network"
        return await self.sockets.connect(protocol_factory, host, port)

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        assert self.sockets is not None, "the simulation has no network"
        return await self.sockets.accept(sock)

    async def connect_accepted_socket(  # type: ignore[override]  # as above
        self, protocol_factory: Any, sock: Any
    ) -> tuple[Any, Any]:
        assert self.sockets is not None, "the simulation has no network"
        return await self.sockets.start(protocol_factory, sock)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember an unhandled error; `run` raises an AssertionError for the first error."""
        self.unhandled.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        """Return False, because asyncio's own debug checks read the real clock."""
        return False

    def close(self) -> None:
        """Drop all ready callbacks and timers. Unfinished tasks stay unfinished."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Do nothing, because the loop keeps no list of asynchronous generators."""
