"""Journal files that are gone by name: what they held is never denied."""

from __future__ import annotations

import pytest

from bookie.node.engine.engine import Engine
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from tests.unit.node.engine.machine import KIB, Machine, Snapshots, add, fence, stored_ids
from tests.unit.node.engine.test_engine_boot import KillAt, Killed


async def ask(engine: Engine, kind: RequestKind) -> None:
    """Have the journal thread do it."""
    engine._queue.submit(JournalRequest(kind, lambda request: None))
    await engine.force()


async def checkpoint(engine: Engine) -> None:
    """The mark is the end of the file."""
    await engine.checkpoint()


async def mark_idle(engine: Engine) -> None:
    """The last block of the file is an empty one."""
    await ask(engine, RequestKind.MARKER)


async def nothing(engine: Engine) -> None:
    """The last block of the file has records."""


@pytest.mark.parametrize("last", [checkpoint, mark_idle, nothing])
@pytest.mark.parametrize("dies_at", ["", "boot.before_commit"])
async def test_the_newest_journal_that_is_missing_is_noticed(
    machine: Machine, last: object, dies_at: str
) -> None:
    """The file before it was cut at its end, which nothing but the next one's birth does."""
    assert callable(last)
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        await last(engine)
        await ask(engine, RequestKind.ROLL)
        await add(engine, 7, range(5, 9))
        await fence(engine, 8)
        await mark_idle(engine)
        killed = machine.killed("kill")
    assert len(killed.journals()) == 2
    killed.journals()[-1].unlink()
    if dies_at:
        # The new journal of the start that dies stands where the missing one stood.
        killed.failpoints = KillAt(dies_at)
        with pytest.raises(Killed):
            async with killed.engine():
                pass
        assert len(killed.journals()) == 2
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == (0 if dies_at else 1)
        assert engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(5))


async def test_a_roll_that_a_crash_interrupts_is_no_missing_journal(machine: Machine) -> None:
    """The new file has its name before the old one is cut."""
    images: list[Machine] = []

    def passed(name: str) -> None:
        if name in {"journal.before_roll", "journal.after_create", "journal.after_roll"}:
            images.append(machine.killed(name))

    machine.failpoints = Snapshots(passed)
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        await engine.checkpoint()
        await ask(engine, RequestKind.ROLL)
    assert len(images) == 3
    for image in images:
        async with image.engine() as engine:
            assert engine.report.corrupt == ()
            assert not engine.needs_integrity_check
            assert await stored_ids(engine, 7) == list(range(5))
            killed = image.killed("again")
        for after in (image, killed):
            async with after.engine() as engine:
                assert engine.report.corrupt == ()


@pytest.mark.parametrize("position", [0, 1])
async def test_an_older_journal_that_is_missing_is_noticed(machine: Machine, position: int) -> None:
    """By the mark, or by the link of the file behind it."""
    async with machine.engine() as engine:
        for entry_id in range(24):
            await add(engine, 7, [entry_id], size=100 * KIB)
        killed = machine.killed("kill")
    assert len(killed.journals()) > 2
    killed.journals()[position].unlink()
    async with killed.engine() as engine:
        assert engine.report.corrupt
        assert engine.needs_integrity_check


async def test_the_only_journal_that_is_missing_is_noticed(machine: Machine) -> None:
    """Only the mark names it."""
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        killed = machine.killed("kill")
    (journal,) = killed.journals()
    journal.unlink()
    async with killed.engine() as engine:
        number = int(journal.stem)
        assert engine.report.corrupt == (f"the journal file {number} of the mark is missing",)
        assert engine.needs_integrity_check
    async with killed.engine() as engine:
        assert engine.needs_integrity_check


async def test_a_bookie_without_journals_numbers_new_ones_above_its_mark(machine: Machine) -> None:
    """The file of the mark has no row: it held fences only. Every start failed."""
    for life in range(4):
        async with machine.engine() as engine:
            await fence(engine, life)
            await engine.checkpoint()
    for journal in machine.journals():
        journal.unlink()
    for _ in range(2):
        async with machine.engine() as engine:
            assert engine.needs_integrity_check
            await fence(engine, 9)
            await engine.checkpoint()
