"""A bookie with empty directories delays its start while an entry may have lost its last copy.

Each attempt to start lists all ledgers of the cluster. If the process ended after a failed attempt,
a service manager would start the process again at once. So the process itself waits before the next
attempt. The pause is `REST` times as long as the attempt, but at least `PAUSE_SECONDS_MIN`.

During the pause, the bookie's directories are not locked. If the operator mounts the right disk
during a pause, the bookie starts with the disk's data at the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

from bookie.daemon.readiness import Part, Readiness
from bookie.env import Clock
from bookie.ledger.catalog.bookie_losses import DataNotExpendableError
from bookie.telemetry import event_log

PAUSE_SECONDS_MIN = 2.0
REST = 20.0

T = TypeVar("T")

_log = event_log(__name__)


class StoppedBeforeStartError(Exception):
    """A stop was requested during the wait, before the bookie had started."""


@asynccontextmanager
async def patiently(
    start: Callable[[], AbstractAsyncContextManager[T]],
    stop_requested: asyncio.Event,
    readiness: Readiness,
    clock: Clock,
) -> AsyncIterator[T]:
    """Enter the context of `start`; after a DataNotExpendableError, pause and try again.

    During the pause, the bookie is not ready, and the readiness report has the reason. Each new
    reason is logged.

    Raises:
        StoppedBeforeStartError: `stop_requested` was set during a pause.
    """
    async with AsyncExitStack() as stack:
        reason = ""
        while True:
            began = clock.monotonic()
            try:
                started = await stack.enter_async_context(start())
            except DataNotExpendableError as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning("start_waits", reason=reason)
            else:
                yield started
                return
            readiness.block(Part.BOOT, reason)
            seconds = max(PAUSE_SECONDS_MIN, REST * (clock.monotonic() - began))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop_requested.wait()
            if stop_requested.is_set():
                raise StoppedBeforeStartError
