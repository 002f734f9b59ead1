"""Repeat a compare-and-set that lost to another process, or whose outcome is unknown."""

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

UNANSWERED = (MetadataUnavailableError, SessionLostError)
"""After these errors, a caller reads the state again: the failed write may have taken effect."""

PAUSE_SECONDS_MIN = 0.01
"""The first pause of `Attempts`. Its attempts need only the metadata store, and no bookie."""

PATIENT_PAUSE_SECONDS_MIN = 0.05
"""The first pause of `patiently`."""

PAUSE_SECONDS_MAX = 2.0


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    deadline: float,
    retried: type[BookieError] | tuple[type[BookieError], ...],
    on_failure: Callable[[BookieError], Awaitable[object]] | None = None,
) -> T:
    """Call `attempt` until it succeeds; after the deadline, raise the error of the last attempt.

    Only errors of the types `retried` cause another attempt. `deadline` is a time by the clock of
    the event loop. `on_failure` runs before each pause; an error of `on_failure` ends the attempts.
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
    """Repeats a compare-and-set; each attempt reads the present state and proposes a new state.

    ::

        attempts = Attempts()
        while True:
            try:
                ...  # sync and read; return if the change is already made
                with attempts.proposing():
                    return await write(...)
            except MetadataError as error:
                await attempts.pause_after(error)
    """

    def __init__(self) -> None:
        self.is_in_doubt = False
        """True if it is unknown whether the store has written a proposed state.

        The next attempt may already read the proposed state. The store may also write this state
        later.
        """
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)

    @contextmanager
    def proposing(self) -> Iterator[None]:
        try:
            yield
        except MetadataUnavailableError:
            self.is_in_doubt = True
            raise

    async def pause_after(self, error: MetadataError) -> None:
        """Wait before the next attempt.

        Raises:
            MetadataError: `error` itself. Nothing is raised if another process changed the value
                first, or if the outcome of a proposed write is unknown.
        """
        may_be_made = isinstance(error, UNANSWERED) and self.is_in_doubt
        if not (isinstance(error, BadVersionError) or may_be_made):
            raise error
        await asyncio.sleep(self._pauses.next())
