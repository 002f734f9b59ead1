"""A rebalance of real bookies: a new one gets its share, and every ledger has all its copies."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster.registration_record import Registration
from bookie.errors import BadRequestError, BookieUnreachableError, MetadataUnavailableError
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.repair.rebalance import Rebalance, RebalanceReport
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(25)]
LEDGERS = 25


class Place:
    """Three bookies with ledgers, and a fourth that comes."""

    def __init__(self, cluster: RealCluster, bk: BookKeeper) -> None:
        self.cluster, self.bk = cluster, bk
        self.failures: list[RepairOutcome] = []
        self.marks = UnderreplicationManager(cluster.store, "another")

    async def write(self) -> None:
        for _ in range(LEDGERS):
            writer = await self.bk.create_ledger(
                ensemble_size=2, write_quorum_size=2, ack_quorum_size=2
            )
            await writer.append_many(PAYLOADS)
            await writer.close()
        await self.cluster.start(3)
        await until(lambda: "b3" in self.bk.bookies())

    async def rebalance(self, *, dry_run: bool = False) -> RebalanceReport:
        self.failures.clear()
        rebalance = Rebalance(
            self.bk._connected, self.cluster.store, "worker", 0, self.failures.append
        )
        return await rebalance.run(dry_run=dry_run)

    async def named(self, bookie_id: str) -> set[int]:
        found = [await self.bk.ledger_metadata(one) async for one in self.bk.list_ledgers()]
        return {one.ledger_id for one in found if bookie_id in one.last_fragment.bookies}

    async def is_whole(self) -> bool:
        maintenance = self.bk.maintenance()
        items = await maintenance.plan(1 << 20, lambda _: True, lambda _: None)
        verdicts = {one.verdict for one in await maintenance.audit(items)}
        return verdicts == {"ok"} and not await self.marks.locked()


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    # Of some choices of bookies, no further single move leads to a balance.
    monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(7))
    async with real_cluster(tmp_path, 3) as cluster, connect(cluster.uri) as bk:
        found = Place(cluster, bk)
        await found.write()
        yield found


async def test_a_bookie_that_comes_gets_its_share(place: Place) -> None:
    planned = await place.rebalance(dry_run=True)
    assert await place.named("b3") == set()
    made = await place.rebalance()
    assert made == planned
    assert made.failed == 0
    size = sum(map(len, PAYLOADS))
    assert len(await place.named("b3")) * size == made.bookies["b3"].taken
    mean = sum(one.before for one in made.bookies.values()) / 4
    assert abs(made.bookies["b3"].taken - mean) <= 0.05 * mean
    assert await place.is_whole()
    assert (await place.rebalance()).moves == 0


async def test_devices_and_their_free_bytes_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the registrations tell them: b3 has two fifths of all bytes, and later no room."""
    directory = place.bk._connected.directory
    registrations, free_bytes = directory.all, 10**9

    def all_told() -> dict[str, Registration]:
        return {
            name: replace(
                one, total_bytes=2 * 10**9 if name == "b3" else 10**9, free_bytes=free_bytes
            )
            for name, one in registrations().items()
        }

    monkeypatch.setattr(directory, "all", all_told)
    made = await place.rebalance(dry_run=True)
    assert made.is_balanced
    share = sum(one.before for one in made.bookies.values()) * 2 / 5
    assert abs(made.bookies["b3"].taken - share) <= 0.05 * share
    free_bytes = 0
    assert (await place.rebalance()).moves == 0


async def test_an_interrupted_one_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, calls = EntryCopier.copy, 0

    async def some(self: EntryCopier, *args: Any) -> str:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise MetadataUnavailableError("the store is away")
        return await copy(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(EntryCopier, "copy", some)
        with pytest.raises(MetadataUnavailableError):
            await place.rebalance()
    assert await place.is_whole()
    assert (await place.rebalance()).is_balanced
    assert await place.is_whole()


@pytest.mark.parametrize("fault", [BookieUnreachableError("silent"), ValueError("unexpected")])
async def test_a_bad_ledger_is_told_and_the_others_move(
    place: Place, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    first = min([one async for one in place.bk.list_ledgers()])
    copy = EntryCopier.copy

    async def refuse(self: EntryCopier, *args: Any) -> str:
        if self.metadata.ledger_id == first:
            raise fault
        return await copy(self, *args)

    monkeypatch.setattr(EntryCopier, "copy", refuse)
    report = await place.rebalance()
    # Each bookie that gives copies away may try the ledger.
    assert {(one.ledger_id, one.outcome) for one in place.failures} == {(first, "refused")}
    assert report.failed == len(place.failures)
    assert first not in await place.named("b3")
    assert report.is_balanced, "another ledger moved instead"
    assert await place.is_whole()


async def test_marked_and_locked_ledgers_stay(place: Place) -> None:
    ledgers = sorted([one async for one in place.bk.list_ledgers()])
    for ledger_id in ledgers[:12]:
        await place.marks.mark(ledger_id, ["b0"])
    for ledger_id in ledgers[12:14]:
        assert await place.marks.acquire_unmarked(ledger_id)
    report = await place.rebalance()
    assert {one.outcome for one in place.failures} == {"locked"}
    assert {one.ledger_id for one in place.failures} == set(ledgers[12:14])
    assert report.failed == len(place.failures)
    assert await place.named("b3") <= set(ledgers[14:])
    assert await place.named("b3")


async def test_refusals(place: Place) -> None:
    await place.marks.disable()
    with pytest.raises(BadRequestError, match="repair is disabled"):
        await place.rebalance(dry_run=True)
    await place.marks.enable()
    for number in (1, 2, 3):
        await place.cluster.stop(number)
    await until(lambda: len(place.bk.bookies()) == 1)
    with pytest.raises(BadRequestError, match="fewer than two bookies are writable"):
        await place.rebalance(dry_run=True)
