"""``bookie cluster health`` on real bookies: what is missing, in limbo, absent or silent."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import pytest

from bookie.cli.repair import _status
from bookie.cluster.layout import FLAT
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.daemon.cluster_health import HealthCheck, check_cluster
from bookie.errors import CorruptionError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.metadata import LedgerState
from bookie.node.holdings import holdings
from bookie.repair import comparison
from tests.unit.ledger.real_cluster import RealCluster, real_cluster
from tests.unit.node.node_room import add
from tests.unit.node.started_bookie import metadata

OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED
ALL = ("b0", "b1", "b2")


@pytest.fixture(name="cluster")
async def _cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path) as started:
        yield started


async def stored(
    cluster: RealCluster, ledger_id: int, ids: Mapping[int, Iterable[int]], recovery: bool = True
) -> None:
    """Store these ids of a ledger on each of these bookies."""
    for number, entry_ids in ids.items():
        if entry_ids := list(entry_ids):
            done = await add(cluster.bookies[number], ledger_id, entry_ids, recovery=recovery)
            assert done.status is Status.OK


async def health(cluster: RealCluster, *, deep: bool = False) -> dict[str, HealthCheck]:
    """The checks by name."""
    checks = await check_cluster(cluster.store, is_deep=deep, answer_seconds=5.0)
    return {check.name: check for check in checks}


def unhealthy(checks: dict[str, HealthCheck]) -> set[str]:
    """The names of those that are not."""
    return {name for name, check in checks.items() if not check.healthy}


async def test_a_cluster_that_has_all_is_healthy(cluster: RealCluster) -> None:
    """Closed ledgers with and without stripes, empty ones, and one that is written."""
    ledgers = LedgerManager(cluster.store)
    await ledgers.create(metadata(1, CLOSED, ALL, last=29, write_quorum=3))
    await stored(cluster, 1, dict.fromkeys(range(3), range(30)))
    striped = metadata(2, CLOSED, ALL, last=29, write_quorum=2)
    await ledgers.create(striped)
    by_bookie = {n: [i for i in range(30) if (i - n) % 3 in (0, 2)] for n in range(3)}
    await stored(cluster, 2, by_bookie)
    await ledgers.create(metadata(3, CLOSED, ALL, last=-1, write_quorum=3))
    await ledgers.create(metadata(4, OPEN, ALL, write_quorum=3))
    for deep in (False, True):
        checks = await health(cluster, deep=deep)
        assert unhealthy(checks) == set()
        assert checks["ledgers with missing copies"] == HealthCheck(
            "ledgers with missing copies", True, 0, "none"
        )


async def test_missing_copies_are_counted(cluster: RealCluster) -> None:
    """No row, too few entries, and a closed fragment of a ledger that is still written."""
    ledgers = LedgerManager(cluster.store)
    for ledger_id in (1, 2):
        await ledgers.create(metadata(ledger_id, CLOSED, ALL, last=29, write_quorum=3))
    await stored(cluster, 1, {0: range(30), 1: range(30)})
    await stored(cluster, 2, {0: range(30), 1: range(10, 30), 2: range(30)})
    await ledgers.create(metadata(3, OPEN, ("b0",), ("b1",)))
    await stored(cluster, 3, {0: range(99)})
    checks = await health(cluster)
    assert unhealthy(checks) == {"ledgers with missing copies"}
    assert checks["ledgers with missing copies"] == HealthCheck(
        "ledgers with missing copies",
        False,
        3,
        "b0: 1 entries (ledger 3); b1: 10 entries (ledger 2); b2: 30 entries (ledger 1)",
    )


async def test_a_hole_beside_entries_that_need_not_be_there(cluster: RealCluster) -> None:
    """A row counts entries; only a deep comparison sees which ones they are."""
    await LedgerManager(cluster.store).create(metadata(1, CLOSED, ("b0",), last=9))
    await stored(cluster, 1, {0: [*range(5), *range(6, 11)]})
    await cluster.bookies[0]._engine.checkpoint()
    assert unhealthy(await health(cluster)) == set()
    checks = await health(cluster, deep=True)
    assert unhealthy(checks) == {"ledgers with missing copies"}
    assert checks["ledgers with missing copies"].found == "b0: 1 entries (ledger 1)"


async def test_limbo_is_counted_once_a_ledger(cluster: RealCluster) -> None:
    """It counts once on any number of bookies.

    A ledger that the cluster does not list is left out.
    """
    await LedgerManager(cluster.store).create(metadata(1, CLOSED, ALL, last=2, write_quorum=3))
    await stored(cluster, 1, dict.fromkeys(range(3), range(3)))
    for number in (0, 2):
        for ledger_id in (1, 9):
            engine = cluster.bookies[number]._engine
            await engine.set_limbo(await engine.load(ledger_id), in_limbo=True)
    checks = await health(cluster)
    assert unhealthy(checks) == {"ledgers in limbo"}
    assert checks["ledgers in limbo"] == HealthCheck(
        "ledgers in limbo", False, 1, "b0: 1 (ledger 1); b2: 1 (ledger 1)"
    )


async def test_a_ledger_with_damaged_metadata_is_counted_and_hides_no_other(
    cluster: RealCluster,
) -> None:
    await LedgerManager(cluster.store).create(metadata(1, OPEN, ("gone",)))
    await cluster.store.put(FLAT.key(2), b"junk")
    checks = await health(cluster)
    assert unhealthy(checks) == {"ledgers with damaged metadata", "ledgers on absent bookies"}
    assert checks["ledgers with damaged metadata"].found == "ledger 2"


async def test_ledgers_on_absent_bookies_are_counted(cluster: RealCluster) -> None:
    """A bookie that was stopped, and one that the cluster does not even know any more."""
    ledgers = LedgerManager(cluster.store)
    for ledger_id in range(1, 8):
        await ledgers.create(metadata(ledger_id, OPEN, ("b1", "gone"), write_quorum=2))
    await ledgers.create(metadata(8, OPEN, ("b1",)))
    await ledgers.create(metadata(9, OPEN, ("b0",)))
    await cluster.stop(1)
    checks = await health(cluster)
    assert unhealthy(checks) == {"missing bookies", "ledgers on absent bookies"}
    assert checks["missing bookies"].found == "b1"
    assert checks["ledgers on absent bookies"] == HealthCheck(
        "ledgers on absent bookies",
        False,
        8,
        "b1: 8 (ledgers 1, 2, 3, 4, 5, …); gone: 7 (ledgers 1, 2, 3, 4, 5, …)",
    )


async def test_what_a_silent_bookie_stores_is_unknown(cluster: RealCluster) -> None:
    """One takes connections and stays silent; the registration of the other is no address."""
    await LedgerManager(cluster.store).create(metadata(1, CLOSED, ("silent",), last=9))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint("bookie", "127.0.0.1", silent.getsockname()[1], "grpc")
        async with (
            BookieRegistration(cluster.store, Registration("silent", (endpoint,))),
            BookieRegistration(cluster.store, Registration("nowhere", ())),
        ):
            checks = {
                check.name: check
                for check in await check_cluster(cluster.store, is_deep=True, answer_seconds=0.3)
            }
    assert unhealthy(checks) == {
        "bookies that do not answer",
        "ledgers with missing copies",
        "ledgers in limbo",
    }
    assert checks["bookies that do not answer"].count == 2
    assert "nowhere: bookie nowhere names no address for entries" in (
        checks["bookies that do not answer"].found
    )
    missing = checks["ledgers with missing copies"]
    assert (missing.count, missing.found) == (None, "none; unknown on nowhere, silent")


async def test_a_bookie_that_fails_in_the_middle_is_unknown(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing of entries ends with an error: what it lacks is not known."""
    monkeypatch.setattr(comparison, "COPIES_AT_ONCE", 1)
    ledgers = LedgerManager(cluster.store)
    for ledger_id in (1, 2, 3):
        await ledgers.create(metadata(ledger_id, CLOSED, ("b0",), last=9))
    await stored(cluster, 1, {0: range(9)})
    await stored(cluster, 2, {0: range(9)})

    def damaged(*_: object) -> AsyncIterator[object]:
        raise CorruptionError("a page of the index is damaged")

    monkeypatch.setattr(cluster.bookies[0]._engine, "entry_ranges", damaged)
    checks = await health(cluster)
    assert {"bookies that do not answer", "ledgers with missing copies"} <= unhealthy(checks)
    assert checks["ledgers with missing copies"].count is None


async def test_many_ledgers_are_compared_in_step(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a page of rows, ledgers that only some bookies have, and batches of listings."""
    monkeypatch.setattr(comparison, "COPIES_AT_ONCE", 50)
    monkeypatch.setattr("bookie.node.reads.LEDGERS_PER_PAGE", 40)
    chance = random.Random(1)
    ledgers, lost, adds = LedgerManager(cluster.store), dict[int, set[int]](), []
    for ledger_id in range(300):
        ensemble = tuple(chance.sample(ALL, 2))
        await ledgers.create(metadata(ledger_id, CLOSED, ensemble, last=3, write_quorum=2))
        for name in ensemble:
            kept = chance.choice([range(4), range(4), range(4), range(3), range(0)])
            if len(kept) < 4:
                lost.setdefault(ledger_id, set()).add(int(name[1:]))
            adds.append(stored(cluster, ledger_id, {int(name[1:]): kept}))
    async with asyncio.TaskGroup() as tasks:
        for adding in adds:
            tasks.create_task(adding)
    for bookie in cluster.bookies.values():
        await bookie._engine.checkpoint()
    checks = await health(cluster)
    assert unhealthy(checks) == {"ledgers with missing copies"}
    assert checks["ledgers with missing copies"].count == len(lost)


def test_the_entries_of_a_holding_are_those_of_its_stripe() -> None:
    """By arithmetic as by counting, for each slot of striped and plain ensembles."""
    chance = random.Random(2)
    for _ in range(300):
        size = chance.randint(1, 6)
        names = tuple(f"b{i}" for i in range(size))
        found = metadata(
            1,
            CLOSED,
            names,
            names,
            last=chance.randint(-1, 230),
            write_quorum=chance.randint(1, size),
        )
        for name in names:
            for holding in holdings(found, name):
                ids = range(holding.first, holding.last + 1)
                assert holding.entries == sum(map(holding.stripe.contains, ids))


async def test_what_repair_has_to_do(cluster: RealCluster) -> None:
    """Marks, locks and failures count, also if no comparison sees that something is missing."""
    async with UnderreplicationManager(cluster.store, "worker") as marks:
        for ledger_id in (1, 2, 3):
            await marks.mark(ledger_id, ["b0"])
        assert await marks.acquire(2)
        assert await marks.acquire(9, needs_mark=False), "a recovery, or a move"
        assert (await _status(cluster.store))["under_repair"] == 1
        await RepairFailures(cluster.store).add(3, "no-spare", "why")
        checks = await health(cluster)
        assert unhealthy(checks) == {"ledgers that wait for repair", "ledgers whose repair fails"}
        assert checks["ledgers that wait for repair"] == HealthCheck(
            "ledgers that wait for repair", False, 3, "3, 1 of them under repair"
        )
        assert checks["ledgers whose repair fails"] == HealthCheck(
            "ledgers whose repair fails", False, 1, "ledger 3: bookie repair list"
        )
        await marks.disable()
        found = (await health(cluster))["ledgers that wait for repair"].found
        assert found.endswith("repair is disabled: bookie repair enable")
        await marks.mark_replicated(2)
        for ledger_id in (1, 3):
            assert await marks.acquire(ledger_id)
            await marks.mark_replicated(ledger_id)
    await RepairFailures(cluster.store).remove(3)
    assert unhealthy(await health(cluster)) == set()
