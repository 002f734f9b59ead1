"""New settings of a bookie that runs: each part goes by them at once, in the pause it is in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from bookie.config import GarbageSettings, NodeSettings, StorageSettings
from bookie.config.section import Section
from bookie.errors import BadRequestError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.store import MetadataStore
from bookie.node.disk_watch import DISK_USAGE
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO
from bookie.node.start import StartedBookie
from tests.unit.node.engine.machine import IDENTITY, KIB, Machine
from tests.unit.node.node_room import add
from tests.unit.node.started_bookie import metadata, started

S = TypeVar("S", bound=Section)


@pytest.fixture(name="one")
async def _one(tmp_path: Path, store: MetadataStore) -> AsyncIterator[StartedBookie]:
    """A bookie that is idle for a long time, and does not scrub."""
    machine = Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 0})
    async with started(machine, store) as one:
        yield one


def but(section: S, **changes: object) -> S:
    """The section with some other values."""
    return type(section).model_validate(section.model_dump() | changes)


def apply(
    one: StartedBookie,
    *,
    storage: dict[str, object] | None = None,
    limits: dict[str, object] | None = None,
    garbage: dict[str, object] | None = None,
) -> None:
    """Change some settings and leave the others as they are."""
    one.apply(
        but(one.engine.compactor.settings, **storage or {}),
        but(one.bookie.settings, **limits or {}),
        but(one.garbage.settings, **garbage or {}),
    )


async def soon(condition: Callable[[], object]) -> None:
    """Wait until it holds: long before the pauses that the bookie began with end."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.001)


async def test_every_part_gets_its_section(one: StartedBookie) -> None:
    """A part whose section stays the same is not woken."""
    before = one.bookie.settings
    storage = StorageSettings(compaction_interval_seconds=7)
    garbage = GarbageSettings(stop_share=0.7)
    one.apply(storage, NodeSettings(), garbage)
    assert one.engine.compactor.settings is one.engine.scrubber.settings is storage
    assert one.garbage.settings is garbage
    assert one.bookie.settings is before
    limits = NodeSettings(lac_watches_max=7)
    one.apply(storage, limits, garbage)
    assert one.bookie.settings is one.check.settings is one.watch.settings is limits


async def test_a_scrubber_that_was_off_begins(one: StartedBookie) -> None:
    """Not after the minute that it would wait."""
    await add(one.bookie, 1, range(10))
    apply(one, storage={"scrub_bytes_per_second": 1 << 40})
    await soon(lambda: one.engine.scrubber.report.passes)


async def test_a_scrubber_at_work_goes_faster_or_stops(one: StartedBookie) -> None:
    """A step of a slow one would last for days."""
    for first in range(0, 4000, 1000):
        await add(one.bookie, 1, range(first, first + 1000))
    await one.engine.checkpoint()
    apply(one, storage={"scrub_bytes_per_second": 1})
    await soon(lambda: one.engine.scrubber.report.bytes)
    assert one.engine.scrubber.running
    apply(one, storage={"scrub_bytes_per_second": 0})
    await asyncio.sleep(0)
    assert one.engine.scrubber.report.passes == 0
    apply(one, storage={"scrub_bytes_per_second": 1 << 40})
    await soon(lambda: one.engine.scrubber.report.passes)


async def test_a_slow_scrubber_can_be_asked_for_a_whole_pass(one: StartedBookie) -> None:
    """An operator's request does not wait for the step under way."""
    await add(one.bookie, 1, range(1000))
    await one.engine.checkpoint()
    apply(one, storage={"scrub_bytes_per_second": 1})
    await soon(lambda: one.engine.scrubber.report.bytes)
    one.engine.scrubber.start()
    await soon(lambda: one.engine.scrubber.report.passes == 2)


async def test_another_watermark_is_looked_at(one: StartedBookie) -> None:
    """Both ways, without waiting for the next look."""
    apply(one, limits={"disk_usage_max": 1e-9, "disk_usage_low_watermark": 1e-9})
    await soon(lambda: DISK_USAGE in one.bookie.read_only_reasons())
    apply(one, limits={"disk_usage_max": 1.0, "disk_usage_low_watermark": 1.0})
    await soon(lambda: not one.bookie.read_only)


async def test_ledgers_are_listed_more_often(one: StartedBookie, store: MetadataStore) -> None:
    """One that nobody knows is deleted here as soon as the new settings allow."""
    await store.put("/INSTANCEID", IDENTITY.instance_id.encode())
    await add(one.bookie, 1, [0])
    await soon(lambda: one.garbage.last is None)
    apply(one, garbage={"interval_seconds": 0.001, "grace_seconds": 0.001})
    await soon(lambda: one.garbage.last is not None and one.garbage.last.deleted)


async def test_ledgers_in_limbo_are_checked_more_often(
    one: StartedBookie, store: MetadataStore
) -> None:
    """A recovery that has just closed one is noticed, without an operator."""
    await add(one.bookie, 1, range(5))
    state = await one.engine.load(1)
    await one.engine.set_limbo(state, in_limbo=True)
    await LedgerManager(store).create(metadata(1, LedgerState.CLOSED, ("b1",), last=4))
    await one.engine.integrity.set(INTEGRITY_IN_LIMBO)
    assert one.check.report is None
    apply(one, limits={"integrity_check_interval_seconds": 0.001})
    await soon(lambda: one.check.report is not None and not state.limbo)


async def test_the_number_of_watches_is_bounded_anew(one: StartedBookie) -> None:
    """Those that are there stay."""
    watcher = one.bookie.watch(lambda _state: None)
    watcher.subscribe(1)
    watcher.subscribe(2)
    apply(one, limits={"lac_watches_max": 1})
    with pytest.raises(BadRequestError):
        watcher.subscribe(3)
    apply(one, limits={"lac_watches_max": 3})
    watcher.subscribe(3)
    watcher.close()


async def test_compaction_looks_and_works_at_the_new_rate(one: StartedBookie) -> None:
    """In the hour between two looks, and in the minutes that a slow round would take."""
    size = 512
    for first in range(0, 2048, size):
        await add(one.bookie, 1, range(first, first + size))
        await add(one.bookie, 2, range(first, first + size))
    await one.engine.roll()
    state = await one.engine.load(2)
    await one.engine.delete(state, 1)
    await one.engine.checkpoint()
    slow = {"compaction_bytes_per_second": 64 * KIB, "compaction_interval_seconds": 0.001}
    apply(one, storage={**slow, "compaction_live_share_minor": 1, "compaction_live_share_major": 1})
    await soon(lambda: one.engine.compactor.running)
    apply(one, storage={"compaction_bytes_per_second": 1 << 40})
    await soon(lambda: one.engine.compactor.files)
