"""The number of ledgers in limbo, updated as each of them enters and leaves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.ledger_state import StoredLedger

LEDGERS_PER_PAGE = 1000

ListLedgers = Callable[[int, int], Awaitable[tuple[list[StoredLedger], int]]]
"""(after, count) → up to `count` ledgers with ids above `after`, and the id to continue from."""


class LimboCount:
    """Counts the index once, in the background, and all changes since the start.

    One event loop uses it. Changes beyond the listing's position wait until the listing reaches
    them.
    """

    def __init__(self) -> None:
        self.ledgers = 0
        """Those in limbo, as far as the listing has come. Deleted ones are not counted."""
        self._listed_to = NO_ENTRY
        self._ahead: dict[int, bool] = {}

    def changed(self, ledger_id: int, *, before: bool, now: bool) -> None:
        """A ledger has entered limbo or left it."""
        if ledger_id > self._listed_to:
            self._ahead[ledger_id] = now
        else:
            self.ledgers += now - before

    async def count(self, list_ledgers: ListLedgers) -> None:
        """List all ledgers once; the count is complete when this returns.

        Raises:
            CorruptionError: a row is damaged; the count goes on from what was listed.
        """
        while self._listed_to != MAX_ID:
            page, limit = await list_ledgers(self._listed_to, LEDGERS_PER_PAGE)
            for item in page:
                self.ledgers += self._ahead.pop(item.ledger_id, item.row.limbo)
            passed = [ledger_id for ledger_id in self._ahead if ledger_id <= limit]
            # The page lacks them: they are new, or deleted.
            self.ledgers += sum(self._ahead.pop(ledger_id) for ledger_id in passed)
            self._listed_to = limit
