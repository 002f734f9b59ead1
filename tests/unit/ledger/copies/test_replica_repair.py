"""Audits and repairs of copies on real bookies: what is damage, and what is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster.cookies import CookieManager
from bookie.ids import MAX_ID
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_audit import REPAIRABLE, ReplicaVerdict
from bookie.ledger.copies.replica_repair import CopyDamage, RepairOutcome, ReplicaRepair
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.metadata.store import MetadataStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(25)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 4) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri, replace_after_seconds=0.2) as client:
        yield client


def impatient(cluster: RealCluster) -> AbstractAsyncContextManager[BookKeeper]:
    """A client whose closes do not wait long for a bookie that is away."""
    return connect(cluster.uri, add_timeout_seconds=1)


async def _write(bk: BookKeeper, ensemble: int = 3, copies: int = 3) -> LedgerMetadata:
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=copies, ack_quorum_size=copies
    )
    await writer.append_many(PAYLOADS)
    return await writer.close()


async def _store(store: MetadataStore, metadata: LedgerMetadata) -> None:
    ledgers = LedgerManager(store)
    await ledgers.write(metadata, (await ledgers.read(metadata.ledger_id)).version)


async def _unstore(cluster: RealCluster, metadata: LedgerMetadata) -> str:
    """Let the metadata name a bookie that never got the ledger, beside those that have it."""
    size = metadata.ensemble_size + 1
    bookies = metadata.last_fragment.bookies
    lacking = next(name for name in ("b0", "b1", "b2", "b3") if name not in bookies)
    fragments = (Fragment(0, (*bookies, lacking)),)
    changed = replace(
        metadata, ensemble_size=size, write_quorum_size=size, fragments=fragments
    )  # fmt: skip
    await _store(cluster.store, changed)
    return lacking


async def _audit(bk: BookKeeper, item_bytes: int = 1 << 20) -> list[ReplicaVerdict]:
    maintenance = bk.maintenance()
    items = await maintenance.plan(item_bytes, lambda _: True, lambda _: None)
    return await maintenance.audit(items)


async def _damage(bk: BookKeeper) -> list[ReplicaVerdict]:
    return [one for one in await _audit(bk) if one.verdict != "ok"]


async def _repair(bk: BookKeeper, verdicts: Sequence[ReplicaVerdict]) -> list[RepairOutcome]:
    outcomes = []
    for one in verdicts:
        assert one.verdict in REPAIRABLE
        damage = CopyDamage(one.bookie_id, one.ranges, one.found_on)
        outcomes += await bk.maintenance().repair(one.ledger_id, [damage])
    return outcomes


async def test_whole_ledgers_are_right_in_any_cut(bk: BookKeeper) -> None:
    await _write(bk)
    await _write(bk, ensemble=4, copies=2)
    async with bk.create_ledger():
        pass
    for item_bytes in (1, 300_000, 1 << 20):
        found = await _audit(bk, item_bytes)
        assert {one.verdict for one in found} == {"ok"}
        assert sum(one.entries for one in found) == 25 * 3 + 25 * 2


async def test_a_copy_that_never_came_is_missing_until_it_is_repaired(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk)
    lacking = await _unstore(cluster, metadata)
    (wrong,) = found = await _damage(bk)
    assert (wrong.verdict, wrong.bookie_id, wrong.ranges) == ("missing", lacking, ((0, 24),))
    (outcome,) = await _repair(bk, found)
    assert (outcome.outcome, outcome.entries) == ("repaired", 25)
    assert await _damage(bk) == []
    assert [one.outcome for one in await _repair(bk, found)] == ["was-fine"]
    marks = UnderreplicationManager(cluster.store)
    assert await marks.find(metadata.ledger_id) is None
    assert await marks.worker_of(metadata.ledger_id) is None


async def test_a_repair_ends_the_failures_of_others(cluster: RealCluster, bk: BookKeeper) -> None:
    metadata = await _write(bk)
    await _unstore(cluster, metadata)
    failures = RepairFailures(cluster.store)
    await failures.add(metadata.ledger_id, "refused", "the bookie was away")
    await _repair(bk, await _damage(bk))
    assert await failures.find(metadata.ledger_id) is None


async def test_a_fragment_on_the_wrong_bookie_is_misplaced(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk)
    *stayed, former = metadata.last_fragment.bookies
    stranger = next(name for name in ("b0", "b1", "b2", "b3") if name not in (*stayed, former))
    fragments = (metadata.fragments[0], Fragment(10, (*stayed, stranger)))
    await _store(cluster.store, replace(metadata, fragments=fragments))
    (wrong,) = found = await _damage(bk)
    assert (wrong.verdict, wrong.bookie_id, wrong.ranges) == ("misplaced", stranger, ((10, 24),))
    assert wrong.found_on == (former,)
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]
    assert await _damage(bk) == []


async def test_entries_that_only_a_stranger_has_come_back_from_it(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk, ensemble=1, copies=1)
    (former,) = metadata.last_fragment.bookies
    other = "b0" if former != "b0" else "b1"
    await _store(cluster.store, replace(metadata, fragments=(Fragment(0, (other,)),)))
    found = await _damage(bk)
    assert [one.found_on for one in found] == [(former,)]
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]
    reader = await bk.open_ledger(metadata.ledger_id)
    assert [entry.payload async for entry in reader.read()] == PAYLOADS


async def test_a_striped_ledger_is_repaired_entry_by_entry(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk, ensemble=3, copies=2)
    bookies = list(metadata.last_fragment.bookies)
    stranger = next(name for name in ("b0", "b1", "b2", "b3") if name not in bookies)
    changed = (bookies[0], stranger, bookies[2])
    await _store(cluster.store, replace(metadata, fragments=(Fragment(0, changed),)))
    found = await _damage(bk)
    assert {one.bookie_id for one in found} == {stranger}
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]
    assert await _damage(bk) == []


async def test_an_ensemble_change_leaves_no_damage(cluster: RealCluster, bk: BookKeeper) -> None:
    writer = await bk.create_ledger(ack_quorum_size=3)
    await writer.append_many(PAYLOADS)
    failing = writer.metadata.last_fragment.bookies[0]
    await cluster.stop(int(failing[1:]))
    await writer.append_many(PAYLOADS)  # all three have to answer, so it waits for the change
    assert len(writer.metadata.fragments) == 2
    await cluster.start(int(failing[1:]))
    await until(lambda: failing in bk.bookies())
    assert await _damage(bk) == []  # while it is open
    await writer.close()
    assert await _damage(bk) == []


async def test_a_skipped_bookie_lacks_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spare is there: entries get two copies, and the audit says so."""
    async with real_cluster(tmp_path / "three") as cluster, impatient(cluster) as bk:
        writer = await bk.create_ledger(ack_quorum_size=2)
        await writer.append_many(PAYLOADS)
        await cluster.stop(1)
        await writer.append(b"while one is away")
        metadata = await writer.close()
        with monkeypatch.context() as soon:
            soon.setattr("bookie.ledger.copies.copy_check.PATIENCE_SECONDS", 0.2)
            silent = await _damage(bk)
        assert [(one.verdict, one.bookie_id) for one in silent] == [("unreachable", "b1")]
        await cluster.start(1)
        await until(lambda: "b1" in bk.bookies())
        found = await _damage(bk)
        assert [(one.verdict, one.bookie_id) for one in found] == [("missing", "b1")]
        assert found[0].ranges[-1][1] == metadata.last_entry_id == 25
        assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]
        assert await _damage(bk) == []


async def test_what_a_bookie_in_limbo_lacks_is_copied_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and does not know what it lacks. No answer would be another verdict."""
    monkeypatch.setattr("bookie.ledger.copies.copy_check.PATIENCE_SECONDS", 0.2)
    async with real_cluster(tmp_path / "limbo") as cluster, impatient(cluster) as bk:
        writer = await bk.create_ledger(ack_quorum_size=2)
        other = await bk.create_ledger(ack_quorum_size=2)
        await writer.append_many(PAYLOADS)
        await until(lambda: not writer._machine.window.retained)  # all three have them
        await cluster.stop(1)
        await writer.append_many(PAYLOADS)
        await other.append_many(PAYLOADS)
        ledger_id = (await writer.close()).ledger_id
        await other.close()
        await cluster.start(1)
        await until(lambda: "b1" in bk.bookies())
        engine = cluster.bookies[1]._engine
        for one in (ledger_id, other.ledger_id):
            await engine.set_limbo(await engine.load(one), in_limbo=True)
        limbo = [row.limbo async for rows in cluster.bookies[1].list_ledgers(-1) for row in rows]
        assert limbo == [True, True]
        listed = [
            (ranges[0].tolist(), ranges[1].tolist())
            async for ranges in cluster.bookies[1].list_entries(ledger_id, 0, MAX_ID)
        ]
        assert listed == [([0], [24])]
        found = sorted(await _damage(bk), key=lambda one: one.ledger_id)
        assert [(one.verdict, one.bookie_id, one.ranges) for one in found] == [
            ("missing", "b1", ((25, 49),)),
            ("missing", "b1", ((0, 24),)),
        ]
        assert all("in limbo" in one.detail for one in found)
        assert [one.outcome for one in await _repair(bk, found)] == ["repaired", "repaired"]
        assert await _damage(bk) == []


async def test_a_bookie_of_another_incarnation_is_given_nothing(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """It lost what it had, and was registered anew: what it is given now may be lost as well."""
    metadata = await _write(bk)
    lacking = await _unstore(cluster, metadata)
    found = await _damage(bk)
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest(lacking)
    assert cookie is not None
    renewed = await cookies.write(replace(cookie.value, incarnation="another"), cookie.version)
    (outcome,) = await _repair(bk, found)
    assert (outcome.outcome, outcome.entries) == ("refused", 0)
    assert "another incarnation" in outcome.detail
    rows = [
        one async for some in cluster.bookies[int(lacking[1:])].list_ledgers(-1) for one in some
    ]
    assert metadata.ledger_id not in {one.ledger_id for one in rows}
    await cookies.write(cookie.value, renewed.version)
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]


async def test_a_deleted_ledger_is_no_damage_and_not_written(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk)
    lacking = await _unstore(cluster, metadata)
    found = await _damage(bk)
    maintenance = bk.maintenance()
    items = await maintenance.plan(1 << 20, lambda _: True, lambda _: None)
    await bk.delete_ledger(metadata.ledger_id)
    assert {one.verdict for one in await maintenance.audit(items)} <= {"ok"}
    assert [one.outcome for one in await _repair(bk, found)] == ["deleted"]
    rows = [
        one async for some in cluster.bookies[int(lacking[1:])].list_ledgers(-1) for one in some
    ]
    assert metadata.ledger_id not in {one.ledger_id for one in rows}
    assert await UnderreplicationManager(cluster.store).find(metadata.ledger_id) is None


async def test_a_ledger_that_a_worker_repairs_is_left_to_it(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk)
    lacking = await _unstore(cluster, metadata)
    found = await _damage(bk)
    async with UnderreplicationManager(cluster.store, "a worker") as worker:
        await worker.mark(metadata.ledger_id, [lacking])
        assert await worker.acquire(metadata.ledger_id)
        assert [one.outcome for one in await _repair(bk, found)] == ["locked"]
        # It is marked again: the worker cannot remove a mark that it did not see.
        assert not await worker.mark_replicated(metadata.ledger_id)
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]


async def test_what_others_marked_stays_marked(cluster: RealCluster, bk: BookKeeper) -> None:
    metadata = await _write(bk)
    await _unstore(cluster, metadata)
    found = await _damage(bk)
    marks = UnderreplicationManager(cluster.store)
    await marks.mark(metadata.ledger_id, ["b9"])
    assert [one.outcome for one in await _repair(bk, found)] == ["repaired"]
    mark = await marks.find(metadata.ledger_id)
    assert mark is not None
    assert "b9" in mark.replicas


async def test_what_others_mark_before_the_lock_stays_marked(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    other = metadata.last_fragment.bookies[0]
    lacking = await _unstore(cluster, metadata)
    repair = ReplicaRepair(bk._connected, cluster.store, "worker")
    marks = UnderreplicationManager(cluster.store)
    acquire = repair._marks.acquire

    async def mark_and_acquire(ledger_id: int) -> bool:
        await marks.mark(ledger_id, [other])
        return await acquire(ledger_id)

    monkeypatch.setattr(repair._marks, "acquire", mark_and_acquire)
    (outcome,) = await repair.run(metadata.ledger_id, [CopyDamage(lacking, ((0, 24),))])
    assert outcome.outcome == "repaired"
    mark = await marks.find(metadata.ledger_id)
    assert mark is not None
    assert other in mark.replicas
    assert await marks.worker_of(metadata.ledger_id) is None


async def test_two_repairs_at_once_do_no_harm(cluster: RealCluster, bk: BookKeeper) -> None:
    metadata = await _write(bk)
    lacking = await _unstore(cluster, metadata)
    damage = [CopyDamage(lacking, ((0, 24),))]
    async with connect(cluster.uri) as other, asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(one.maintenance().repair(metadata.ledger_id, damage))
            for one in (bk, other)
        ]
    outcomes = {run.result()[0].outcome for run in runs}
    assert "repaired" in outcomes
    assert outcomes <= {"repaired", "was-fine", "locked"}
    assert await _damage(bk) == []


async def test_without_a_good_copy_nothing_is_written(cluster: RealCluster, bk: BookKeeper) -> None:
    metadata = await _write(bk, ensemble=1, copies=1)
    longer = metadata.closed(metadata.last_entry_id + 2, metadata.length)
    await _store(cluster.store, longer)
    found = [one for one in await _damage(bk) if one.verdict == "missing"]
    assert [one.ranges for one in found] == [((25, 26),)]
    (outcome,) = await _repair(bk, found)
    assert outcome.outcome == "no-good-copy"
    assert "no good copy of entry 25" in outcome.detail
    assert not outcome.is_whole


async def test_a_wrong_length_is_found_even_of_an_empty_ledger(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    metadata = await _write(bk)
    await _store(cluster.store, replace(metadata, length=metadata.length - 1))
    async with bk.create_ledger() as writer:
        pass
    await _store(cluster.store, replace(writer.metadata, length=5))
    found = await _damage(bk)
    assert {(one.ledger_id, one.verdict) for one in found} == {
        (metadata.ledger_id, "wrong-length"),
        (writer.ledger_id, "wrong-length"),
    }


async def test_damage_that_was_planned_away_is_dropped(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The metadata changed after the plan: the bookie that lacks entries owes them no longer."""
    metadata = await _write(bk)
    await _unstore(cluster, metadata)
    maintenance = bk.maintenance()
    items = await maintenance.plan(1 << 20, lambda _: True, lambda _: None)
    await _store(cluster.store, metadata)
    assert {one.verdict for one in await maintenance.audit(items)} == {"ok"}
