"""Garbage collection: nothing goes unless everything agrees, and then it goes for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.cluster.instance import initialize_cluster
from bookie.cluster.ledgers import LedgerManager
from bookie.config import GarbageSettings
from bookie.errors import FormatError, MetadataUnavailableError, NoSuchLedgerError
from bookie.formats.ledger_metadata import LedgerMetadata, LedgerState, Versioned
from bookie.ids import NO_ENTRY, Status
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.garbage import GarbageCollector, GarbageReport, Outcome
from tests.unit.node.node_room import Room, add, ids_of, read, serving
from tests.unit.node.started_bookie import metadata
from tests.unit.storage.machine import KIB, Machine, MachineClock
from tests.unit.storage.machine import add as add_to_engine

OK, FENCED = Status.OK, Status.FENCED


class MovedClock(MachineClock):
    """Time that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def monotonic(self) -> float:
        """What the test says."""
        return self.seconds


class Listing(LedgerManager):
    """Ledgers whose listings and reads go wrong when told to."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.broken_after: int | None = None
        self.hidden: set[int] = set()
        self.read_error: Exception | None = None
        self.listed = 0
        self.while_listing: list[LedgerMetadata] = []

    async def list_ids(self, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """The ids, some of them hidden, the store gone after some."""
        self.listed += 1
        for ledger in self.while_listing:
            await self.create(ledger)
        self.while_listing.clear()
        count = 0
        async for ledger_id in super().list_ids(after):
            if count == self.broken_after:
                raise MetadataUnavailableError("the session ended while listing")
            if ledger_id not in self.hidden:
                yield ledger_id
            count += 1

    async def read(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The metadata, or the error of the test."""
        if self.read_error is not None:
            raise self.read_error
        return await super().read(ledger_id)


@dataclass(slots=True)
class Place:
    """A bookie, its cluster's ledgers, and its collector."""

    room: Room
    ledgers: Listing
    clock: MovedClock
    collector: GarbageCollector
    store: MetadataStore

    async def round(self, *, force: bool = False, after: float = 10.0) -> GarbageReport:
        """The next round, `after` seconds later."""
        self.clock.seconds += after
        return await self.collector.round(force=force)

    async def create(self, ids: Iterable[int]) -> None:
        """Ledgers with an entry each."""
        for ledger_id in ids:
            await self.ledgers.create(metadata(ledger_id, LedgerState.OPEN, ("b1",)))
            assert (await add(self.room.bookie, ledger_id, [0])).status is OK

    async def delete(self, ids: Iterable[int]) -> None:
        """In the metadata, as clients do."""
        for ledger_id in ids:
            await self.ledgers.delete(ledger_id)

    async def stored(self) -> list[int]:
        """The ledgers that the bookie lists."""
        return [row.ledger_id async for rows in self.room.bookie.list_ledgers(-1) for row in rows]


@pytest.fixture(name="settings")
def _settings() -> GarbageSettings:
    return GarbageSettings(stop_ledgers=5)


@pytest.fixture(name="place")
async def _place(tmp_path: Path, settings: GarbageSettings) -> AsyncIterator[Place]:
    machine = Machine(tmp_path / "m")
    async with open_store(f"memory://{tmp_path.name}") as store, serving(machine) as room:
        instance_id = await initialize_cluster(store)
        ledgers, clock = Listing(store), MovedClock()
        collector = GarbageCollector(
            clock, room.engine, ledgers, instance_id, settings, machine.metrics
        )
        yield Place(room, ledgers, clock, collector, store)


async def test_a_deleted_ledger_goes_after_the_second_listing(place: Place) -> None:
    """Its late writer is refused as if it were fenced; the other ledgers stay."""
    await place.create(range(1, 4))
    assert (await place.round()).missing == 0
    await place.delete([2])
    assert await place.round() == GarbageReport(Outcome.DONE, local=3, missing=1)
    assert (await add(place.room.bookie, 2, [1])).status is OK
    assert await place.round() == GarbageReport(Outcome.DONE, local=3, missing=1, deleted=1)
    assert (await add(place.room.bookie, 2, [2])).status is FENCED
    assert (await read(place.room.bookie, 2, 0, 0)).status is Status.NO_SUCH_LEDGER
    assert await place.stored() == [1, 3]
    assert ids_of(await read(place.room.bookie, 1, 0, 0)) == [0]
    assert await place.round() == GarbageReport(Outcome.DONE, local=2)


async def test_the_only_ledger_may_go(place: Place) -> None:
    """A bookie with one ledger has all of them deleted at once, and that is fine."""
    await place.create([1])
    await place.delete([1])
    await place.round()
    assert (await place.round()).deleted == 1
    listed = place.ledgers.listed
    assert (await place.round()).local == 0
    assert place.ledgers.listed == listed, "without ledgers there is nothing to ask for"


async def test_two_listings_have_to_be_apart(place: Place) -> None:
    """However often somebody asks; time is measured from the first that missed the ledger."""
    await place.create([1])
    await place.delete([1])
    await place.round()
    for _ in range(2):
        assert (await place.round(after=1.0)).deleted == 0
    assert (await place.round(after=1.0)).deleted == 1


async def test_a_ledger_that_is_created_while_listing_is_not_looked_at(place: Place) -> None:
    """What is stored here is listed first."""
    await place.create([1])
    place.ledgers.while_listing.append(metadata(9, LedgerState.OPEN, ("b1",)))
    await place.round()
    await add(place.room.bookie, 9, [0])
    assert (await place.round()).missing == 0


async def test_a_listing_that_breaks_deletes_nothing(place: Place) -> None:
    """And counts for nothing: after it, two good ones are needed."""
    await place.create(range(1, 4))
    await place.delete([1])
    await place.round()
    place.ledgers.broken_after = 1
    report = await place.round()
    assert (report.outcome, report.deleted) == (Outcome.ABORTED, 0)
    assert "session ended" in report.reason
    place.ledgers.broken_after = None
    assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 1
    assert await place.stored() == [2, 3]


@pytest.mark.parametrize(
    "error", [MetadataUnavailableError("no answer"), FormatError("damaged"), NoSuchLedgerError("")]
)
async def test_only_a_direct_no_such_ledger_deletes(place: Place, error: Exception) -> None:
    """No answer and damage are no proof, and spare the other ledgers, too."""
    await place.create(range(1, 4))
    await place.delete([1])
    await place.round()
    place.ledgers.read_error = error
    report = await place.round()
    gone = isinstance(error, NoSuchLedgerError)
    assert report.deleted == (1 if gone else 0)
    assert report.outcome is (Outcome.DONE if gone else Outcome.ABORTED)
    assert await place.stored() == ([2, 3] if gone else [1, 2, 3])


async def test_a_listing_that_leaves_out_a_ledger_does_not_delete_it(place: Place) -> None:
    """The direct read finds it."""
    await place.create(range(1, 4))
    place.ledgers.hidden = {2}
    for _ in range(3):
        report = await place.round()
        assert (report.outcome, report.deleted) == (Outcome.DONE, 0)
    assert await place.stored() == [1, 2, 3]


async def test_a_store_of_another_cluster_deletes_nothing(tmp_path: Path, place: Place) -> None:
    """However empty it looks."""
    await place.create(range(1, 4))
    async with open_store(f"memory://{tmp_path.name}-other") as other:
        await initialize_cluster(other)
        strangers = GarbageCollector(
            place.clock,
            place.room.engine,
            LedgerManager(other),
            place.collector._instance_id,
            GarbageSettings(),
            place.room.machine.metrics,
        )
        place.clock.seconds += 10
        await strangers.round()
        place.clock.seconds += 10
        report = await strangers.round()
        assert report.outcome is Outcome.ABORTED
        assert "another cluster" in report.reason
    assert await place.stored() == [1, 2, 3]


async def test_too_many_at_once_need_an_operator(place: Place) -> None:
    """More than the share and more than the number; a forced round passes."""
    metrics = place.room.machine.metrics
    await place.create(range(1, 21))
    await place.delete(range(1, 7))
    await place.round()
    for _ in range(2):
        report = await place.round()
        assert (report.outcome, report.deleted) == (Outcome.STOPPED, 0)
        assert "6 of 20" in place.collector.stopped
    assert metrics.garbage_stopped._value.get() == 1
    assert len(await place.stored()) == 20
    assert (await place.round(force=True)).deleted == 6
    assert metrics.garbage_stopped._value.get() == 0
    assert place.collector.stopped == ""


async def test_a_large_number_of_very_many_may_go(place: Place) -> None:
    """Either bound alone does not stop anything."""
    await place.create(range(1, 41))
    await place.delete(range(1, 8))
    await place.round()
    assert (await place.round()).deleted == 7
    await place.delete(range(8, 13))
    await place.round()
    assert (await place.round()).deleted == 5


async def test_a_deletion_survives_a_crash_and_gives_the_space_back(place: Place) -> None:
    """The files go with a compaction that the collector asks for."""
    engine, machine = place.room.engine, place.room.machine
    await place.create([1, 2])
    for entry_id in range(1, 60):
        await add_to_engine(engine, 1, [entry_id], size=40 * KIB)
    await engine.checkpoint()
    await place.delete([1])
    await place.round()
    assert (await place.round()).deleted == 1
    killed = machine.killed("kill")
    assert engine.compactor._interval.is_ended
    await engine.compactor.round(force=True)
    size = sum(path.stat().st_size for path in (*machine.journals(), *machine.log_files()))
    assert size < 1.1 * 1024 * KIB
    assert ids_of(await read(place.room.bookie, 2, 0, 0)) == [0]
    async with serving(killed) as after:
        assert (await add(after.bookie, 1, [99])).status is FENCED


async def test_rounds_are_made_by_themselves(place: Place) -> None:
    """Woken here; a suspended collector makes none, a forced one makes its two."""
    await place.create([1])
    await place.delete([1])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(place.collector.run())
        place.collector.suspended = True
        place.collector.wake()
        for _ in range(20):
            await asyncio.sleep(0)
        assert place.collector.last is None
        place.collector.suspended = False
        for _ in range(2):
            place.clock.seconds += 10
            before = place.collector.last
            place.collector.wake(force=True)
            async with asyncio.timeout(20):
                while place.collector.last is before:  # noqa: ASYNC110  (no event to wait for)
                    await asyncio.sleep(0)
        running.cancel()
    assert await place.stored() == []


async def test_a_store_that_is_slow_to_list_is_left_in_peace(place: Place) -> None:
    """The pause is twenty times what the listing took; soon, if something waits for the second."""
    await place.create([1, 2])
    await place.round()
    assert place.collector._pause() == 10.0
    place.collector._listing_seconds = 2.0
    assert place.collector._pause() == 40.0
    await place.delete([1])
    await place.round()
    assert place.collector._pause() == 3.0
