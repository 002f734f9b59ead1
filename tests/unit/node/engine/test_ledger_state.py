"""States of ledgers in memory: one for each ledger, loaded once, evicted only when clean."""

from __future__ import annotations

import asyncio

import pytest

from bookie.entry.digest import digest_of_key
from bookie.entry.entry import pack_lac
from bookie.errors import ChecksumError
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.ledger_state import LedgerStates, LocalLedger, highest_id
from tests.unit.node.engine.machine import DIGESTER

STATES_MAX = 10


class Rows:
    """An index that counts how often it is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.dirty: set[int] = set()
        self.answer = asyncio.Event()
        self.answer.set()
        self.errors: list[Exception] = []

    async def load(self, ledger_id: int) -> LedgerIndexRow | None:
        """The row of a ledger; odd ones are unknown."""
        self.asked.append(ledger_id)
        await self.answer.wait()
        if self.errors:
            raise self.errors.pop(0)
        return LedgerIndexRow(last_entry_id=ledger_id) if ledger_id % 2 == 0 else None

    def states(self) -> LedgerStates:
        """States on top of these rows."""
        return LedgerStates(self.load, self.dirty.__contains__, STATES_MAX)


async def test_concurrent_loads_share_one_look_up() -> None:
    """And one state."""
    rows = Rows()
    rows.answer.clear()
    states = rows.states()
    async with asyncio.TaskGroup() as tasks:
        loads = [tasks.create_task(states.load(4)) for _ in range(5)]
        await asyncio.sleep(0)
        rows.answer.set()
    assert rows.asked == [4]
    assert len({id(task.result()) for task in loads}) == 1
    assert states.get(4) is loads[0].result()


async def test_a_cancelled_loader_leaves_the_others_waiting_for_nothing() -> None:
    """One of them looks again."""
    rows = Rows()
    rows.answer.clear()
    states = rows.states()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(states.load(4))
        await asyncio.sleep(0)
        second = tasks.create_task(states.load(4))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        rows.answer.set()
    assert second.result().last_entry_id == 4
    assert rows.asked == [4, 4]


async def test_a_damaged_row_is_an_error_for_everybody() -> None:
    """And is asked for again by the next one; an absent state is never made of it."""
    rows = Rows()
    rows.errors = [ChecksumError("damaged"), ChecksumError("damaged")]
    states = rows.states()
    for _ in range(2):
        with pytest.raises(ChecksumError):
            await states.load(4)
    assert states.get(4) is None
    assert (await states.load(4)).last_entry_id == 4


async def test_clean_states_that_nobody_uses_are_evicted() -> None:
    """The least recently used first; dirty ones and those in use stay, however many."""
    rows = Rows()
    states = rows.states()
    kept = [await states.load(ledger_id) for ledger_id in (0, 2)]
    rows.dirty.add(0)
    kept[1].users = 1
    for ledger_id in range(4, 60):
        await states.load(ledger_id)
    assert states.get(0) is kept[0]
    assert states.get(2) is kept[1]
    rows.dirty.clear()
    kept[1].users = 0
    for ledger_id in range(100, 160):
        await states.load(ledger_id)
    assert states.get(0) is None
    assert len(states) <= STATES_MAX + 1
    assert states.get(159) is not None


def test_a_state_keeps_what_its_row_says() -> None:
    """Back and forth."""
    row = LedgerIndexRow(
        fenced=True,
        limbo=True,
        deleted_at_ms=5,
        key_digest=digest_of_key(b"k"),
        lac_packet=pack_lac(7, 3, DIGESTER),
        max_lac=9,
        first_entry_id=1,
        last_entry_id=12,
        entries=4,
        payload_bytes=400,
    )
    state = LocalLedger(7, row)
    assert state.row() == row
    assert (state.exists, state.fence_durable, state.deleted) == (True, True, True)
    unknown = LocalLedger(7, None)
    assert unknown.row() == LedgerIndexRow()
    assert not unknown.exists


@pytest.mark.parametrize("key", [b"", b"k", b"k" * 64])
def test_a_key_is_adopted_once_and_never_kept_in_the_clear(key: bytes) -> None:
    """Only its digest is stored; the empty key is bound like any other."""
    state = LocalLedger(7, None)
    assert state.accepts_key(b"anything")
    state.adopt_key(key)
    state.adopt_key(b"another")
    for _ in range(2):
        assert state.accepts_key(key)
        assert not state.accepts_key(b"another")
    digest = state.row().key_digest
    assert digest is not None
    assert len(digest) == (32 if key else 0)
    again = LocalLedger(7, state.row())
    assert again.accepts_key(key)
    assert not again.accepts_key(key + b"x")


def test_the_bounds_widen_and_the_lac_rises() -> None:
    """In whatever order things come."""
    state = LocalLedger(7, None)
    for first, last in ((5, 9), (2, 3), (7, 7), (20, 30)):
        state.saw_entries(first, last)
    assert (state.first_entry_id, state.last_entry_id) == (2, 30)
    for lac in (NO_ENTRY, 4, 2, 6, 6, 5):
        state.take_lac(pack_lac(7, lac, DIGESTER))
    assert (state.lac_packet, state.max_lac) == (pack_lac(7, 6, DIGESTER), 6)


@pytest.mark.parametrize("ids", [[], [0], [5], [0, 1, 2], [7, 1 << 40, MAX_ID - 1], [MAX_ID]])
def test_the_highest_id_is_found(ids: list[int]) -> None:
    """With at most one question for each bit of an id."""
    asked = []

    def first_above(after: int) -> int | None:
        asked.append(after)
        return next((one for one in ids if one > after), None)

    assert highest_id(first_above) == max(ids, default=NO_ENTRY)
    assert len(asked) <= 65


async def test_a_ledger_above_all_in_the_index_is_not_looked_up() -> None:
    """It is new here; the others are loaded, and so is what memory has let go."""
    rows = Rows()
    states = rows.states()
    states.begin(100)
    new = states.get(101)
    assert new is not None
    assert not new.exists
    assert states.get(100) is None
    assert await states.load(102) is states.get(102)
    assert rows.asked == []
    assert (await states.load(100)).last_entry_id == 100
    assert rows.asked == [100]


async def test_what_was_stored_and_let_go_is_looked_up_again() -> None:
    """A ledger that was only asked for and evicted is still known to be absent from the index."""
    rows = Rows()
    states = rows.states()
    states.begin(100)
    for ledger_id in (102, 1_000_000):
        state = states.get(ledger_id)
        assert state is not None
        state.exists = ledger_id == 102
    for ledger_id in range(200, 201 + 2 * STATES_MAX):
        states.get(ledger_id)
    assert states.get(102) is None
    assert states.get(103) is not None
    assert rows.asked == []
    assert (await states.load(102)).last_entry_id == 102
    assert rows.asked == [102]


async def test_a_forgotten_state_is_looked_up_again_unless_it_is_in_use() -> None:
    """Or the index does not have all of it yet."""
    rows = Rows()
    states = rows.states()
    first = [await states.load(ledger_id) for ledger_id in (2, 4, 6)]
    first[1].users = 1
    rows.dirty.add(6)
    states.forget([2, 4, 6, 8])
    assert await states.load(2) is not first[0]
    assert [await states.load(4), await states.load(6)] == first[1:]
    assert rows.asked == [2, 4, 6, 2]


async def test_a_ledger_that_is_being_looked_up_is_not_new() -> None:
    """Two states of one ledger would each know half of it."""
    rows = Rows()
    rows.answer.clear()
    states = rows.states()
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(states.load(4))
        await asyncio.sleep(0)
        states.begin(3)
        assert states.get(4) is None
        rows.answer.set()
    assert states.get(4) is load.result()
