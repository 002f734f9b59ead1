"""The rounds of a replicator, one at a time: which ledgers it tries, and how long it rests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.config import RepairSettings
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.metadata.model import Record
from bookie.repair.replicator import IDLE_SECONDS, IDLE_SHARE, Replicator
from bookie.telemetry import Metrics
from tests.conformance.faulty_store import FaultyStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster
from tests.unit.repair.test_auditor_rounds import TurnedClock

SETTINGS = RepairSettings()


class SlowStore(FaultyStore):
    """A listing takes so many seconds of the test's clock."""

    clock: TurnedClock
    seconds = 0.0

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        self.clock.seconds += self.seconds
        async for record in super().scan_children(key, after=after):
            yield record


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 3) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri) as client:
        yield client


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def store(cluster: RealCluster, clock: TurnedClock) -> SlowStore:
    store = SlowStore(cluster.store)
    store.clock = clock
    return store


@pytest.fixture
def marks(cluster: RealCluster) -> UnderreplicationManager:
    """Those of another worker."""
    return UnderreplicationManager(cluster.store, "another")


@pytest.fixture
def replicator(bk: BookKeeper, store: SlowStore, clock: TurnedClock) -> Replicator:
    return Replicator(bk._connected, store, lambda: SETTINGS, Metrics(), clock, "b0")


async def test_a_locked_ledger_that_is_due_keeps_nobody_awake(
    cluster: RealCluster,
    marks: UnderreplicationManager,
    replicator: Replicator,
    clock: TurnedClock,
) -> None:
    await marks.mark(7, ["b1"])
    replicator._wait(7)
    assert await marks.acquire(7)
    clock.seconds += 700
    assert await replicator.round() == 0
    assert replicator._idle_seconds() == IDLE_SECONDS
    await marks.disable()
    clock.seconds += 10
    assert await replicator.round() == 0
    assert replicator._idle_seconds() == IDLE_SECONDS


async def test_a_ledger_that_is_due_soon_ends_the_idle_time(
    marks: UnderreplicationManager, replicator: Replicator
) -> None:
    await marks.mark(7, ["b1"])
    assert await replicator.round() == 1, "there is no such ledger"
    await marks.mark(7, ["b1"])
    replicator._wait(7)
    assert await replicator.round() == 0
    assert replicator._idle_seconds() <= 1


async def test_the_rest_grows_with_the_marks_also_if_some_are_due(
    marks: UnderreplicationManager, replicator: Replicator, store: SlowStore
) -> None:
    await marks.mark(7, ["b1"])
    store.seconds = 1
    assert await replicator.round() == 1
    assert replicator._rest_seconds() >= IDLE_SHARE
