"""Waits until another session's record of the same key is deleted, and then writes a record.

The other session may belong to an earlier run of this process. The session of an earlier run ends
soon, and then the store deletes its record. If the session belongs to a living process, its record
is not deleted, and the take-over fails. Only an answer of the store shows that the record still
exists: time without an answer proves nothing.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from bookie.metadata.model import Change


async def take_over(
    try_write: Callable[[], Awaitable[bool]], changes: AsyncIterator[Change], wait_seconds: float
) -> bool:
    """Call `try_write` after each change until it returns True; return False after the wait.

    `try_write` writes the record and returns True, or returns False while another session's record
    has the key. Errors of `try_write` are raised. `changes` comes from a watch on the key, which
    the caller has opened before this call. The caller may continue to read `changes` afterwards.

    The wait for changes ends `wait_seconds` after the first False of `try_write`. This limit does
    not include the time that the store needs for its answers. After the wait, `try_write` is called
    once more. So False is returned only after the store has answered that the other record still
    exists.
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
