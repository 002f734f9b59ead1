"""Removing the entries of a ledger that stays: no crash brings them back, and adds go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.index import reclaimed_entries
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.reclaim.copy_removal import CopyRemoved
from tests.unit.node.engine.machine import KEY, Machine, add, batch, fence, read, stored_ids

OK, FENCED = Status.OK, Status.FENCED


def always() -> bool:
    return True


async def remove(engine: Engine, ledger_id: int = 7) -> CopyRemoved:
    return await engine.remove_copies(ledger_id, KEY, always)


async def live_bytes(engine: Engine) -> int:
    return sum(row.live_bytes for row in engine._booted.index.files().values())


async def test_the_entries_go_and_the_ledger_stays(engine: Engine) -> None:
    size = len(batch(7, range(100)).payload)
    await add(engine, 7, range(100))
    await add(engine, 8, range(10))
    assert await remove(engine) == CopyRemoved(100, size, is_whole=True)
    assert await stored_ids(engine, 7) == []
    assert await stored_ids(engine, 8) == list(range(10))
    state = await engine.load(7)
    assert (state.exists, state.deleted, state.entries) == (True, False, 0)
    assert (state.first_entry_id, state.last_entry_id) == (NO_ENTRY, NO_ENTRY)
    assert await live_bytes(engine) == len(batch(8, range(10)).payload)
    assert await remove(engine) == CopyRemoved(0, 0, is_whole=True)


@pytest.mark.parametrize("how", ["power", "kill"])
async def test_no_crash_brings_them_back(machine: Machine, how: str) -> None:
    async with machine.engine() as engine:
        await add(engine, 7, range(100))
        await add(engine, 8, range(10))
        assert (await remove(engine)).is_whole
        after = machine.without_power("off") if how == "power" else machine.killed("kill")
    async with after.engine() as engine:
        assert await stored_ids(engine, 7) == []
        assert await stored_ids(engine, 8) == list(range(10))
        assert (await engine.load(7)).reclaimed
        await engine.checkpoint()
        assert await live_bytes(engine) == len(batch(8, range(10)).payload)


@pytest.mark.parametrize("when", ["at once", "after a checkpoint", "after a crash"])
async def test_entries_may_come_back(machine: Machine, when: str) -> None:
    """By recovery adds, as a move makes them; only these entries are stored then."""
    async with machine.engine() as engine:
        await add(engine, 7, range(200))
        await remove(engine)
        if when == "after a checkpoint":
            await engine.checkpoint()
        after = machine.without_power("off")
        if when != "after a crash":
            assert (await add(engine, 7, range(50, 60), recovery=True)).status is OK
            assert await stored_ids(engine, 7) == list(range(50, 60))
            await engine.checkpoint()
            assert await stored_ids(engine, 7) == list(range(50, 60))
            assert (await engine.load(7)).entries == 10
            after = machine.without_power("off again")
    async with after.engine() as engine:
        if when == "after a crash":
            assert (await add(engine, 7, range(50, 60), recovery=True)).status is OK
        assert await stored_ids(engine, 7) == list(range(50, 60))
        assert (await read(engine, 7, 50, 59)).batch is not None
        await engine.checkpoint()
        assert await live_bytes(engine) == len(batch(7, range(50, 60)).payload)


async def test_the_fence_stays(machine: Machine) -> None:
    async with machine.engine() as engine:
        await add(engine, 7, range(10))
        await fence(engine, 7)
        await remove(engine)
        assert (await add(engine, 7, [10])).status is FENCED
        after = machine.without_power("off")
    async with after.engine() as engine:
        assert (await add(engine, 7, [10])).status is FENCED
        assert (await add(engine, 7, [10], recovery=True)).status is OK


async def test_entries_of_another_life_of_the_id_stay(engine: Engine) -> None:
    await add(engine, 7, range(10))
    assert await engine.remove_copies(7, b"another", always) == CopyRemoved(0, 0, is_whole=False)
    assert await stored_ids(engine, 7) == list(range(10))


async def test_a_deleted_ledger_is_left(machine: Machine, engine: Engine) -> None:
    await add(engine, 7, range(10))
    await engine.delete(await engine.load(7), machine.clock.now_ms())
    assert not (await remove(engine)).is_whole
    assert (await add(engine, 7, [10], recovery=True)).status is FENCED


async def test_it_ends_when_it_may_not_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is readable, and counted."""
    monkeypatch.setattr(reclaimed_entries, "PAGES_DELETED_MAX", 2)
    await add(engine, 7, range(640))
    answers = [True, True, False]
    removed = await engine.remove_copies(7, KEY, lambda: answers.pop(0))
    assert (removed.entries, removed.is_whole) == (256, False)
    assert await stored_ids(engine, 7) == list(range(256, 640))
    assert (await engine.load(7)).entries == 384
    assert await engine.remove_copies(7, KEY, lambda: False) == CopyRemoved(0, 0, is_whole=False)
    assert (await remove(engine)).entries == 384
    assert await live_bytes(engine) == 0


async def test_a_removal_ends_at_entries_that_the_index_lacks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay would bring them back, and they may be the begin of another move."""
    monkeypatch.setattr(reclaimed_entries, "PAGES_DELETED_MAX", 2)
    await add(engine, 7, range(640))
    await engine.checkpoint()
    added: list[Any] = []

    def add_meanwhile() -> bool:
        if len(added) == 0:
            added.append(asyncio.get_running_loop().create_task(_add_recovered(engine)))
        return True

    assert not (await engine.remove_copies(7, KEY, add_meanwhile)).is_whole
    assert (await engine.load(7)).entries == 512, "the counts of the index"
    await added[0]
    assert {0, 1, 2} <= set(await stored_ids(engine, 7))
    assert (await read(engine, 7, 0, 2)).batch is not None


async def _add_recovered(engine: Engine) -> None:
    assert (await add(engine, 7, [0, 1, 2], recovery=True)).status is OK


async def test_a_removal_without_a_result_leaves_no_counts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction commits all the same; the counts prove that entries are here."""
    await add(engine, 7, range(100))
    await engine.checkpoint()
    reached, go_on = threading.Event(), threading.Event()
    remove_entries = Index.remove_entries

    def slowly(self: Index, ledger_id: int) -> Any:
        reached.set()
        go_on.wait()
        return remove_entries(self, ledger_id)

    monkeypatch.setattr(Index, "remove_entries", slowly)
    state = await engine.load(7)
    removing = asyncio.get_running_loop().create_task(remove(engine))
    await asyncio.to_thread(reached.wait)
    removing.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert await stored_ids(engine, 7) == []
    assert await engine.load(7) is state
    assert (state.entries, state.payload_bytes) == (0, 0)
    await _add_recovered(engine)
    await engine.checkpoint()
    assert state.entries == 3


async def test_a_listing_waits_for_a_removal_under_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mover that lists them has another lock by then, and would name entries that go."""
    await add(engine, 7, range(100))
    await engine.checkpoint()
    reached, go_on = threading.Event(), threading.Event()
    remove_entries = Index.remove_entries

    def slowly(self: Index, ledger_id: int) -> Any:
        reached.set()
        go_on.wait()
        return remove_entries(self, ledger_id)

    monkeypatch.setattr(Index, "remove_entries", slowly)
    loop = asyncio.get_running_loop()
    removing = loop.create_task(remove(engine))
    await asyncio.to_thread(reached.wait)
    state = await engine.load(7)
    listing = engine.entry_ranges(state, 0, MAX_ID)
    first = loop.create_task(anext(listing, None))
    await engine.force()
    assert not first.done()
    go_on.set()
    assert (await removing).is_whole
    assert await first is None
