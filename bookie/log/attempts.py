"""Compare-and-set by anybody: again after a lost one, and until an unknown one is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bookie.env import jitter
from bookie.errors import BadVersionError, MetadataError, MetadataUnavailableError, SessionLostError

PAUSE_SECONDS_MIN = 0.01
PAUSE_SECONDS_MAX = 2.0
"""Pauses between attempts; they double, and vary."""


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
        self._pause_seconds = PAUSE_SECONDS_MIN

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
        await asyncio.sleep(self._pause_seconds * (0.5 + jitter()))
        self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)
