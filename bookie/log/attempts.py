"""Compare-and-set by anybody: again after a lost one, and until an unknown one is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from bookie.env import Backoff, jitter
from bookie.env.backoff import AROUND
from bookie.errors import (
    BadVersionError,
    BookieError,
    MetadataError,
    MetadataUnavailableError,
    SessionLostError,
)

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.01
PAUSE_SECONDS_MAX = 2.0
"""Pauses between attempts; they double, and vary."""

PATIENT_PAUSE_SECONDS_MIN = 0.05
"""Likewise, of what needs bookies."""


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    deadline: float,
    retried: type[BookieError] | tuple[type[BookieError], ...],
    on_failure: Callable[[BookieError], Awaitable[object]] | None = None,
) -> T:
    """The result of `attempt`, made again after errors that are `retried`, until the deadline.

    `deadline` is a time of the event loop. `on_failure` runs before each pause, and may raise.
    Raises what the last attempt did.
    """
    now = asyncio.get_running_loop().time
    pauses = Backoff(PATIENT_PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)
    while True:
        try:
            return await attempt()
        except retried as error:
            if now() >= deadline:
                raise
            if on_failure is not None:
                await on_failure(error)
        await asyncio.sleep(min(pauses.next(), max(0.0, deadline - now())))


class Attempts:
    """The attempts at one change. Each reads what is there, and proposes what follows from it.

    ::

        attempts = Attempts()
        while True:
            try:
                ...  # read, synced; return if it is done
                with attempts.proposing():
                    return await write(...)
            except MetadataError as error:
                await attempts.pause_after(error)
    """

    def __init__(self) -> None:
        self.is_in_doubt = False
        """Whether the outcome of a proposal is unknown: what is read may be its effect, or the
        effect may still come."""
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)

    @contextmanager
    def proposing(self) -> Iterator[None]:
        """Around the write."""
        try:
            yield
        except MetadataUnavailableError:
            self.is_in_doubt = True
            raise

    async def pause_after(self, error: MetadataError) -> None:
        """Wait before the next attempt.

        Raises:
            MetadataError: `error`, if no other attempt should follow.
        """
        is_unanswered = isinstance(error, MetadataUnavailableError | SessionLostError)
        if not isinstance(error, BadVersionError) and not (is_unanswered and self.is_in_doubt):
            raise error
        await asyncio.sleep(self._pauses.next())
