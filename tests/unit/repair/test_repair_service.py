"""The repair service on real bookies: a bookie that is lost or leaves costs no copy."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.config import RepairSettings, RpcSettings, Sources
from bookie.env import SystemClock, beside
from bookie.errors import MetadataClosedError
from bookie.ledger.copies.departures import Departures, RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.repair_history import ended_repairs
from bookie.ledger.ledger_client import open_ledger_client
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.catalog.logs import LogName
from bookie.log.log_client import LogClient
from bookie.log.write.takeover import WriterOptions
from bookie.log.write.writer import open_writer
from bookie.repair.own_damage import OwnDamage
from bookie.repair.replicator import Replicator
from bookie.repair.service import keep_repairing
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(40)]
SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1)]
SETTINGS = RepairSettings(lost_bookie_delay_seconds=0.2, retry_seconds_max=1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 5) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri, replace_after_seconds=0.2) as client:
        yield client


@asynccontextmanager
async def repairing(
    cluster: RealCluster,
    settings: RepairSettings = SETTINGS,
    own_damage: OwnDamage | None = None,
) -> AsyncIterator[Metrics]:
    """The service of one process, for the block."""
    metrics = Metrics()
    service = keep_repairing(
        cluster.store,
        Sources.read(None, {}),
        RpcSettings(),
        lambda: settings,
        metrics,
        SystemClock(),
        "worker",
        own_damage,
    )
    async with beside([service]):
        yield metrics


async def _write(bk: BookKeeper, shape: tuple[int, int, int]) -> LedgerMetadata:
    ensemble, write, ack = shape
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
    )
    await writer.append_many(PAYLOADS)
    return await writer.close()


async def _names(bk: BookKeeper, ledgers: list[LedgerMetadata]) -> set[str]:
    found = [await bk.ledger_metadata(one.ledger_id) for one in ledgers]
    return {name for one in found for fragment in one.fragments for name in fragment.bookies}


async def _verdicts(bk: BookKeeper) -> set[str]:
    """The verdicts about all copies, each read from its bookie alone."""
    maintenance = bk.maintenance()
    items = await maintenance.plan(1 << 20, lambda _: True, lambda _: None)
    return {one.verdict for one in await maintenance.audit(items)}


async def _no_marks(cluster: RealCluster) -> bool:
    marks = UnderreplicationManager(cluster.store)
    return not [mark async for mark in marks.marked()] and not await marks.locked()


async def _until_gone(bk: BookKeeper, ledgers: list[LedgerMetadata], bookie_id: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if bookie_id not in await _names(bk, ledgers):
                return
            await asyncio.sleep(0.05)


async def _until_no_marks(cluster: RealCluster) -> None:
    async with asyncio.timeout(60):
        while True:
            if await _no_marks(cluster):
                return
            await asyncio.sleep(0.05)


async def until_verdicts(bk: BookKeeper, wanted: set[str]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await _verdicts(bk) == wanted:
                return
            await asyncio.sleep(0.2)


async def test_the_copies_of_a_lost_bookie_come_back(cluster: RealCluster, bk: BookKeeper) -> None:
    ledgers = [await _write(bk, shape) for shape in SHAPES * 3]
    assert "b1" in await _names(bk, ledgers)
    async with repairing(cluster) as metrics:
        await cluster.stop(1)
        await _until_gone(bk, ledgers, "b1")
        await _until_no_marks(cluster)
        assert await _verdicts(bk) == {"ok"}
        assert metrics.repair_copied_entries_total._value.get() > 0
        assert await Departures(cluster.store, keys.LOST_BOOKIES).names() == {"b1"}
        await cluster.start(1)
        async with asyncio.timeout(60):
            while await Departures(cluster.store, keys.LOST_BOOKIES).names():  # noqa: ASYNC110  (a record tells nobody)
                await asyncio.sleep(0.05)
    for one in ledgers:
        reader = await bk.open_ledger(one.ledger_id)
        assert [entry.payload async for entry in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


async def test_ended_repairs_are_told(cluster: RealCluster, bk: BookKeeper) -> None:
    """Also those that failed. The auditor removes records of workers that are gone for good."""
    fine, wide = await _write(bk, (3, 3, 2)), await _write(bk, (5, 5, 3))
    stranger = f"{keys.REPAIR_HISTORY}/host:1"
    await cluster.store.put(stranger, b"of nobody")
    victim, *_ = fine.last_fragment.bookies
    async with repairing(cluster):
        await cluster.stop(int(victim[1:]))
        await _until_gone(bk, [fine], victim)
        async with asyncio.timeout(60):
            while True:
                found, damaged = await ended_repairs(cluster.store)
                told = {(one.ledger_id, one.outcome): one for _, one in found}
                wanted = {(fine.ledger_id, "repaired"), (wide.ledger_id, "no-spare")}
                if wanted <= told.keys() and not damaged:
                    break
                await asyncio.sleep(0.05)
    assert told[fine.ledger_id, "repaired"].entries == len(PAYLOADS)
    assert "no writable bookie may take" in told[wide.ledger_id, "no-spare"].detail
    assert {worker for worker, _ in found} == {"worker"}


async def test_a_leaving_bookie_serves_as_a_source(cluster: RealCluster, bk: BookKeeper) -> None:
    """Also the only copy of a ledger moves away from it."""
    ledgers = [await _write(bk, (1, 1, 1)) for _ in range(10)] + [await _write(bk, (3, 3, 2))]
    (victim, *_) = sorted(await _names(bk, ledgers))
    async with repairing(cluster):
        await Departures(cluster.store, keys.LEAVING_BOOKIES).add(victim)
        await _until_gone(bk, ledgers, victim)
        await _until_no_marks(cluster)
    assert await _verdicts(bk) == {"ok"}


async def test_without_a_spare_the_reason_is_recorded(cluster: RealCluster, bk: BookKeeper) -> None:
    """And when one comes, the ledger is repaired."""
    wide = await _write(bk, (5, 5, 3))
    async with repairing(cluster):
        await cluster.stop(1)
        failures = RepairFailures(cluster.store)
        async with asyncio.timeout(60):
            while (failure := await failures.find(wide.ledger_id)) is None:  # noqa: ASYNC110  (a record tells nobody)
                await asyncio.sleep(0.05)
        assert failure.outcome == "no-spare"
        assert "no writable bookie may take the place of b1" in failure.reason
        await cluster.start(5)
        await _until_gone(bk, [wide], "b1")
        await _until_no_marks(cluster)
        assert await failures.find(wide.ledger_id) is None
    assert await _verdicts(bk) == {"ok"}


async def test_a_wiped_bookie_gets_its_copies_back(cluster: RealCluster, bk: BookKeeper) -> None:
    """It leaves limbo when it is whole."""
    ledgers = [await _write(bk, shape) for shape in SHAPES * 2]
    assert "b2" in await _names(bk, ledgers)
    await cluster.stop(2)
    shutil.rmtree(cluster.directory_of(2))
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read("b2")
    assert cookie is not None
    await cookies.delete("b2", cookie.version)
    await cluster.start(2)
    assert await _verdicts(bk) == {"ok", "missing"}
    assert cluster.nodes[2].engine.ledgers_in_limbo > 0
    async with repairing(cluster):
        await until_verdicts(bk, {"ok"})
        await _until_no_marks(cluster)
    assert "b2" in await _names(bk, ledgers), "what it lacked came back to it"
    report = await cluster.nodes[2].check.check()
    assert report.whole
    assert cluster.nodes[2].engine.ledgers_in_limbo == 0


async def test_entries_that_cannot_be_read_come_back(cluster: RealCluster, bk: BookKeeper) -> None:
    """The bookie finds them itself, and asks for them by a mark."""
    metadata = await _write(bk, (3, 3, 2))
    victim = int(metadata.last_fragment.bookies[0][1:])
    await cluster.stop(victim)
    for path in sorted(cluster.directory_of(victim).rglob("*.journal")):
        data = bytearray(path.read_bytes())
        at = data.find(PAYLOADS[20])
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
    await cluster.start(victim)
    node = cluster.nodes[victim]
    damage = OwnDamage(cluster.store, f"b{victim}")
    node.check.on_incomplete = damage.note
    async with repairing(cluster, own_damage=damage):
        await until(lambda: bool(node.engine.damage))  # the scrubber reads what was not checked
        await node.check.check()
        await until_verdicts(bk, {"ok"})
        await _until_no_marks(cluster)
        report = await node.check.check()
    assert (report.missing_entries, report.unreadable_entries) == (0, 0)


async def test_a_log_whose_owner_is_gone_can_be_read_to_its_end(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """Its last ledger is closed by itself. The next owner goes on behind the last record."""
    settings = SETTINGS.model_copy(update={"open_ledger_grace_seconds": 0.5})
    records = [b"record %d" % number for number in range(20)]
    # A kill: the session ends, and nothing else happens.
    async with FaultyMemoryStore(cluster.uri.removeprefix("memory://")) as store:
        await bk.create_log("orders")
        sources, name = Sources.read(None, {}), LogName.parse("orders")
        async with open_ledger_client(store, sources, RpcSettings()) as ledgers:
            owner = LogClient(ledgers, store)
            log = await open_writer(
                owner, name, partition=None, options=WriterOptions(), create=False
            )
            for record in records:
                await log.append(record)
            (last,) = [one async for one in bk.list_ledgers()]
            store.disconnect()
            store.expire_session()
            async with repairing(cluster, settings) as metrics, asyncio.timeout(60):
                while not (await bk.ledger_metadata(last)).is_closed:  # noqa: ASYNC110  (metadata tells nobody)
                    await asyncio.sleep(0.05)
                recovered = metrics.repair_outcomes_total.labels("recovered")
                await until(lambda: recovered._value.get() == 1)
            found = [one.value async for one in bk.read_log("orders")]
            assert found == records
            async with bk.open_log("orders") as following:
                await following.append(b"of the next owner")
            found = [one.value async for one in bk.read_log("orders")]
            assert found == [*records, b"of the next owner"]


async def test_all_marks_get_their_turn(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a look takes only some of them, and the first ones cannot be repaired."""
    monkeypatch.setattr("bookie.repair.replicator.LEDGERS_OF_A_ROUND", 3)
    marks = UnderreplicationManager(cluster.store)
    alone = [await _write(bk, (1, 1, 1)) for _ in range(10)]
    stopped = alone[0].last_fragment.bookies[0]
    await cluster.stop(int(stopped[1:]))
    fine = [await _write(bk, (3, 3, 2)) for _ in range(10)]
    for one in [*alone, *fine]:
        await marks.mark(one.ledger_id, one.last_fragment.bookies)
    assert await marks.count() == 20
    lost = {one.ledger_id for one in alone if stopped in one.last_fragment.bookies}
    async with repairing(cluster, RepairSettings(lost_bookie_delay_seconds=1e6)):
        async with asyncio.timeout(60):
            while {one.ledger_id async for one in marks.marked()} != lost:  # noqa: ASYNC110  (a record tells nobody)
                await asyncio.sleep(0.05)
        failures = {one.ledger_id: one async for one in RepairFailures(cluster.store).all()}
        assert failures.keys() == lost
        assert {one.outcome for one in failures.values()} == {"away"}
        await cluster.start(int(stopped[1:]))
        await _until_no_marks(cluster)


async def test_an_error_ends_an_attempt_and_not_the_service(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = [await _write(bk, (3, 3, 2)) for _ in range(5)]
    due = Replicator._due
    calls = 0

    async def failing(self: Replicator) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a fault in here")
        if calls == 2:
            raise MetadataClosedError("the store was closed")
        return await due(self)

    monkeypatch.setattr(Replicator, "_due", failing)
    (victim, *_) = sorted(await _names(bk, ledgers))
    async with repairing(cluster) as metrics:
        await cluster.stop(int(victim[1:]))
        await _until_gone(bk, ledgers, victim)
        await _until_no_marks(cluster)
        assert metrics.errors_total.labels("unexpected")._value.get() == 1
    assert await _verdicts(bk) == {"ok"}
