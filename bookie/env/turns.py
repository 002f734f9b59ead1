"""Limits the work in one turn of the event loop, and shares the turns fairly among peers.

If one turn handled one message of each of a thousand streams, the turn would last a tenth of a
second. Urgent work would then wait for several turns of this length. So each turn has a limited
number of units, and ordinary work takes units before it runs. Work that gets no units waits for a
later turn in a queue, its *line*. Each turn serves the lines in rotation, one piece of work from
each line. So a peer with a thousand streams in one line gets no more units than a peer with one
stream.

gRPC accepts one new call in each turn, in the order of arrival. So a fence may wait behind hundreds
of calls, and turns must be short while new calls arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

UNITS_PER_HURRIED_TURN: Final = 2
UNITS_PER_TURN: Final = 16
"""One unit is the work for a message of usual size, 100 to 200 µs; so a turn takes about 3 ms."""


class Turns:
    """Shares the units of each turn of one event loop among lines, the queues of waiting work.

    Args:
        units: the number of units in one turn.
    """

    def __init__(self, units: int = UNITS_PER_TURN) -> None:
        self._units = self._left = units
        self._is_hurried = False
        self._is_due = False
        """True if a call of `_begin` is scheduled in the event loop."""
        self._lines: dict[object, deque[tuple[int, asyncio.Future[None]]]] = {}
        """The waiting work of each line; the next turn begins with the first line."""

    def try_take(self, units: int) -> bool:
        """Take `units` of this turn; return False if other work waits or no unit is left."""
        left = self._left
        if left <= 0 or self._lines:
            return False
        self._left = left - units
        self._arm()
        return True

    async def take(self, units: int, line: object) -> None:
        """Take `units` of this turn or a later turn, after all earlier work of the same line."""
        if not self.try_take(units):
            await self.later(units, line)

    def later(self, units: int, line: object) -> asyncio.Future[None]:
        """Return a future that is done when `units` of a later turn are taken.

        Call this only after `try_take` has returned False, because only then a later turn is
        scheduled.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append((units, turn))
        # After a cancellation, no units must be returned: a waiting task has taken no units.
        return turn

    def hurry(self) -> None:
        """Shorten this turn and the next turn, because a new call came and more calls may wait."""
        self._is_hurried = True
        self._left = min(self._left, UNITS_PER_HURRIED_TURN)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn: run waiting work, one piece of each line, while units are left."""
        self._is_due = False
        most = min(self._units, UNITS_PER_HURRIED_TURN) if self._is_hurried else self._units
        self._left, self._is_hurried = most, False
        lines = self._lines
        while lines and self._left > 0:
            line = next(iter(lines))
            waiting = lines.pop(line)
            units, turn = waiting.popleft()
            if waiting:
                lines[line] = waiting
            if not turn.done():
                self._left -= units
                turn.set_result(None)
        if self._left < self._units:
            self._arm()
