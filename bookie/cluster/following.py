"""Following a part of the metadata store: what is there now, and again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookie.env import jitter
from bookie.errors import (
    FormatError,
    MetadataClosedError,
    MetadataUnavailableError,
    SessionLostError,
)
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

T = TypeVar("T")

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 5.0

_log = event_log(__name__)


async def follow(
    store: MetadataStore,
    prefix: str,
    read: Callable[[], Awaitable[T]],
    take: Callable[[T], None],
) -> None:
    """Call `take` with what `read` gives, now and after each change below `prefix`.

    There may have been several changes between two calls. While the store is away nothing is told,
    and the newest state when it is back. What cannot be understood is logged and not told. Returns
    when the store was closed.
    """
    retry_seconds = RETRY_SECONDS_MIN
    while True:
        try:
            async with store.watch(prefix) as changes:
                while True:
                    try:
                        take(await read())
                    except FormatError as error:
                        _log.warning("metadata_not_understood", reason=str(error))
                    retry_seconds = RETRY_SECONDS_MIN
                    await anext(changes)
        except MetadataClosedError:
            return
        except (MetadataUnavailableError, SessionLostError):
            # Watching begins anew: whatever changed meanwhile is in what is read then. All bookies
            # lose a store at once, and should not come back at once.
            await asyncio.sleep(retry_seconds * (0.5 + jitter()))
            retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
