"""Turns: what the work of many peers may take of one turn of the event loop.

A turn that handles a message of each of a thousand streams lasts a tenth of a second, and whatever
is urgent waits for it several times. So ordinary work takes units of a turn, and work that does not
fit waits for the next turn. There the lines of waiting work are served one after the other, one
piece of each. So a peer with a thousand streams gets no more turns than a peer with one.

gRPC accepts one call a turn, in the order in which the calls came, and a fence may be behind
hundreds of them. So turns are short while calls come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

UNITS_PER_HURRIED_TURN: Final = 2
UNITS_PER_TURN: Final = 16
"""Messages of usual size in one turn: at 100 to 200 µs each they take about 3 ms."""


class Turns:
    """Shares each turn of one event loop among lines of work.

    Args:
        units: the units of one turn.
    """

    def __init__(self, units: int = UNITS_PER_TURN) -> None:
        self._units = self._left = units
        self._is_hurried = False
        self._is_due = False
        """True if `_begin` is going to be called."""
        self._lines: dict[object, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Work that waits for a later turn, by its line; the first line is the next one."""

    def try_take(self, units: int) -> bool:
        """Take units of this turn, if no work waits and the turn has some left."""
        left = self._left
        if left <= 0 or self._lines:
            return False
        self._left = left - units
        self._arm()
        return True

    async def take(self, units: int, line: object) -> None:
        """Wait for units of a turn behind earlier work of the same line."""
        if self.try_take(units):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append((units, turn))
        # A cancelled wait gives nothing back: each turn has all of its units again.
        await turn

    def hurry(self) -> None:
        """Keep this turn and the next one short, for a call has come, and others may wait."""
        self._is_hurried = True
        self._left = min(self._left, UNITS_PER_HURRIED_TURN)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn: serve the lines, one piece of each, as far as the units last."""
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
