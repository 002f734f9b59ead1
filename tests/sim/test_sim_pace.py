"""Scrubbing, compaction and garbage collection in virtual time: as fast as they may be, and when.

Disks and threads of the simulated machine take no time, so whatever passes is what was waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import FLAT
from bookie.config import GarbageSettings, NodeSettings
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.engine.engine import Engine
from bookie.node.start import StartedBookie, start_bookie
from bookie.testing.simulation.machine import (
    BOOKIE_ID,
    JOURNAL,
    KIB,
    LEDGERS,
    MIB,
    SimulatedMachine,
)
from tests.unit.node.engine.machine import add, stored_ids
from tests.unit.node.started_bookie import metadata

ENTRY_BYTES = 16 * KIB
ENTRIES_PER_MIB = MIB // ENTRY_BYTES
HOUR = 3600.0

CHANGES: dict[str, object] = {
    "journal_file_bytes_max": MIB,
    "block_bytes_max": 256 * KIB,
    "scrub_bytes_per_second": MIB,
    "compaction_bytes_per_second": MIB,
    "compaction_interval_seconds": HOUR,
}
STEP_BYTES_MAX = 1280 * KIB
"""More than any of them reads or writes before it looks at the clock."""


def in_virtual_time(
    life: Callable[[SimulatedMachine], Coroutine[Any, Any, None]], **changes: object
) -> None:
    """One life of a machine."""
    machine = SimulatedMachine(changes=CHANGES | changes)
    try:
        machine.loop.run(life(machine))
    finally:
        machine.loop.close()


async def fill(engine: Engine, mib: int, ledgers: tuple[int, ...] = (1,)) -> None:
    """So many MiB in whole files below the mark, some of each ledger everywhere."""
    for entry_id in range(mib * ENTRIES_PER_MIB // len(ledgers)):
        for ledger_id in ledgers:
            assert (await add(engine, ledger_id, [entry_id], size=ENTRY_BYTES)).status is Status.OK
    await engine.roll()
    await engine.checkpoint()


async def seconds_of(work: Coroutine[Any, Any, object], done: Callable[[], float]) -> float:
    """How long `work` takes, which is never ahead of its rate of a MiB a second.

    `done` tells how many bytes it has read and written since it began.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        while not task.done():
            assert done() <= (loop.time() - began) * MIB + STEP_BYTES_MAX
            await asyncio.wait([task], timeout=0.1)
    return loop.time() - began


def test_a_pass_of_the_scrubber_keeps_to_its_rate() -> None:
    """8 MiB at a MiB a second take eight seconds, and are never read in one go."""

    async def life(machine: SimulatedMachine) -> None:
        async with machine.engine() as engine:
            await fill(engine, 8)
            scrubber = engine.scrubber
            seconds = await seconds_of(scrubber.scrub(), lambda: scrubber.report.bytes)
            assert scrubber.findings == {}
            assert scrubber.report.bytes >= 8 * MIB
            assert 7.5 <= seconds <= 9

    in_virtual_time(life)


def test_another_rate_counts_from_the_step_that_is_under_way() -> None:
    """Half of the pass at a MiB a second, the other half at four."""

    async def life(machine: SimulatedMachine) -> None:
        async with machine.engine() as engine:
            await fill(engine, 8)
            began = machine.loop.time()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(engine.scrubber.scrub())
                await asyncio.sleep(4)
                assert 3 * MIB <= engine.scrubber.report.bytes <= 4 * MIB + STEP_BYTES_MAX
                faster = {"scrub_bytes_per_second": 4 * MIB}
                engine.scrubber.settings = engine.scrubber.settings.model_copy(update=faster)
            assert 4.5 <= machine.loop.time() - began <= 5.5

    in_virtual_time(life)


def test_a_compaction_keeps_to_its_rate() -> None:
    """6 MiB are read, and the third of them that is alive is written: eight seconds."""

    async def life(machine: SimulatedMachine) -> None:
        async with machine.engine() as engine:
            await fill(engine, 6, ledgers=(1, 2, 3))
            for ledger_id in (2, 3):
                state = await engine.load(ledger_id)
                await engine.delete(state, machine.clock.now_ms())
            before = disk_bytes(machine)
            moved = machine.metrics.compaction_bytes_total._value.get
            moved_before = moved()
            work = engine.compactor.round()
            seconds = await seconds_of(work, lambda: moved() - moved_before)
            assert 2 * MIB <= moved() - moved_before <= 2.1 * MIB
            assert before - disk_bytes(machine) >= 3.5 * MIB
            assert 7.5 <= seconds <= 9
            assert await stored_ids(engine, 1) == list(range(2 * ENTRIES_PER_MIB))

    in_virtual_time(life)


# ---- a whole bookie ---------------------------------------------------------------------------


@dataclass(slots=True)
class Reclaiming:
    """A bookie and the ledgers of its cluster."""

    machine: SimulatedMachine
    bookie: StartedBookie
    ledgers: LedgerManager

    store: MetadataStore

    async def delete(self, *ledger_ids: int) -> None:
        """Delete ledgers in the metadata, which leaves proof."""
        for ledger_id in ledger_ids:
            await self.ledgers.delete(ledger_id)

    async def lose(self, *ledger_ids: int) -> None:
        """Take ledgers out of the metadata without a proof."""
        for ledger_id in ledger_ids:
            await self.store.delete(FLAT.key(ledger_id))


@asynccontextmanager
async def whole_bookie(machine: SimulatedMachine, **changes: object) -> AsyncIterator[Reclaiming]:
    """A bookie with 6 MiB of three ledgers side by side; `changes` are of its garbage section."""
    section = {"interval_seconds": 90.0, "grace_seconds": 10.0} | changes
    garbage = GarbageSettings.model_validate(section)
    async with open_store(f"memory://pace-{id(machine)}") as store:
        ledgers = LedgerManager(store)
        async with start_bookie(
            machine.environment,
            machine.settings,
            NodeSettings(),
            machine.metrics,
            cookies=CookieManager(store),
            ledgers=ledgers,
            bookie_id=BOOKIE_ID,
            instance_id=await initialize_cluster(store),
            garbage=garbage,
        ) as bookie:
            for ledger_id in (1, 2, 3):
                await ledgers.create(metadata(ledger_id, LedgerState.OPEN, (BOOKIE_ID,)))
            await fill(bookie.engine, 6, ledgers=(1, 2, 3))
            yield Reclaiming(machine, bookie, ledgers, store)


def disk_bytes(machine: SimulatedMachine) -> int:
    """What journals and logs take."""
    return sum(files_of(machine).values())


def files_of(machine: SimulatedMachine) -> dict[str, int]:
    """Journals and logs, and their sizes."""
    found = {}
    for directory in (JOURNAL, f"{LEDGERS}/logs"):
        for name in machine.disk.names(directory):
            if name.endswith((".journal", ".log")):
                file = machine.disk.open(f"{directory}/{name}")
                found[name] = file.size()
                file.close()
    return found


@pytest.mark.parametrize("asked", [False, True])
def test_a_suspended_bookie_keeps_its_files(asked: bool) -> None:
    """For as long as it likes, whatever is asked of it; resumed, it makes up for it at once."""

    async def life(machine: SimulatedMachine) -> None:
        async with whole_bookie(machine) as place:
            garbage = place.bookie.garbage
            garbage.suspend(suspended=True)
            await place.delete(2, 3)
            before = files_of(machine)
            for _ in range(3):
                if asked:
                    garbage.wake(force=True)
                    garbage.compact()
                await asyncio.sleep(200)
            assert files_of(machine) == before
            assert garbage.status().garbage_deleted_ledgers == 0
            garbage.suspend(suspended=False)
            # One listing, and a compaction of eight seconds.
            await reclaimed(place, within_seconds=20)

    in_virtual_time(life, scrub_bytes_per_second=0, compaction_interval_seconds=20.0)


def test_a_bookie_does_by_itself_what_is_due_and_at_once_what_is_forced() -> None:
    """Absent ledgers go only when forced, and full files are moved only then."""

    async def life(machine: SimulatedMachine) -> None:
        async with whole_bookie(machine, stop_share=0.1) as place:
            garbage = place.bookie.garbage
            await place.lose(2, 3)
            await asyncio.sleep(200)
            assert garbage.stopped, "two thirds of all ledgers are too much"
            assert garbage.status().garbage_deleted_ledgers == 0
            garbage.wake(force=True)
            await asyncio.sleep(20)
            assert garbage.status().garbage_deleted_ledgers == 2
            before = files_of(machine)
            await asyncio.sleep(100)
            assert files_of(machine) == before, "a third is alive, which is more than is moved"
            garbage.compact()
            await reclaimed(place, within_seconds=10)

    shares = {"compaction_live_share_minor": 0.1, "compaction_live_share_major": 0.2}
    in_virtual_time(life, scrub_bytes_per_second=0, compaction_interval_seconds=20.0, **shares)


async def reclaimed(place: Reclaiming, *, within_seconds: float) -> None:
    """Wait until two ledgers of three are gone, and so is their space."""
    machine, engine = place.machine, place.bookie.engine
    # The open journal has its first MiB all the same.
    async with asyncio.timeout(within_seconds):
        while disk_bytes(machine) > 3.2 * MIB:  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.5)
    assert place.bookie.garbage.status().garbage_deleted_ledgers == 2
    assert await stored_ids(engine, 1) == list(range(2 * ENTRIES_PER_MIB))
