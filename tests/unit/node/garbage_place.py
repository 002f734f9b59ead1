"""A bookie whose garbage is collected in rounds that a test makes, in time that it moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import FLAT
from bookie.config import GarbageSettings
from bookie.errors import (
    MetadataUnavailableError,
)
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.catalog.deletion_proofs import DAY_MS
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node.garbage import GarbageCollector, GarbageReport
from tests.unit.node.engine.machine import Machine, MachineClock
from tests.unit.node.node_room import Room, add, serving
from tests.unit.node.started_bookie import metadata

OK = Status.OK


class MovedClock(MachineClock):
    """Time that the test moves, and a wall clock that it sets."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.ms = 20_000 * DAY_MS

    def now_ms(self) -> int:
        """The values that the test sets."""
        return self.ms

    def monotonic(self) -> float:
        """The values that the test sets."""
        return self.seconds


class Listing(LedgerManager):
    """Ledgers whose listings and reads go wrong when told to."""

    def __init__(self, store: MetadataStore, clock: MovedClock) -> None:
        super().__init__(store, clock=clock)
        self.store = store
        self.broken_after: int | None = None
        self.hidden: set[int] = set()
        self.read_error: Exception | None = None
        self.listed = 0
        self.while_listing: list[LedgerMetadata] = []
        self.counter_while_listing: int | None = None

    async def list_ids(self, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """The ids, some of them hidden, the store gone after some."""
        self.listed += 1
        for ledger in self.while_listing:
            await self.create(ledger)
        self.while_listing.clear()
        if self.counter_while_listing is not None:
            await self.store.put(keys.id_bucket(0), b"%d" % self.counter_while_listing)
        count = 0
        async for ledger_id in super().list_ids(after):
            if count == self.broken_after:
                raise MetadataUnavailableError("the session ended while listing")
            if ledger_id not in self.hidden:
                yield ledger_id
            count += 1

    async def read(self, ledger_id: int, token: int | None = None) -> Versioned[LedgerMetadata]:
        """The metadata, or the error of the test."""
        if self.read_error is not None:
            raise self.read_error
        return await super().read(ledger_id, token)


@dataclass(slots=True)
class Place:
    """A bookie, its cluster's ledgers, and its collector."""

    room: Room
    ledgers: Listing
    clock: MovedClock
    collector: GarbageCollector
    store: MetadataStore
    instance_id: str

    def restart(self, settings: GarbageSettings | None = None) -> None:
        """Another collector, which knows what the index has noted."""
        self.collector = GarbageCollector(
            self.clock,
            self.room.engine,
            self.ledgers,
            self.instance_id,
            settings or self.collector.settings,
            self.room.machine.metrics,
            bookie_id="b1",
        )

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
        """In the metadata, as clients do: it leaves proof."""
        for ledger_id in ids:
            await self.ledgers.delete(ledger_id)

    async def lose(self, ids: Iterable[int]) -> None:
        """Remove it from the metadata directly, which leaves no proof."""
        for ledger_id in ids:
            await self.store.delete(FLAT.key(ledger_id))

    async def count_ids_to(self, number: int) -> None:
        """The value of the store's counter of ledger ids from now on."""
        await self.store.put(keys.id_bucket(0), b"%d" % number)

    async def stored(self) -> list[int]:
        """The ledgers that the bookie lists."""
        return [row.ledger_id async for rows in self.room.bookie.list_ledgers(-1) for row in rows]


@asynccontextmanager
async def collecting(
    tmp_path: Path, changes: dict[str, object] | None = None
) -> AsyncIterator[Place]:
    """A place whose absent ledgers have a grace of 25 seconds; `changes` are of its storage."""
    settings = GarbageSettings(grace_seconds=25.0)
    machine = Machine(tmp_path / "m")
    machine.changes = changes or {}
    async with open_store(f"memory://{tmp_path.name}") as store, serving(machine) as room:
        instance_id = await initialize_cluster(store)
        clock = MovedClock()
        ledgers = Listing(store, clock)
        collector = GarbageCollector(
            clock, room.engine, ledgers, instance_id, settings, machine.metrics, bookie_id="b1"
        )
        yield Place(room, ledgers, clock, collector, store, instance_id)
