"""A bookie asks for its own entries: all of them, whatever stands in the way of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.env import beside
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.metadata import json_record
from bookie.metadata.connect import open_store
from bookie.repair.own_damage import OwnDamage

_MARKS = DigitTree(keys.MARKED_LEDGERS, (3, 4, 4, 4, 4))


async def test_a_ledger_that_cannot_be_marked_holds_up_no_other(tmp_path: Path) -> None:
    async with open_store(f"memory://{tmp_path.name}") as store:
        newer = json_record.encode("bookie-underreplicated", 2, {})
        await store.put(_MARKS.key(3), newer)
        damage, marks = OwnDamage(store, "b1"), UnderreplicationManager(store)
        damage.note([3, 5, 4])
        async with (
            store.watch(keys.MARKED_LEDGERS) as changes,
            beside([damage.run()]),
            asyncio.timeout(60),
        ):
            while [one.ledger_id async for one in marks.marked()] != [4, 5]:
                await anext(changes)
        found = await store.get(_MARKS.key(3))
        assert found is not None
        assert found.value == newer
