"""The count of ledgers in limbo while they are listed and change at the same time."""

from __future__ import annotations

import random

import pytest

from bookie.errors import CorruptionError
from bookie.ids import MAX_ID
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.ledger_state import LimboCount, StoredLedger

LEDGERS = 40


class Rows:
    """The ledgers of a bookie, in pages; others change them while a page is under way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limbo = {i: self.random.random() < 0.5 for i in range(LEDGERS)}
        self.count = LimboCount()

    def change(self) -> None:
        """Some ledgers enter limbo, leave it, are new or are deleted."""
        for ledger_id in self.random.sample(range(LEDGERS + 5), 5):
            before = self.limbo.get(ledger_id, False)
            now = self.random.random() < 0.5
            if self.random.random() < 0.2:
                now = False
                self.limbo.pop(ledger_id, None)
            else:
                self.limbo[ledger_id] = now
            self.count.changed(ledger_id, before=before, now=now)

    async def list(self, after: int, _count_max: int) -> tuple[list[StoredLedger], int]:
        """A page of a few rows as they were before or after a change, as it happens."""
        seen = dict(self.limbo)
        self.change()
        seen = dict(self.limbo) if self.random.random() < 0.5 else seen
        ids = sorted(ledger_id for ledger_id in seen if ledger_id > after)[:7]
        limit = ids[-1] if len(ids) == 7 else MAX_ID
        rows = [StoredLedger(i, LedgerIndexRow(limbo=seen[i])) for i in ids]
        self.change()
        return rows, limit

    @property
    def in_limbo(self) -> int:
        """The right count."""
        return sum(self.limbo.values())


@pytest.mark.parametrize("seed", range(50))
async def test_changes_during_the_listing_are_counted_once(seed: int) -> None:
    """Before the listing, ahead of it, within a page that is under way, and behind it."""
    rows = Rows(seed)
    rows.change()
    await rows.count.count(rows.list)
    assert rows.count.ledgers == rows.in_limbo
    rows.change()
    assert rows.count.ledgers == rows.in_limbo


async def test_a_damaged_row_leaves_what_was_counted() -> None:
    """Changes are counted on, as far as the listing came."""
    count = LimboCount()

    async def damaged(after: int, _count_max: int) -> tuple[list[StoredLedger], int]:
        if after >= 0:
            raise CorruptionError("a row is damaged")
        return [StoredLedger(1, LedgerIndexRow(limbo=True))], 1

    with pytest.raises(CorruptionError):
        await count.count(damaged)
    assert count.ledgers == 1
    count.changed(1, before=True, now=False)
    assert count.ledgers == 0
