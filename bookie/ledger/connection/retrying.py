"""Repeats a call after an error that may be temporary."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookie.env import Backoff
from bookie.env.backoff import FULL
from bookie.env.checked import checked
from bookie.errors import BadRequestError, BookieError

T = TypeVar("T")


@checked
async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    attempts: int = 5,
    first_pause_seconds: float = 0.1,
    pause_seconds_max: float = 5.0,
    deadline_seconds: float | None = None,
) -> T:
    """Return the result of ``call()``; repeat the call after errors whose `retryable` is true.

    ::

        reader = await retry(lambda: bk.open_ledger(ledger_id, recover=True))

    Between two attempts, `retry` pauses for a random time between 0 and an upper bound. The upper
    bound of the pauses starts at `first_pause_seconds` and doubles each time, up to
    `pause_seconds_max`.

    Do not use `retry` for `append`. After every error of an append, the append's outcome is
    unknown, so a repetition may store the entry twice. The `retryable` of a writer's error is never
    true, because the writer has ended. Write the entries again, to another ledger, only if
    duplicates are harmless, or if readers detect duplicates (as with an idempotent producer). Each
    attempt of `create_ledger` may leave behind a ledger without a writer.

    Args:
        call: creates a new awaitable each time.
        attempts: the largest number of calls; at least 1.
        first_pause_seconds: upper bound of the first pause.
        pause_seconds_max: upper bound of every pause.
        deadline_seconds: no attempt starts when more than this number of seconds have passed since
            the first attempt began; None means no limit. To end an attempt that has started, use
            the client's timeouts.

    Raises:
        BadRequestError: an argument is out of range.
        BookieError: the error of the last attempt, or the first error that is not retryable. Errors
            of other classes, and a cancellation, are not caught.
    """
    if attempts < 1 or first_pause_seconds < 0 or pause_seconds_max < 0:
        raise BadRequestError("a retry needs an attempt at least, and pauses of 0 seconds or more")
    clock = asyncio.get_running_loop().time
    deadline = None if deadline_seconds is None else clock() + deadline_seconds
    pauses = Backoff(first_pause_seconds, pause_seconds_max, random.random, FULL)
    for _ in range(attempts - 1):
        try:
            return await call()
        except BookieError as error:
            pause = pauses.next()
            if not error.retryable or (deadline is not None and clock() + pause > deadline):
                raise
        await asyncio.sleep(pause)
    return await call()
