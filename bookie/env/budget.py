"""A limit on bytes in flight, which bounds the memory of a bookie's adds or reads."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """A number of bytes that requests share, first come first served.

    A request larger than the whole budget is admitted alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        """The number of bytes that were taken and not returned yet."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int, beyond: int = 0) -> bool:
        """Take `size` bytes if no caller waits and the budget plus `beyond` has room.

        A caller that may go beyond the budget overtakes those that wait.
        """
        used = self.used + size
        if (self._waiting and not beyond) or (self.used and used > self.bytes_max + beyond):
            return False
        self.used = used
        return True

    async def take(self, size: int) -> None:
        """Take `size` bytes; wait for earlier callers and for room."""
        if self.try_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            else:
                # Bytes returned since the cancellation went to other callers.
                if (size, turn) in self._waiting:
                    self._waiting.remove((size, turn))
                self._admit()
            raise

    def give_back(self, size: int) -> None:
        """Return `size` bytes; a negative size takes bytes without a check."""
        assert size <= self.used, "more bytes came back than were taken"
        self.used -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and (
            not self.used or self.used + self._waiting[0][0] <= self.bytes_max
        ):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)
