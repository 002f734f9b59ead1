"""Taking the place of a record's owner whose session is about to end, and of no other.

A record of the same name may be an earlier life of this process. Its lease ends soon; the record of
a living owner stays. Which of the two it is only the store can say: a store that is slow, or does
not answer, is evidence of nothing.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.metadata.store import Change


async def succeed(
    try_write: Callable[[], Awaitable[bool]], changes: AsyncIterator[Change], wait_seconds: float
) -> bool:
    """Write as soon as no owner is in the way; False if one is for `wait_seconds`.

    `try_write` looks and writes, or says that an owner is in the way; its errors come out. It takes
    as long as the store needs, and only waiting for `changes` ends with the time. After that it
    looks once more, so False is always something that the store said. `changes` tells of what
    happens to the record from before the call, and cannot be used afterwards.
    """
    now = asyncio.get_running_loop().time
    deadline, is_over = float("inf"), False
    while True:
        is_over = is_over or now() >= deadline
        if await try_write():
            return True
        if is_over:
            return False
        deadline = min(deadline, now() + wait_seconds)
        try:
            async with asyncio.timeout_at(deadline):
                await anext(changes)
        except TimeoutError:
            is_over = True
