"""Limits the unconfirmed appends of a writer; callers wait in a queue for room.

Entry ids follow the order of the append calls. So a caller waits in a queue if the window is full,
or if an earlier caller still waits. If `is_blocked` is True, a caller must wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

Turn = asyncio.Future[None]
"""A caller's place in the queue; the future is done when it is this caller's turn."""


class InFlightWindow:
    """Limits entries and bytes in flight, and queues the waiting callers."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries = 0
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = True
        self._is_held = False
        self.is_blocked = False
        """True if an append must `wait`; an attribute for speed, because every append reads it."""

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Take a place in the queue, even if there is room; call `wait` in the ``with`` block."""
        turn = self._join()
        try:
            yield turn
        finally:
            self._leave(turn)

    async def wait(self, turn: Turn | None = None) -> None:
        """Wait for the caller's turn; the caller must then call `take` before its next await."""
        if turn is None:
            turn = self._join()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(turn)
            raise
        self._waiting.remove(turn)
        if not self._is_open:
            self._update()

    def take(self, entries: int, size: int) -> None:
        """Count new entries and bytes as in flight, even beyond a limit."""
        self._entries += entries
        self._bytes += size
        if self.is_blocked or self._bytes >= self._bytes_max or self._entries >= self._entries_max:
            self._update()

    def give_back(self, entries: int, size: int) -> None:
        """Subtract entries and bytes that are no longer in flight, and wake a waiting caller."""
        self._entries -= entries
        self._bytes -= size
        self._update()

    def hold(self) -> None:
        """Admit no caller until `go_on`."""
        self._is_held = True
        self._update()

    def go_on(self) -> None:
        """Admit callers again, in the order of their arrival."""
        self._is_held = False
        self._update()

    def let_all_in(self) -> None:
        """Let all waiting callers continue after the writer has ended; each then gets its error."""
        self._is_open = False
        self._update()

    def _join(self) -> Turn:
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._update()
        return turn

    def _leave(self, turn: Turn) -> None:
        if turn in self._waiting:  # otherwise `wait` removed the turn
            self._waiting.remove(turn)
            self._update()

    def _update(self) -> None:
        """Wake the first waiting caller if there is room, and recompute `is_blocked`."""
        is_full = self._is_open and (
            self._is_held or self._bytes >= self._bytes_max or self._entries >= self._entries_max
        )
        if self._waiting and not is_full and not self._waiting[0].done():
            self._waiting[0].set_result(None)
        self.is_blocked = is_full or bool(self._waiting)
