"""Missing entries counted in ranges are the same as counted one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import Quorum
from bookie.node.engine.format.arrays import Ids
from bookie.node.holdings import Missing, holdings, missing_of

NAMES = tuple("abcdefg")


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    """A closed ledger with up to three fragments."""
    size = draw(st.integers(1, 5))
    write = draw(st.integers(1, size))
    starts = sorted({0, *draw(st.lists(st.integers(1, 40), max_size=2))})
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=size,
        write_quorum_size=write,
        ack_quorum_size=1,
        state=LedgerState.CLOSED,
        fragments=tuple(
            Fragment(start, tuple(draw(st.permutations(NAMES))[:size])) for start in starts
        ),
        last_entry_id=draw(st.integers(-1, 60)),
    )


async def ranges(ids: list[int]) -> AsyncIterator[tuple[Ids, Ids]]:
    """Ascending ids as ranges, two to an item."""
    found: list[tuple[int, int]] = []
    for entry_id in ids:
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    for at in range(0, len(found), 2):
        part = np.array(found[at : at + 2], np.int64)
        yield part[:, 0], part[:, 1]


@given(ledgers(), st.sets(st.integers(0, 70)))
def test_missing_entries_are_counted(metadata: LedgerMetadata, stored: set[int]) -> None:
    """By ensembles and write sets, for every bookie that has a part in the ledger."""
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum_size, 1)
    for name in NAMES:
        wanted = [
            entry_id
            for entry_id in range(metadata.last_entry_id + 1)
            if name
            in [metadata.fragment_of(entry_id).bookies[s] for s in quorum.write_set(entry_id)]
        ]
        missing = [entry_id for entry_id in wanted if entry_id not in stored]

        async def count(name: str = name) -> Missing:
            total = Missing()
            for part in holdings(metadata, name):
                inside = sorted(i for i in stored if part.first <= i <= part.last)
                total = total.plus(await missing_of(part, ranges(inside)))
            return total

        assert asyncio.run(count()) == Missing(len(missing), missing[0] if missing else -1)
