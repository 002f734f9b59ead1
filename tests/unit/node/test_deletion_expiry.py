"""Rows of deleted ledgers go once the ledger is gone for good; time alone removes none."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.errors import DiskFullError
from bookie.ids import Status
from bookie.ledger.metadata import LedgerState
from bookie.node.engine.format.index_rows import encode_ledger_row, ledger_key
from tests.unit.node.engine.machine import KIB, evict
from tests.unit.node.engine.machine import add as add_to_engine
from tests.unit.node.garbage_place import Place, collecting
from tests.unit.node.node_room import add, ids_of, read, serving
from tests.unit.node.started_bookie import metadata

OK, FENCED = Status.OK, Status.FENCED
RETENTION_SECONDS = 100.0
DAYS_8_MS = 8 * 86_400_000
IDS = itertools.count(1000, 3)
ROUNDS = 12
"""Ten seconds each: more than the retention."""


@pytest.fixture(name="place")
async def _place(tmp_path: Path) -> AsyncIterator[Place]:
    changes: dict[str, object] = {"deleted_ledger_retention_seconds": RETENTION_SECONDS}
    async with collecting(tmp_path, changes) as place:
        yield place


async def rounds(place: Place, count: int = ROUNDS) -> None:
    for _ in range(count):
        await place.round()


async def go_on(place: Place, ledger_id: int) -> None:
    """Another journal file, whose only entry is of a ledger of its own."""
    engine = place.room.engine
    await add_to_engine(engine, ledger_id, [0])
    await engine.roll()
    await engine.checkpoint()


async def give_files_back(place: Place) -> None:
    """No file of now is left, and the files that came after it are gone as well."""
    engine = place.room.engine
    for ledger_id in range(next(IDS), next(IDS)):
        await go_on(place, ledger_id)
        state = await engine.load(ledger_id)
        await engine.delete(state, 1)
    for _ in range(2):
        await engine.compactor.round(force=True)
        await engine.checkpoint()


def is_known(place: Place) -> bool:
    return place.room.engine._booted.index.rows_of([1]) != [None]


async def deleted(place: Place) -> None:
    """Ledger 1 is deleted, ledgers 2 and 3 stay; a log with these repeats the deletion."""
    await place.create([1, 2, 3])
    await place.round()
    await place.delete([1])
    assert (await place.round()).deleted == 1
    await give_files_back(place)


async def rewrite_the_log(place: Place) -> None:
    """A part of the log dies, and its compaction leaves the old deletion out."""
    await place.delete([3])
    assert (await place.round()).deleted == 1
    for _ in range(2):
        await place.room.engine.compactor.round(force=True)
        await place.room.engine.checkpoint()


async def test_a_row_goes_after_two_periods_of_complete_rounds(place: Place) -> None:
    """The first one may have begun before the deletion."""
    await deleted(place)
    await rounds(place, 8)
    assert is_known(place)
    await rounds(place, 2 * ROUNDS)
    assert is_known(place)
    await rewrite_the_log(place)
    await rounds(place, 2 * ROUNDS)
    assert not is_known(place)
    assert ids_of(await read(place.room.bookie, 2, 0, 0)) == [0]
    evict(place.room.engine)
    killed = place.room.machine.killed("kill")
    async with serving(killed) as after:
        assert (await read(after.bookie, 1, 0, 0)).status is Status.NO_SUCH_LEDGER
        assert ids_of(await read(after.bookie, 2, 0, 0)) == [0]


async def test_a_wall_clock_that_is_ahead_brings_no_ledger_back(place: Place) -> None:
    """It did: eight days ahead the retention was over, and the ledger a new one."""
    await deleted(place)
    place.clock.ms += DAYS_8_MS
    place.room.machine.clock.ahead_ms += DAYS_8_MS
    evict(place.room.engine)
    assert (await add(place.room.bookie, 1, [5])).status is FENCED
    async with serving(place.room.machine.killed("kill")) as after:
        assert (await add(after.bookie, 1, [5])).status is FENCED


async def test_rounds_that_do_not_complete_do_not_count(place: Place) -> None:
    """Neither does the time in which the bookie was down."""
    await deleted(place)
    await place.round()
    place.ledgers.broken_after = 0
    await rounds(place, 5 * ROUNDS)
    place.ledgers.broken_after = None
    place.restart()
    await place.round(after=1_000_000.0)
    await place.round()
    assert is_known(place)


async def test_a_row_stays_while_the_store_lists_the_ledger(place: Place) -> None:
    """Somebody made it again, as an import does."""
    await deleted(place)
    await place.ledgers.create(metadata(1, LedgerState.OPEN, ("b1",)), is_fresh=True)
    await rounds(place, 3 * ROUNDS)
    assert is_known(place)


async def test_a_row_stays_while_a_file_may_hold_entries(place: Place) -> None:
    """A rebuild of the index would meet them, and the record of the deletion may be gone."""
    engine = place.room.engine
    await place.create([1, 2])
    await add_to_engine(engine, 2, range(1, 40), size=10 * KIB)
    await place.round()
    await place.delete([1])
    assert (await place.round()).deleted == 1
    for ledger_id in (30, 31, 32):
        await place.ledgers.create(metadata(ledger_id, LedgerState.OPEN, ("b1",)))
        await go_on(place, ledger_id)
    await rounds(place, 3 * ROUNDS)
    assert is_known(place)
    for entry_id in range(40):
        await add_to_engine(engine, 2, [entry_id], recovery=True, salt=1)
    await give_files_back(place)
    await rounds(place, 3 * ROUNDS)
    assert not is_known(place)


async def test_a_late_add_after_that_is_garbage_again(place: Place) -> None:
    """The writer has not heard for longer than the bookie remembers."""
    await deleted(place)
    await rounds(place, 3 * ROUNDS)
    await rewrite_the_log(place)
    await rounds(place, 2 * ROUNDS)
    assert not is_known(place)
    evict(place.room.engine)
    assert (await add(place.room.bookie, 1, [5])).status is OK
    report = await place.round()
    assert report.missing == 1
    assert (await add(place.room.bookie, 1, [6])).status is FENCED


async def test_rows_of_an_older_version_go_as_well(place: Place) -> None:
    """They name no files; the first look after a period gives them the newest ones."""
    await deleted(place)
    store = place.room.engine._booted.index.store
    (row,) = place.room.engine._booted.index.rows_of([1])
    assert row is not None
    old = type(row)(deleted_at_ms=row.deleted_at_ms, key_digest=row.key_digest)
    with store.write() as txn:
        txn.put("ledgers", ledger_key(1), encode_ledger_row(1, old))
    await rounds(place, 2 * ROUNDS)
    assert is_known(place)
    for _ in range(6):
        await give_files_back(place)
        await rounds(place)
    assert not is_known(place)


async def test_a_full_device_keeps_the_rows_for_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rounds go on."""
    await deleted(place)
    index = place.room.engine._booted.index
    with monkeypatch.context() as patched:

        def full(*_: object) -> int:
            raise DiskFullError("full")

        patched.setattr(index, "forget_deleted", full)
        await rounds(place, 3 * ROUNDS)
        assert is_known(place)
        await place.room.engine.device_has_room()
    await rewrite_the_log(place)
    await rounds(place, 2 * ROUNDS)
    assert not is_known(place)
