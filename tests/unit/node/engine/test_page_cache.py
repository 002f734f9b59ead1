"""Pages of journals, logs and old reads leave the page cache once they are behind a window."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.node.engine.machine import KIB, Machine, add, ids_of, read, stored_ids

WINDOW_BYTES = 256 * KIB
BATCH_BYTES = 100 * KIB


def machine_at(path: Path, window_bytes: int = WINDOW_BYTES) -> Machine:
    machine = Machine(path)
    machine.changes = {"page_cache_bytes": window_bytes}
    return machine


async def until_dropped(machine: Machine, part: str, files: int = 1) -> None:
    """Wait until a thread has dropped pages of so many files."""
    async with asyncio.timeout(60):
        while len(_dropped_of(machine, part)) < files:  # noqa: ASYNC110  (a thread's)
            await asyncio.sleep(0.01)


def _dropped_of(machine: Machine, part: str) -> set[str]:
    calls = list(machine.disk.calls)
    return {call.path for call in calls if call.name == "forget" and part in call.path}


@pytest.mark.parametrize("deferred_sync", [False, True])
async def test_what_the_journal_wrote_long_ago_is_dropped_after_its_sync(
    tmp_path: Path, *, deferred_sync: bool
) -> None:
    """In steps, only durable bytes, and only those before the window."""
    machine = machine_at(tmp_path / "m")
    async with machine.engine() as engine:
        for entry_id in range(30):
            await add(engine, 7, [entry_id], size=BATCH_BYTES, deferred_sync=deferred_sync)
        await engine.force()
        await until_dropped(machine, ".journal")
        durable: dict[str, int] = {}
        written: dict[str, int] = {}
        for call in machine.disk.calls:
            path = call.path.removesuffix(".tmp")
            if call.name == "pwritev" and ".journal" in path:
                written[path] = call.offset + call.size
            elif call.name == "fdatasync":
                durable[path] = written.get(path, 0)
            elif call.name == "forget" and ".journal" in path:
                # The size 0 means the end of a file that takes no more blocks.
                assert call.offset == 0
                assert call.size <= durable[path]
                if not call.size:
                    assert path != machine.journals()[-1].as_posix()
        assert 0 < machine.disk.names_called(".journal").count("forget") < 30
        assert await stored_ids(engine, 7) == list(range(30))


async def test_old_entries_that_were_read_are_dropped_in_large_steps(tmp_path: Path) -> None:
    """The newest reads stay; a file of the journal's window is left alone."""
    machine = machine_at(tmp_path / "m")
    async with machine.engine() as engine:
        for entry_id in range(40):
            await add(engine, 7, [entry_id], size=BATCH_BYTES)
    machine.disk.cold = True
    machine.disk.calls.clear()
    async with machine.engine() as engine:
        for entry_id in range(40):
            assert ids_of(await read(engine, 7, entry_id, entry_id)) == [entry_id]
        await until_dropped(machine, ".journal", files=2)
        forgotten = [call for call in machine.disk.calls if call.name == "forget"]
        assert all(call.size >= 1024 * KIB for call in forgotten)
        newest = machine.journals()[-1].as_posix()
        assert all(call.path != newest for call in forgotten)


async def test_without_a_window_the_kernel_decides(tmp_path: Path) -> None:
    """The setting 0."""
    machine = machine_at(tmp_path / "m", 0)
    machine.disk.cold = True
    async with machine.engine() as engine:
        for entry_id in range(30):
            await add(engine, 7, [entry_id], size=BATCH_BYTES)
        assert await stored_ids(engine, 7) == list(range(30))
        await asyncio.sleep(0.05)
        assert "forget" not in [call.name for call in machine.disk.calls]


async def test_a_failing_drop_changes_nothing(tmp_path: Path) -> None:
    """It is a hint."""
    machine = machine_at(tmp_path / "m")
    fault = machine.disk.fail("forget", ".journal", 5, times=1000)
    async with machine.engine() as engine:
        for entry_id in range(30):
            await add(engine, 7, [entry_id], size=BATCH_BYTES)
        await until_dropped(machine, ".journal")
        assert await stored_ids(engine, 7) == list(range(30))
        assert fault.times < 1000
        assert engine.failure is None
