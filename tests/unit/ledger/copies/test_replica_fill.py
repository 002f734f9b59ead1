"""Fills of copies on real bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster.cookies import CookieManager
from bookie.env.pace import Pace
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.replica_fill import ReplicaFill
from bookie.ledger.copies.replica_repair import CopyDamage, ReplicaRepair
from bookie.ledger.metadata import LedgerMetadata
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

PAYLOADS = [b"%d" % number * 30 for number in range(25)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 3) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri) as client:
        yield client


async def _write(bk: BookKeeper) -> LedgerMetadata:
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
    await writer.append_many(PAYLOADS)
    return await writer.close()


async def test_a_bookie_that_loses_its_data_meanwhile_is_not_whole(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its first windows were read before."""
    monkeypatch.setattr("bookie.ledger.copies.replica_plan.WINDOW_ENTRIES", 10)
    metadata = await _write(bk)
    run, calls = CopyCheck.run, 0

    async def run_and_lose(self: CopyCheck, first: int, last: int) -> Any:
        nonlocal calls
        found = await run(self, first, last)
        calls += 1
        if calls == 2:
            cookies = CookieManager(cluster.store)
            cookie = await cookies.read_latest("b1")
            assert cookie is not None
            await cookies.write(replace(cookie.value, incarnation="another"), cookie.version)
        return found

    fill = ReplicaFill(bk._connected)
    assert (await fill.run(metadata.ledger_id, "b1")).outcome == "was-fine"
    monkeypatch.setattr(CopyCheck, "run", run_and_lose)
    outcome = await fill.run(metadata.ledger_id, "b1")
    assert calls == 3
    assert (outcome.outcome, outcome.detail) == ("refused", "b1 may have lost what it had")


async def test_an_older_self_of_a_bookie_is_not_whole(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with the incarnation of before still answers at the last known address."""
    monkeypatch.setattr("bookie.ledger.copies.copy_check.PATIENCE_SECONDS", 0.1)
    metadata = await _write(bk)
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest("b1")
    assert cookie is not None
    await cookies.write(replace(cookie.value, incarnation="another"), cookie.version)
    outcome = await ReplicaFill(bk._connected).run(metadata.ledger_id, "b1")
    assert outcome.outcome == "refused"
    assert "it has another incarnation now" in outcome.detail
    repair = ReplicaRepair(bk._connected, cluster.store, "worker")
    damage = CopyDamage("b1", ((0, 24),))
    (outcome,) = await repair.run(metadata.ledger_id, [damage])
    assert outcome.outcome == "refused"
    assert "it has another incarnation now" in outcome.detail


async def test_a_check_keeps_the_pace(bk: BookKeeper) -> None:
    """Very many marked copies may be whole, because their bookie was only away."""

    class CountedPace(Pace):
        spent = 0

        async def spend(self, size: int) -> None:
            self.spent += size

    metadata = await _write(bk)
    pace = CountedPace(lambda: 0)
    assert (await ReplicaFill(bk._connected, pace).run(metadata.ledger_id, "b1")).is_whole
    assert pace.spent > metadata.length
