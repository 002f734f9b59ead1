"""The looks and surveys of an auditor, one at a time, by a clock that the test turns."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import RepairSettings
from bookie.env import SystemClock, beside
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.repair.auditor import Auditor, SurveyReport
from bookie.repair.open_ledgers import UNSEEN_SECONDS_MAX
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from tests.servers.ports import claimed_ports
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
    marks = UnderreplicationManager(cluster.store, "b0", clock)
    auditor = Auditor(
        RepairWorker(client, cluster.store, lambda: SETTINGS, Metrics(), clock, "b0", marks)
    )
    await _round(auditor)
    await auditor._audit_if_due()
    return auditor


async def _round(auditor: Auditor) -> None:
    await auditor._look()
    await auditor._survey_if_due()


async def _until_marked(cluster: RealCluster, wanted: list[tuple[str, ...]]) -> None:
    async with asyncio.timeout(60):
        while await _marked(cluster) != wanted:  # noqa: ASYNC110  (a record tells nobody)
            await asyncio.sleep(0.02)


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
    await _pass_the_delay(auditor, clock)
    assert await _lost(cluster) == {f"b{number}"}


async def _pass_the_delay(auditor: Auditor, clock: TurnedClock) -> None:
    """Time counts only while the auditor looks."""
    end = clock.seconds + DELAY_SECONDS
    while clock.seconds < end:
        clock.seconds += UNSEEN_SECONDS_MAX
        await auditor._look()


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


async def test_a_bookie_with_a_registration_of_a_newer_version_is_not_away(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor, clock: TurnedClock
) -> None:
    """It runs, though this version cannot tell where."""
    key = keys.registration("b1", read_only=False)
    record = await cluster.store.get(key)
    assert record is not None
    newer = record.value.replace(b'"version":1', b'"version":2')
    assert newer != record.value
    await _stop(cluster, bk, 1)
    await cluster.store.put(key, newer)
    await until(lambda: "b1" in bk._connected.directory.names())
    assert "b1" not in bk._connected.directory.all()
    await auditor._look()
    await _pass_the_delay(auditor, clock)
    assert auditor._worker.metrics.repair_bookies_away._value.get() == 0
    assert await _lost(cluster) == set()
    await cluster.store.delete(key)
    await until(lambda: "b1" not in bk._connected.directory.names())
    await auditor._look()
    assert auditor._worker.metrics.repair_bookies_away._value.get() == 1


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


async def test_a_ledger_with_two_reasons_counts_once(
    cluster: RealCluster, bk: BookKeeper, auditor: Auditor
) -> None:
    assert (await auditor.survey({"b2"}, is_deep=True)).ledgers == 1
    await _stop(cluster, bk, 1)
    shutil.rmtree(cluster.directory_of(1))
    await _forget(cluster, "b1")
    await _start(cluster, bk, 1)
    assert (await auditor.survey({"b2"}, is_deep=True)).ledgers == 1
    assert (await auditor.survey(set(), is_deep=True)).ledgers == 1
    assert await _marked(cluster) == [("b1", "b2")]
    assert await auditor._worker.marks.count() == 1


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


async def test_a_bookie_that_is_lost_during_an_audit_does_not_wait_for_its_end(
    cluster: RealCluster,
    bk: BookKeeper,
    auditor: Auditor,
    clock: TurnedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.repair.auditor.ROUND_SECONDS", 0.01)
    survey, begun = auditor.survey, asyncio.Event()

    async def endless(gone: Any, *, is_deep: bool) -> Any:
        if is_deep:
            begun.set()
            await asyncio.Event().wait()
        return await survey(gone, is_deep=is_deep)

    monkeypatch.setattr(auditor, "survey", endless)
    clock.seconds += SETTINGS.audit_interval_seconds + 1
    async with beside([auditor._lead()]):
        async with asyncio.timeout(60):
            await begun.wait()
        await _stop(cluster, bk, 1)
        await until(lambda: "b1" in auditor._absence._since)
        await _pass_the_delay(auditor, clock)
        await _until_marked(cluster, [("b1",)])


async def test_a_silent_bookie_does_not_make_audits_endless(
    cluster: RealCluster,
    bk: BookKeeper,
    auditor: Auditor,
    clock: TurnedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them takes three hours. The age of the last one tells that something is wrong."""
    survey, audits, hours = auditor.survey, 0, 3600

    async def slow(gone: Any, *, is_deep: bool) -> SurveyReport:
        nonlocal audits
        report = await survey(gone, is_deep=is_deep)
        if is_deep:
            audits += 1
            clock.seconds += 3 * hours
        return report

    monkeypatch.setattr(auditor, "survey", slow)
    monkeypatch.setattr("bookie.repair.auditor.ANSWER_SECONDS", 0.05)
    (port,) = claimed_ports(1)
    silent = Registration("b1", (Endpoint("bookie", "127.0.0.1", port, "grpc"),))
    await _stop(cluster, bk, 1)
    async with BookieRegistration(cluster.store, silent):
        await until(lambda: "b1" in bk.bookies())
        for _ in range(10 * 24):
            clock.seconds += hours
            await auditor._look()
            await auditor._audit_if_due()
    assert 8 <= audits <= 10
    assert auditor._worker.metrics.repair_audit_age_seconds._value.get() > 9 * 24 * hours


async def test_an_audit_that_is_wanted_during_another_is_made(
    cluster: RealCluster,
    auditor: Auditor,
    clock: TurnedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks = UnderreplicationManager(cluster.store)
    survey, audits = auditor.survey, 0

    async def and_trigger(gone: Any, *, is_deep: bool) -> SurveyReport:
        nonlocal audits
        audits += 1
        if audits <= 2:
            await marks.forget_check("replicas")
        return await survey(gone, is_deep=is_deep)

    monkeypatch.setattr(auditor, "survey", and_trigger)
    await marks.forget_check("replicas")
    for _ in range(5):
        await auditor._audit_if_due()
    assert audits == 3
    assert await marks.checked_ms("replicas") == clock.now_ms()


async def test_the_age_of_the_first_audit_counts_from_the_first_look(
    cluster: RealCluster, auditor: Auditor, clock: TurnedClock
) -> None:
    """So an alert fires if none ever ends."""
    age = auditor._worker.metrics.repair_audit_age_seconds._value
    marks = UnderreplicationManager(cluster.store)
    await marks.forget_check("replicas")
    assert await auditor._is_audit_due()
    clock.seconds += 4 * 86400
    assert await auditor._is_audit_due()
    assert age.get() == 4 * 86400
    await cluster.store.put(f"{keys.CHECKS}/replicas", b"junk")
    await auditor._audit_if_due()
    assert not await auditor._is_audit_due()
    assert age.get() == 0


async def test_an_auditor_that_ends_tells_nothing_more(
    cluster: RealCluster, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it ends while it leads. Its process goes on, and exposes the same metrics."""
    monkeypatch.setattr("bookie.repair.auditor.ROUND_SECONDS", 0.01)
    marked = auditor._worker.metrics.repair_marked_ledgers._value
    await UnderreplicationManager(cluster.store).mark(7, ["b1"])
    async with beside([auditor.run()]):
        await until(lambda: marked.get() == 1)
    assert marked.get() == 0
