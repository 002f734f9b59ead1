"""Compare this machine's clock with bookies' clocks, so that a wrong clock does no harm.

A machine whose clock is forty days ahead would delete records that are a minute old. So a deletion
by time uses the earliest clock: either this machine's clock or the clock of a bookie that was
asked. A client creates no ledger of a log while this machine's clock contradicts the clocks of all
bookies that answer. The reason is that ledgers and records store this machine's time.

A bookie's answer to ``GetInfo`` contains the bookie's time. The check computes the bookie's present
time from this answer and from this machine's monotonic clock. So a step of this machine's wall
clock does not change the computed time.
"""

from __future__ import annotations

import asyncio
import random

from bookie.env import Clock
from bookie.env.clock import duration_text
from bookie.errors import ClockError, NotEnoughBookiesError
from bookie.ledger.connection.pool import ask_bookies
from bookie.ledger.ledger_client import LedgerClient
from bookie.telemetry import event_log

DIFFERENCE_SECONDS_MAX = 3600.0
"""A machine's clock is wrong if it differs by more seconds than this from all bookies' clocks.

Data is deleted only at an age of half a day or more, so a difference of an hour does no harm.
"""

ASKED_MAX = 5

TELLERS_MIN = 2
"""The fewest bookies that must tell their time before a deletion.

In a cluster with fewer bookies, all must tell their time. One bookie is too few: a sweep may run on
that bookie's machine, and then both use the same wrong clock.
"""

ANSWER_SECONDS_MAX = 1.0
KEPT_SECONDS = 60.0
"""The time for which answers are reused: owners of thousands of partitions would ask too often."""

_log = event_log(__name__)


class ClockCheck:
    """Compares the clock of this machine with the clocks of some bookies."""

    def __init__(self, clock: Clock, ledgers: LedgerClient) -> None:
        self._clock = clock
        self._ledgers = ledgers
        self._offsets: dict[str, float] = {}
        """For each bookie: its clock minus this machine's monotonic clock, in ms."""
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()
        self._warned = False

    async def deletion_ms(self) -> int:
        """Return the time of the earliest clock, in ms since 1970. Deletions by age use this time.

        Raises:
            NotEnoughBookiesError: too few bookies told their time, so nothing may be deleted by
                age.
        """
        await self._ask()
        needed = min(TELLERS_MIN, max(1, len(self._ledgers.directory.all())))
        if len(self._offsets) < needed:
            raise NotEnoughBookiesError(
                f"{len(self._offsets)} bookies tell what time it is, and {needed} have to before "
                "anything is deleted by its time"
            )
        own = self._clock.now_ms()
        bookie_id, earliest = min(self._now().items(), key=lambda item: item[1])
        if abs(own - earliest) > 1000 * DIFFERENCE_SECONDS_MAX and not self._warned:
            self._warned = True
            _log.warning("clocks_differ", bookie=bookie_id, difference=_apart(own, earliest))
        return int(min(own, earliest))

    async def require_right(self, *, again: bool = False) -> bool:
        """Compare this machine's clock with bookies' clocks; False if no bookie told its time.

        Without `again`, earlier answers of bookies may be used. With `again`, bookies are asked
        now.

        Raises:
            ClockError: this machine's clock contradicts every bookie's clock; the message has the
                smallest difference.
        """
        if again:
            self._asked_at = None
        await self._ask()
        own, others = self._clock.now_ms(), self._now()
        if not others:
            return False
        bookie_id, nearest = min(others.items(), key=lambda item: abs(item[1] - own))
        if abs(own - nearest) > 1000 * DIFFERENCE_SECONDS_MAX:
            raise ClockError(
                f"this machine's clock is {_apart(own, nearest)} the clock of bookie {bookie_id}, "
                "and further from those of the others: records would get a wrong time; set the "
                "clock"
            )
        return True

    def _now(self) -> dict[str, float]:
        elapsed = 1000 * self._clock.monotonic()
        return {bookie_id: offset + elapsed for bookie_id, offset in self._offsets.items()}

    async def _ask(self) -> None:
        async with self._asking:
            now = self._clock.monotonic()
            if self._asked_at is not None and now - self._asked_at < KEPT_SECONDS:
                return
            known = sorted(self._ledgers.directory.all())
            asked = random.sample(known, min(ASKED_MAX, len(known)))
            answers = await ask_bookies(
                self._ledgers.pool, asked, timeout_seconds=ANSWER_SECONDS_MAX
            )
            elapsed = 1000 * self._clock.monotonic()
            # Bookies of older versions do not tell the time.
            found = {one: info.now_ms - elapsed for one, info in answers.items() if info.now_ms}
            if found:
                self._offsets, self._asked_at = found, now
            elif self._asked_at is None:
                self._offsets = {}


def _apart(own_ms: float, other_ms: float) -> str:
    words = "ahead of" if own_ms > other_ms else "behind"
    return f"{duration_text(abs(own_ms - other_ms) / 1000)} {words}"
