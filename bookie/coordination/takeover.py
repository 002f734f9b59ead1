"""Take over a record whose owner's session ends soon; leave the record of a living owner.

A record of the same name may come from an earlier run of this process. Such a record ends soon,
with its session. The record of a living owner stays. Only an answer of the store shows if the
record has ended: a slow or silent store proves nothing.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.metadata.model import Change


async def take_over(
    try_write: Callable[[], Awaitable[bool]], changes: AsyncIterator[Change], wait_seconds: float
) -> bool:
    """Write a record as soon as no other owner has it; return False after `wait_seconds`.

    `try_write` writes the record, or returns False if another owner has it. Errors of `try_write`
    are raised. `changes` is a watch on the record, which the caller has opened before the call.
    After the call, the watch cannot be used again.

    `wait_seconds` limits only the wait for `changes`: a call of `try_write` may take as long as the
    store needs. After the wait, `try_write` is called once more. So a result of False always comes
    from an answer of the store.
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
