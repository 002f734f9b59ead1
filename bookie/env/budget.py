"""A budget of bytes, which bounds the memory of a bookie's concurrent adds or reads."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """A number of bytes that requests take and give back; waiting requests form a queue.

    A request that is larger than the whole budget gets its bytes when no other request holds bytes
    of the budget.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        """The number of bytes that were taken and not returned yet."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int, beyond: int = 0) -> bool:
        """Take `size` bytes if they fit into the budget; return True if they were taken.

        A positive `beyond` enlarges the budget for this call by `beyond` bytes, and lets this call
        overtake waiting callers. Without `beyond`, the result is False while another caller waits.
        """
        used = self.used + size
        if (self._waiting and not beyond) or (self.used and used > self.bytes_max + beyond):
            return False
        self.used = used
        return True

    async def take(self, size: int) -> None:
        """Wait until earlier callers have their bytes and `size` bytes fit; then take the bytes."""
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
                # This caller took no bytes, but it may have blocked the callers behind it.
                if (size, turn) in self._waiting:
                    self._waiting.remove((size, turn))
                self._admit()
            raise

    def give_back(self, size: int) -> None:
        """Give back `size` bytes; a negative `size` takes bytes, even beyond the budget."""
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
