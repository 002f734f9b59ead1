"""The looks and surveys of an auditor, one at a time, by a clock that the test turns."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.config import RepairSettings
from bookie.env import SystemClock
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.repair.auditor import Auditor
from bookie.telemetry import Metrics
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

DELAY_SECONDS = 600.0
SETTINGS = RepairSettings(lost_bookie_delay_seconds=DELAY_SECONDS)


class TurnedClock(SystemClock):
    """Its seconds pass only by a test."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 5) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri) as client:
        yield client


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def auditor(cluster: RealCluster, bk: BookKeeper, clock: TurnedClock) -> Auditor:
    """It leads, and has made its first survey of a ledger on all bookies."""
    writer = await bk.create_ledger(ensemble_size=5, write_quorum_size=5, ack_quorum_size=5)
    await writer.append(b"entry")
    await writer.close()
    client = bk._connected
    auditor = Auditor(client, cluster.store, lambda: SETTINGS, Metrics(), clock, "b0")
    await _round(auditor)
    return auditor


async def _round(auditor: Auditor) -> None:
    await auditor._look()
    await auditor._survey_if_due()


async def _stop(cluster: RealCluster, bk: BookKeeper, number: int) -> None:
    await cluster.stop(number)
    await until(lambda: f"b{number}" not in bk.bookies())


async def _start(cluster: RealCluster, bk: BookKeeper, number: int) -> None:
    await cluster.start(number)
    await until(lambda: f"b{number}" in bk.bookies())


async def _lose(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock, number: int
) -> None:
    """Let a bookie be away until the auditor calls it lost."""
    await _stop(cluster, bk, number)
    await auditor._look()
    clock.seconds += DELAY_SECONDS
    await auditor._look()
    assert await _lost(cluster) == {f"b{number}"}


async def _lost(cluster: RealCluster) -> set[str]:
    return await Departures(cluster.store, keys.LOST_BOOKIES).names()


async def _marked(cluster: RealCluster) -> list[tuple[str, ...]]:
    return [one.replicas async for one in UnderreplicationManager(cluster.store).marked()]


async def _forget(cluster: RealCluster, bookie_id: str) -> None:
    """Delete a cookie, as an operator does."""
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest(bookie_id)
    assert cookie is not None
    await cookies.delete(bookie_id, cookie.version)


async def test_a_lost_bookie_stays_lost_without_its_cookie(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock
) -> None:
    """Until no ledger names it any more."""
    await _lose(cluster, bk, auditor, clock, 1)
    await auditor._survey_if_due()
    await _forget(cluster, "b1")
    await _round(auditor)
    assert await _lost(cluster) == {"b1"}
    await _round(auditor)
    assert await _lost(cluster) == {"b1"}
    for ledger_id in [one async for one in bk.list_ledgers()]:
        await bk.delete_ledger(ledger_id)
    clock.seconds += 4000
    await _round(auditor)
    await _round(auditor)
    assert await _lost(cluster) == set()


async def test_a_bookie_that_was_decommissioned_is_not_lost_again(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock
) -> None:
    await _lose(cluster, bk, auditor, clock, 1)
    await auditor._survey_if_due()
    await _forget(cluster, "b1")
    await Departures(cluster.store, keys.LOST_BOOKIES).remove("b1")
    await auditor._look()
    assert await _lost(cluster) == set()


async def test_a_bookie_that_is_lost_again_is_surveyed_again(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock
) -> None:
    """At once, whatever pauses other surveys make."""
    await _lose(cluster, bk, auditor, clock, 1)
    await auditor._survey_if_due()
    assert await _marked(cluster) == [("b1",)]
    auditor._rest_until = auditor._next_at = clock.seconds + 3600
    await _start(cluster, bk, 1)
    await _round(auditor)
    assert await _lost(cluster) == set()
    marks = UnderreplicationManager(cluster.store)
    (ledger_id,) = [one.ledger_id async for one in marks.marked()]
    assert await marks.acquire(ledger_id)
    assert await marks.mark_replicated(ledger_id)
    await _lose(cluster, bk, auditor, clock, 1)
    await auditor._survey_if_due()
    assert await _marked(cluster) == [("b1",)]


async def test_what_is_missing_during_a_repair_stays_marked(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock
) -> None:
    """The repair may have seen the bookie before it lost its data."""
    (ledger_id,) = [one async for one in bk.list_ledgers()]
    worker = UnderreplicationManager(cluster.store, "b2")
    await worker.mark(ledger_id, ["b1"])
    assert await worker.acquire(ledger_id)
    await _stop(cluster, bk, 1)
    shutil.rmtree(cluster.directory_of(1))
    await _forget(cluster, "b1")
    await _start(cluster, bk, 1)
    clock.seconds += 4000
    await _round(auditor)
    assert not await worker.mark_replicated(ledger_id)
    assert await _marked(cluster) == [("b1",)]
