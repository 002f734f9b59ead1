"""Run a call in a separate task. The task belongs to the client, not to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from bookie.errors import ClientClosedError
from bookie.ledger.connection.pool import BookiePool

T = TypeVar("T")


def ignore_error(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a finished future, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


class Background(Generic[T]):
    """A call that runs in a separate task. The caller must await `result` or `close`.

    The caller may begin the call in one task and end it in another, as async generators do. So no
    task group of the caller can own the call.
    """

    def __init__(self, pool: BookiePool, call: Coroutine[None, None, T], name: str) -> None:
        """Begin the call. Raises ClientClosedError if the client is closed."""
        self._call = call
        self._results: list[T] = []
        self._error: Exception | None = None
        try:
            pool.require_open()
        except ClientClosedError:
            call.close()
            raise
        self._task = pool.spawn(self._run(), name=name)

    async def _run(self) -> None:
        try:
            self._results.append(await self._call)
        except Exception as error:  # noqa: BLE001  (raised by `result`)
            self._error = error

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that runs the call; the task never raises the error of the call."""
        return self._task

    async def result(self) -> T:
        """Wait until the call has ended; return its result or raise its error.

        Raises:
            ClientClosedError: the client was closed before the call had ended.
        """
        await asyncio.wait([self._task])
        self._call.close()
        if self._error is not None:
            raise self._error
        if not self._results:
            raise ClientClosedError("the client was closed while a log was read")
        return self._results[0]

    async def close(self) -> None:
        """Cancel the call, and wait until it has ended. Errors of the call are dropped.

        A caller that is cancelled during `close` still waits until the call has ended. The reason
        is that the call may run an async generator, which cannot be closed before the call has
        ended.
        """
        cancelled: asyncio.CancelledError | None = None
        self._task.cancel()
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as error:
                cancelled = error
        self._call.close()  # a task that was cancelled before its start never awaits the call
        if cancelled is not None:
            raise cancelled
