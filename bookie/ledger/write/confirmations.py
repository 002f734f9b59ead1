"""Callers that wait until everything up to some entry is confirmed."""

from __future__ import annotations

from asyncio import Future
from collections import deque

from bookie.errors import BookieError
from bookie.ledger.connection.calls import settle


class ConfirmationWaiters:
    """The callers of `WriterHandle.flush`, in the order of the entries that they wait for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def add(self, entry_id: int, waiter: Future[None]) -> None:
        """`waiter` waits for an entry that is not below those of the others."""
        self._waiting.append((entry_id, waiter))

    def confirmed(self, last_add_confirmed: int) -> None:
        """Entries up to this one are confirmed."""
        while self._waiting and self._waiting[0][0] <= last_add_confirmed:
            settle([self._waiting.popleft()[1]], None)

    def fail(self, error: BookieError) -> None:
        """The writer has ended; each waiter gets an error of its own."""
        waiting, self._waiting = self._waiting, deque()
        settle((waiter for _, waiter in waiting), None, error)
