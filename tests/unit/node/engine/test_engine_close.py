"""The end of an engine: nothing is closed under a thread that still reads."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from bookie.errors import StorageFailedError
from bookie.node.engine.engine import Engine
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import KIB, Machine, Snapshots, add, stored_ids


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 1 << 40})


async def begin_to_read(engine: Engine, machine: Machine, what: str) -> Hold:
    """Start something that reads the index in a thread, and cancel it in the middle of that."""
    for entry_id in range(40):
        await add(engine, 7, [entry_id], size=40 * KIB)
    await engine.checkpoint()
    work: dict[str, Callable[[], Coroutine[object, object, object]]] = {
        "compaction": lambda: engine.compactor.round(force=True),
        "scrub": engine.scrubber.scrub,
        "listing": lambda: engine.ledgers(-1, 100),
    }
    gate = Hold("read", "")
    async with asyncio.TaskGroup() as tasks:
        machine.store.read_gate = gate
        reading = tasks.create_task(work[what]())
        await asyncio.to_thread(gate.wait_reached)
        machine.store.read_gate = None
        reading.cancel()
    return gate


@pytest.mark.parametrize("what", ["compaction", "scrub", "listing"])
async def test_the_index_is_closed_when_nobody_reads_it(machine: Machine, what: str) -> None:
    """A cancelled read goes on in its thread; the engine waits until it has ended."""
    gates: list[Hold] = []
    loop = asyncio.get_running_loop()

    def passed(name: str) -> None:
        # The last checkpoint: nothing that follows waits long, but for the thread.
        if name == "checkpoint.after_commit" and gates:
            loop.call_later(0.2, gates[0].release)

    machine.failpoints = Snapshots(passed)
    async with machine.engine() as engine:
        gates.append(await begin_to_read(engine, machine, what))
    assert gates[0].opened.is_set()
    assert machine.store.closed_under == 0
    async with machine.engine() as engine:
        assert engine.report.clean
        assert await stored_ids(engine, 7) == list(range(40))


async def test_a_failed_engine_does_not_wait_long(machine: Machine) -> None:
    """A thread may hang in the device; the index stays open, as the process ends."""
    gates: list[Hold] = []
    closed = asyncio.Event()

    async def live() -> None:
        async with machine.engine() as engine:
            close = engine.close

            async def close_and_tell() -> None:
                await close()
                closed.set()
                gates[0].release()

            engine.close = close_and_tell  # type: ignore[method-assign]
            gates.append(await begin_to_read(engine, machine, "scrub"))
            machine.disk.fail("fdatasync", ".journal", errno.EIO)
            await add(engine, 7, [40])
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    assert caught.group_contains(StorageFailedError)
    assert closed.is_set()
    assert machine.store.closed_under == 0


async def test_a_disk_that_fails_at_the_very_end_is_a_failure(machine: Machine) -> None:
    """Giving back what the journal never used is the last thing that is asked of a device."""

    async def live() -> None:
        async with machine.engine() as engine:
            await add(engine, 7, [0])
            machine.disk.fail("truncate", ".journal", errno.EIO)

    with pytest.raises(StorageFailedError, match="Input/output error"):
        await live()
    async with machine.engine() as engine:
        assert await stored_ids(engine, 7) == [0]


async def test_a_failure_in_the_moment_of_the_stop_is_told(machine: Machine) -> None:
    """Else a process that lost what it acknowledged would end as if nothing had been."""

    async def live() -> None:
        async with machine.engine() as engine:
            machine.disk.fail("fdatasync", ".journal", errno.EIO)
            # The stop begins in the turn of the loop in which this is answered.
            await add(engine, 7, [0])
            assert engine.failure is not None

    with pytest.raises(StorageFailedError, match="Input/output error"):
        await live()
