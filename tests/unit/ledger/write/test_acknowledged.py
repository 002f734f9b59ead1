"""Reads of entries that the caller knows to be acknowledged, and tails in batches."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from bookie.api import BookKeeper
from bookie.errors import BadRequestError, NoSuchEntryError, NoSuchLedgerError


async def test_the_lac_is_not_asked(bk: BookKeeper) -> None:
    """The reader knows of no confirmed entry, and reads all the same, also from other bookies."""
    writer = await bk.create_ledger()
    await writer.append_many([b"%d" % at for at in range(50)])
    reader = await bk._connected.open(writer.ledger_id, asks_for_lac=False)
    assert reader.last_add_confirmed == -1
    for first, last in ((0, 49), (7, 7), (49, 49), (3, 2)):
        async with aclosing(reader.read_acknowledged(first, last)) as batches:
            found = [entry async for batch in batches for entry in batch]
        assert [entry.entry_id for entry in found] == list(range(first, last + 1))
        assert [entry.payload for entry in found] == [b"%d" % at for at in range(first, last + 1)]
    assert reader.last_add_confirmed == -1
    with pytest.raises(BadRequestError, match="reversed"):
        await anext(reader.read_acknowledged(3, 1))


async def test_what_was_not_acknowledged(bk: BookKeeper) -> None:
    """The caller was wrong, or a recovery has dropped the entry: it does not exist."""
    writer = await bk.create_ledger()
    await writer.append(b"x")
    reader = await bk._connected.open(writer.ledger_id, asks_for_lac=False)
    for close in (False, True):
        if close:
            await writer.close()
        with pytest.raises(NoSuchEntryError):
            await anext(reader.read_acknowledged(1, 1))
    await bk.delete_ledger(writer.ledger_id)
    with pytest.raises((NoSuchEntryError, NoSuchLedgerError)):
        await anext(reader.read_acknowledged(1, 1))


async def test_a_tail_in_batches(bk: BookKeeper) -> None:
    """It has what a tail has: a lone entry, many, and the end."""
    async with bk.create_ledger() as writer:
        reader = await bk.open_ledger(writer.ledger_id)
        async with aclosing(reader.tail_batches()) as batches:
            await writer.append(b"0")
            assert [entry.payload for entry in await anext(batches)] == [b"0"]
            await writer.append_many([b"1", b"2"])
            seen: list[bytes] = []
            while len(seen) < 2:
                seen += [entry.payload for entry in await anext(batches)]
            await writer.close()
            assert [batch async for batch in batches] == []
    assert seen == [b"1", b"2"]
    assert [entry.entry_id async for entry in reader.tail(1)] == [1, 2]
