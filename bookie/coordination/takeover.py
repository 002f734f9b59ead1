"""Taking over a record whose owner's session is about to end, and no other record.

A record of the same name may be from an earlier life of this process. Its lease ends soon; the
record of a living owner stays. Only the store can tell the two apart: a store that is slow, or does
not answer, proves nothing.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.metadata.store import Change


async def take_over(
    try_write: Callable[[], Awaitable[bool]], changes: AsyncIterator[Change], wait_seconds: float
) -> bool:
    """Write as soon as no owner is in the way; False if one is for `wait_seconds`.

    `try_write` looks and writes, or returns False if an owner is in the way; its errors pass. It
    may take as long as the store needs: only the wait for `changes` ends with the time. After that
    `try_write` is called once more, so False is always an answer of the store. `changes` is a watch
    on the record that was opened before the call. It cannot be used afterwards.
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
