"""Rows of deleted ledgers stay as long as any file could bring the ledger back in a rebuild."""

from __future__ import annotations

from pathlib import Path

from bookie.node.engine.engine import Engine
from tests.unit.node.engine.machine import KIB, Machine, add


async def _turn_files_over(engine: Engine, *ledger_ids: int) -> None:
    """New journals, whose only ledgers are deleted at once."""
    for ledger_id in ledger_ids:
        await add(engine, ledger_id, [0])
        await engine.roll()
        await engine.checkpoint()
        await engine.delete(await engine.load(ledger_id), 1)
        await engine.checkpoint()
    for _ in range(3):
        await engine.checkpoint()
    await engine._removal.finish()


async def _forget(engine: Engine) -> list[int]:
    """Remove the rows that may go; returns those that were looked at."""
    before = engine.newest_journal
    due, _ = await engine.find_forgettable(-1, 1000, before)
    await engine.forget_deleted(due, before)
    return due


async def test_a_row_goes_once_all_files_of_its_time_are_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "m")
    async with machine.engine() as engine:
        await _turn_files_over(engine, 1, 10, 11, 12)
        assert 1 in await _forget(engine)
        assert not engine._booted.index.rows_of([1])[0]


async def test_a_compaction_that_repeats_a_deletion_holds_the_row(tmp_path: Path) -> None:
    """Else a ledger of the same id, made later, would count as deleted after a rebuild."""
    machine = Machine(tmp_path / "m")
    async with machine.engine() as engine:
        await add(engine, 1, [0])
        await add(engine, 3, [0], size=200 * KIB)
        await add(engine, 2, range(10), size=10 * KIB)
        await engine.delete(await engine.load(1), 1)
        await engine.roll()
        await engine.checkpoint()
        await engine.delete(await engine.load(3), 1)
        await engine.checkpoint()
        assert (await engine.compactor.round(force=True)).files
        await _turn_files_over(engine, 10, 11, 12)
        assert 1 not in await _forget(engine)
        row = engine._booted.index.rows_of([1])[0]
        assert row is not None
        assert row.deleted_at_ms is not None
