"""The thread whose event loop runs all synchronous clients; a forked child gets its own thread."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, Protocol, Self, TypeVar

from bookie.env.forks import grpc_use
from bookie.env.loop_errors import report_loop_error
from bookie.errors import BadRequestError, BookieError, ClientClosedError, OperationTimeoutError

T = TypeVar("T")

END_SECONDS_MAX = 5.0
"""The longest time in seconds that an ending process waits until a shared client is closed."""


class LoopThread:
    """The daemon thread whose event loop runs all clients of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name="bookie-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(report_loop_error)
        self.loop.run_forever()

    @property
    def is_here(self) -> bool:
        """True if the calling thread is the thread of this loop."""
        return threading.get_ident() == self._thread.ident

    def require_caller(self) -> None:
        """Raise an error if the calling thread must not, or cannot, wait for this loop.

        Raises:
            BadRequestError: an event loop runs in the calling thread.
            ClientClosedError: the loop belongs to the parent process, or the loop's thread has
                ended.
        """
        if self.pid != os.getpid():
            raise ClientClosedError(
                f"the client belongs to process {self.pid} and does not survive a fork; connect "
                f"again in this process"
            )
        if _has_running_loop():
            raise BadRequestError(
                "a call of bookie.sync would block the event loop of this thread; use "
                "bookie.connect there"
            )
        if not self._thread.is_alive():
            raise ClientClosedError("the process is ending")

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` in the loop, wait for its result, and return it.

        Raises:
            OperationTimeoutError: `work` did not end in time. The call cancels `work`; the outcome
                is unknown.
            BadRequestError: the timeout is no number of seconds.
        """
        try:
            check_timeout(timeout)
            self.require_caller()
        except BookieError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            # `work` itself may have raised this TimeoutError, or `work` may have ended just now.
            if future.cancel():
                raise late(timeout) from None
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Stop the loop and drop its tasks."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_SECONDS_MAX)


class Resident(Generic[T]):
    """Enters and leaves an async context manager in one task of the loop."""

    def __init__(self, home: LoopThread, manager: AbstractAsyncContextManager[T]) -> None:
        self._home = home
        self._manager = manager
        self._close_requested = asyncio.Event()
        self._life: Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """True while the context manager is entered, in the process that entered it."""
        life = self._life
        return life is not None and not life.done() and self._home.pid == os.getpid()

    def open(self, timeout: float | None = None) -> T:
        """Enter the context manager once; return the manager's value, or raise its error.

        Raises:
            BadRequestError: the manager was entered before.
            OperationTimeoutError: entering the manager took too long, and was cancelled.
        """
        check_timeout(timeout)
        self._home.require_caller()
        if self._life is not None:
            raise BadRequestError("it is open already, or was closed; make another")
        entered: Future[T] = Future()
        self._life = asyncio.run_coroutine_threadsafe(self._live(entered), self._home.loop)
        try:
            return entered.result(timeout)
        except TimeoutError:
            # The manager itself may have raised this TimeoutError, or it may have been entered just
            # now.
            if not entered.cancel():
                return entered.result()
            self._life.cancel()
            raise late(timeout) from None
        except BaseException:
            self._life.cancel()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Leave the context manager, wait until its exit has ended, and raise its error.

        If the manager was already left, do nothing.

        Raises:
            OperationTimeoutError: the manager's exit took too long, and continues in the loop.
        """
        check_timeout(timeout)
        self._home.require_caller()
        if self._life is None or self._life.done():
            return
        self._home.loop.call_soon_threadsafe(self._close_requested.set)
        try:
            self._life.result(timeout)
        except TimeoutError:
            raise late(timeout) from None

    async def _live(self, entered: Future[T]) -> None:
        try:
            async with self._manager as value:
                if entered.set_running_or_notify_cancel():
                    entered.set_result(value)
                await self._close_requested.wait()
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)


class Closeable(Protocol):
    """An object that can be closed at the end of the process.

    `close` waits `timeout` seconds at most.
    """

    def close(self, *, timeout: float | None = None) -> None: ...


class Closing(ABC):
    """Base class of objects that are closed at the end of their `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> object: ...


class ThisProcess:
    """The loop thread and the shared clients of this process; a forked child begins with none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shared: dict[str, Closeable] = {}
        """The shared clients, which are closed at the end of the process."""
        self._home: LoopThread | None = None
        self._is_watching = False

    def home(self) -> LoopThread:
        """Return the loop thread of this process; the first call starts the thread.

        Raises:
            ConfigurationError: the process was forked after its parent had used gRPC, so gRPC does
                not work in this process.
        """
        with self.lock:
            grpc_use.require_usable()
            if not self._is_watching:
                self._is_watching = True
                os.register_at_fork(after_in_child=self._after_fork)
                atexit.register(self._end)
            if self._home is None:
                self._home = LoopThread()
            return self._home

    def _after_fork(self) -> None:
        self._home = None
        # A thread of the parent process may have held the lock during the fork.
        self.lock = threading.RLock()
        self.shared = {}

    def _end(self) -> None:
        """Close the shared clients, then stop the loop."""
        home = self._home
        if home is None:
            return
        for shared in self.shared.values():
            with suppress(BookieError):
                shared.close(timeout=END_SECONDS_MAX)
        home.end()


this_process = ThisProcess()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _has_running_loop() -> bool:
    """True if this thread runs an event loop; always False in the kernel of a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return "ipykernel.kernelapp" not in sys.modules


def check_timeout(timeout: Any) -> None:
    """Check that a timeout is a finite number of seconds, or None for no limit.

    Raises:
        BadRequestError: the timeout is neither a finite number nor None.
    """
    if timeout is None:
        return
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (is_number and timeout <= threading.TIMEOUT_MAX):  # False for NaN
        raise BadRequestError(f"a timeout is a number of seconds, or None, not {timeout!r}")


def late(timeout: float | None) -> OperationTimeoutError:
    """Return the error for a call that lasted longer than `timeout` seconds."""
    return OperationTimeoutError(
        f"the call did not end within {timeout} seconds; its outcome is unknown"
    )
