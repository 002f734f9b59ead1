"""Take over a record if its owner's session is about to end, but no other record.

A record of the same name may come from an earlier run of this process. Such a record ends soon,
with its session; the record of a living owner stays. Only an answer of the store shows which kind a
record is: a slow or silent store proves nothing.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.metadata.model import Change


async def take_over(
    try_write: Callable[[], Awaitable[bool]], changes: AsyncIterator[Change], wait_seconds: float
) -> bool:
    """Write when no other owner has the record; False if the record stays for `wait_seconds`.

    `try_write` writes the record, or returns False if another owner has it. Errors of `try_write`
    are raised. A call of `try_write` may take as long as the store needs: `wait_seconds` limits
    only the wait for `changes`. After the wait, `try_write` is called once more, so a result of
    False always comes from an answer of the store. `changes` is a watch on the record that was
    opened before the call. The watch cannot be used again afterwards.
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
