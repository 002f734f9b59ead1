"""Damage that the scrubber found is over once all entries that lay there stand elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.store import MetadataStore
from bookie.node.start import StartedBookie
from tests.unit.node.engine.machine import Machine
from tests.unit.node.node_room import add, ids_of, read
from tests.unit.node.started_bookie import metadata, stamped, started

OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    """Its scrubber makes a pass only if a test asks for it."""
    return Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 0})


@pytest.fixture(autouse=True, name="joined")
async def _joined(machine: Machine, store: MetadataStore) -> None:
    await stamped(machine, store)


def flip(machine: Machine, what: bytes) -> None:
    (path,) = (one for one in machine.journals() if what in one.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


async def scrub(one: StartedBookie) -> int:
    """A pass over everything; the number of its findings that stand."""
    passes = one.engine.scrubber.report.passes
    one.engine.scrubber.start()
    # The bookie's own pass: another one beside it would go on at the usual rate, which is 0 here.
    async with asyncio.timeout(60):
        while one.engine.scrubber.report.passes == passes:  # noqa: ASYNC110  (a pass tells nobody)
            await asyncio.sleep(0.01)
    return len(one.engine.scrubber.findings)


async def damaged(one: StartedBookie, machine: Machine) -> None:
    """Ten entries in one block, of which one is damaged, and a check that has seen it."""
    await add(one.bookie, 1, range(10))
    await one.engine.checkpoint()
    flip(machine, b"1/4/0:")
    assert await scrub(one) == 1
    report = await one.check.check()
    assert (report.unreadable_entries, report.whole) == (1, False)


def needs_check(machine: Machine) -> float:
    return float(machine.metrics.integrity_check_needed._value.get())


async def test_a_finding_ends_when_its_entries_are_copied_back(
    machine: Machine, store: MetadataStore
) -> None:
    """Its right neighbours in the block are stored anew. Later passes say nothing either."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await damaged(one, machine)
        await add(one.bookie, 1, [4], recovery=True)
        assert (await one.check.check()).whole
        assert one.engine.scrubber.findings == {}
        assert one.engine.scrubber.status()["needed"] is False
        assert needs_check(machine) == 0
        assert ids_of(await read(one.bookie, 1, 0, 9)) == list(range(10))
        assert await scrub(one) == 0
    async with started(machine, store) as again:
        assert await scrub(again) == 0
        assert not again.engine.needs_integrity_check
        assert ids_of(await read(again.bookie, 1, 0, 9)) == list(range(10))


async def test_a_finding_outlives_a_restart_and_ends_all_the_same(
    machine: Machine, store: MetadataStore
) -> None:
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await damaged(one, machine)
        await add(one.bookie, 1, [4], recovery=True)
    async with started(machine, store) as again:
        assert (await again.check.check()).whole
        assert again.engine.scrubber.findings == {}
        assert needs_check(machine) == 0


async def test_an_open_ledger_keeps_the_finding_until_it_is_closed(
    machine: Machine, store: MetadataStore
) -> None:
    """Nobody has verified its last entries, and one of them may be what is damaged."""
    manager = LedgerManager(store)
    created = await manager.create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        await one.engine.checkpoint()
        flip(machine, b"1/4/0:")
        assert await scrub(one) == 1
        report = await one.check.check()
        assert (report.unreadable_entries, report.whole) == (0, False)
        assert len(one.engine.scrubber.findings) == 1
        await manager.write(created.value.closed(9, 400), created.version)
        await add(one.bookie, 1, [4], recovery=True)
        assert (await one.check.check()).whole
        assert one.engine.scrubber.findings == {}


async def test_what_stays_damaged_stays_a_finding(machine: Machine, store: MetadataStore) -> None:
    """However often it is checked; the entries beside it are served from their new place."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await damaged(one, machine)
        for _ in range(2):
            assert not (await one.check.check()).whole
            assert len(one.engine.scrubber.findings) == 1
        assert needs_check(machine) == 1


@pytest.mark.parametrize("others", [("b1",), ("b2",)], ids=["behind-the-end", "of-others-now"])
async def test_what_no_metadata_asks_for_keeps_no_doubt(
    machine: Machine, store: MetadataStore, others: tuple[str, ...]
) -> None:
    """Nobody could bring it back, and the reclaimer keeps what lies behind a ledger's end.

    It remains a finding, and is never denied: a client sees a wrong digest.
    """
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, others, last=3))
    await manager.create(metadata(2, CLOSED, ("b1",), last=3))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        await add(one.bookie, 2, range(4))
        await one.engine.checkpoint()
        flip(machine, b"1/4/0:")
        assert await scrub(one) == 1
        assert needs_check(machine) == 1
        assert (await one.check.check()).whole
        assert len(one.engine.scrubber.findings) == 1
        assert needs_check(machine) == 0
        assert (await read(one.bookie, 1, 4, 4)).status is not Status.NO_SUCH_ENTRY
        assert await scrub(one) == 1
        assert not one.engine.needs_integrity_check
    async with started(machine, store) as again:
        assert not again.engine.needs_integrity_check
        assert (await again.check.check()).whole


async def test_damage_in_what_was_verified_counts(machine: Machine, store: MetadataStore) -> None:
    """An entry may be damaged just after a check has read it."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await damaged(one, machine)
        assert not await one.check._is_spare(one.engine.damage)
        await add(one.bookie, 1, [4], recovery=True)
        assert (await one.check.check()).whole


async def test_damage_that_grows_is_told_again(machine: Machine, store: MetadataStore) -> None:
    """Its beginning is known, and was spare."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b2",), last=9))
    await manager.create(metadata(2, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        for ledger_id in (1, 2):
            await add(one.bookie, ledger_id, range(10))
        await one.engine.checkpoint()
        flip(machine, b"1/4/0:")
        assert await scrub(one) == 1
        assert (await one.check.check()).whole
        flip(machine, b"2/4/0:")
        await scrub(one)
        assert needs_check(machine) == 1
        report = await one.check.check()
        assert (report.unreadable_entries, report.whole) == (1, False)
