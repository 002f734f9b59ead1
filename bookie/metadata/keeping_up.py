"""How a view of records follows their changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.errors import MetadataClosedError
from bookie.metadata.changes import Change, Resync


async def keep_up(
    changes: AsyncIterator[Change],
    apply: Callable[[Change], Awaitable[bool]],
    pause: Callable[[int], Awaitable[None]],
) -> None:
    """Apply every change, until the store is closed; a view then stays as it was last seen.

    `apply` says False if the store did not answer; after ``pause(attempt)``, attempts counted from
    0, it is asked to resync, because what was missed meanwhile is unknown.
    """
    try:
        async for change in changes:
            due, attempt = change, 0
            while not await apply(due):
                await pause(attempt)
                due, attempt = Resync(), attempt + 1
    except MetadataClosedError:
        return
