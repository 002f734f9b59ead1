"""The rounds of a replicator, one at a time: which ledgers it tries, and how long it rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.config import RepairSettings, RpcSettings, Sources
from bookie.env import SystemClock, beside
from bookie.errors import FormatError, MetadataUnavailableError
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.departures import Departures, RepairFailures
from bookie.ledger.copies.marks import RELEASE_SECONDS, UnderreplicationManager
from bookie.ledger.copies.repair_history import FAILED
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.ledger_client import open_ledger_client
from bookie.ledger.metadata import Fragment
from bookie.metadata.connect import open_store
from bookie.metadata.model import Record
from bookie.repair.replicator import (
    IDLE_SECONDS,
    IDLE_SHARE,
    LEDGERS_OF_A_ROUND,
    Replicator,
)
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from bookie.testing.simulation.loop import Mode, simulated_loop
from tests.conformance.faulty_store import FaultyStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until
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
    marks = UnderreplicationManager(store, "b0", clock)
    worker = RepairWorker(bk._connected, store, lambda: SETTINGS, Metrics(), clock, "b0", marks)
    return Replicator(worker)


async def _round(replicator: Replicator) -> int:
    """One round, and all that it began."""
    async with asyncio.TaskGroup() as tasks:
        return await replicator.round(tasks)


async def _written(bk: BookKeeper, marks: UnderreplicationManager, count: int) -> list[int]:
    """Marked ledgers that cannot be repaired while b1 is away."""
    ledgers = []
    for _ in range(count):
        writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        await writer.append(b"entry")
        await writer.close()
        await marks.mark(writer.ledger_id, ["b1"])
        ledgers.append(writer.ledger_id)
    return ledgers


async def _until_marked(marks: UnderreplicationManager, wanted: set[int]) -> None:
    while {one.ledger_id async for one in marks.marked()} != wanted:  # noqa: ASYNC110  (a record tells nobody)
        await asyncio.sleep(0.02)


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
    assert await _round(replicator) == 0
    assert replicator._idle_seconds() == IDLE_SECONDS
    await marks.disable()
    clock.seconds += 10
    assert await _round(replicator) == 0
    assert replicator._idle_seconds() == IDLE_SECONDS


async def test_a_ledger_that_is_due_soon_ends_the_idle_time(
    marks: UnderreplicationManager, replicator: Replicator
) -> None:
    await marks.mark(7, ["b1"])
    assert await _round(replicator) == 1, "there is no such ledger"
    await marks.mark(7, ["b1"])
    replicator._wait(7)
    assert await _round(replicator) == 0
    assert replicator._idle_seconds() <= 1


async def test_the_rest_grows_with_the_marks_also_if_some_are_due(
    marks: UnderreplicationManager, replicator: Replicator, store: SlowStore
) -> None:
    await marks.mark(7, ["b1"])
    store.seconds = 1
    assert await _round(replicator) == 1
    assert replicator._rest_seconds() >= IDLE_SHARE


async def test_pauses_end_when_a_bookie_comes_or_goes(
    cluster: RealCluster,
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
) -> None:
    """Each of them has the longest pause, and still none outlives the reason."""
    ledgers = await _written(bk, marks, 3)
    await cluster.stop(1)
    await until(lambda: "b1" not in bk.bookies())
    assert await _round(replicator) == 3
    for _ in range(20):
        for ledger_id in ledgers:
            replicator._wait(ledger_id)
    assert await _round(replicator) == 0
    lost = Departures(cluster.store, keys.LOST_BOOKIES)
    await lost.add("b1")
    assert await _round(replicator) == 3, "it is gone, and others may take over its copies"
    assert await _round(replicator) == 0
    await cluster.start(1)
    await until(lambda: "b1" in bk.bookies())
    await lost.remove("b1")
    assert await _round(replicator) == 3
    assert await marks.count() == 0


async def test_no_pause_is_longer_than_the_longest(
    replicator: Replicator, clock: TurnedClock
) -> None:
    """Also of very many ledgers that fail. Then a second has so many attempts."""
    for ledger_id in range(10_000):
        replicator._wait(ledger_id)
    now, longest = clock.seconds, SETTINGS.retry_seconds_max
    assert all(one.not_before <= now + longest for one in replicator._troubles.values())
    assert replicator._ready(now + longest - 1) == set()
    assert len(replicator._ready(now + longest)) == LEDGERS_OF_A_ROUND
    for ledger_id in range(100):
        clock.seconds = now + longest
        replicator._wait(ledger_id)
    assert replicator._ready(now + longest + 19) == set()
    assert replicator._ready(now + longest + 21).isdisjoint(range(100)), "others waited longer"


async def test_a_ledger_that_others_repaired_is_forgotten(
    marks: UnderreplicationManager, replicator: Replicator
) -> None:
    assert await _round(replicator) == 0
    await marks.mark(7, ["b1"])
    for ledger_id in (5, 7, 9):
        replicator._wait(ledger_id)
    await _round(replicator)
    assert replicator._troubles.keys() == {7}


async def test_a_ledger_that_takes_long_holds_up_no_other(
    marks: UnderreplicationManager, replicator: Replicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those that are marked later."""
    finish, begun, may_end = replicator._finish, asyncio.Event(), asyncio.Event()

    async def slow(ledger_id: int, *args: Any) -> Any:
        if ledger_id == 7:
            begun.set()
            await may_end.wait()
        return await finish(ledger_id, *args)

    monkeypatch.setattr(replicator, "_finish", slow)
    for ledger_id in (5, 6, 7, 8, 9):
        await marks.mark(ledger_id, ["b1"])
    async with asyncio.timeout(60), beside([replicator.run()]):
        await begun.wait()
        await _until_marked(marks, {7})
        await marks.mark(3, ["b1"])
        await _until_marked(marks, {7})
        await marks.mark(4, ["b1"])
        may_end.set()
        await _until_marked(marks, set())


async def test_a_lock_that_no_task_has_is_given_back(
    bk: BookKeeper, store: SlowStore, marks: UnderreplicationManager, replicator: Replicator
) -> None:
    """Its ledger may never be locked here again: it has no mark, and its copies are reclaimed."""
    own = replicator._worker.marks
    store.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await own.acquire_unmarked(7)
    assert not await marks.acquire_unmarked(7), "the lock is there"
    await own.give_back_doubtful()
    assert await marks.acquire_unmarked(7)
    await marks.release(7)
    assert await own.acquire_unmarked(8)
    await own.give_back_doubtful()
    assert not await marks.acquire_unmarked(8), "a task has it"


async def test_old_metadata_gets_copies_back_from_bookies_that_it_does_not_name(
    cluster: RealCluster,
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
) -> None:
    """All copies moved since the backup, and the former bookies removed theirs."""
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    payloads = [b"%d" % number * 30 for number in range(25)]
    await writer.append_many(payloads)
    backup = await writer.close()
    (former,) = backup.last_fragment.bookies
    client = bk._connected
    assert (await ReplicaMove(client).run(backup.ledger_id, {former}, None)).is_whole
    engine = cluster.nodes[int(former[1:])].engine
    await engine.checkpoint()
    await engine.remove_copies(backup.ledger_id, backup.password_key, lambda: True)
    found = await client.ledgers.read(backup.ledger_id)
    await client.ledgers.write(backup, found.version)
    await marks.mark(backup.ledger_id, [former])
    await _round(replicator)
    assert not [one async for one in marks.marked()]
    reader = await bk.open_ledger(backup.ledger_id)
    assert [entry.payload async for entry in reader.read(0, 24)] == payloads


@pytest.mark.parametrize("has_settled", [False, True])
async def test_an_open_ledger_on_a_lost_bookie_is_not_called_whole(
    cluster: RealCluster, bk: BookKeeper, replicator: Replicator, *, has_settled: bool
) -> None:
    """Only its writer, or a recovery, may replace a bookie of its last fragment."""
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    await writer.append(b"entry")
    (named,) = writer.metadata.last_fragment.bookies
    lost = named
    ledgers = bk._connected.ledgers
    if has_settled:
        lost = "b9"
        found = await ledgers.read(writer.ledger_id)
        fragments = (Fragment(0, (named,)), Fragment(1, (lost,)))
        await ledgers.write(replace(found.value, fragments=fragments), found.version)
    assert not [one for one in await replicator.repair_now(writer.ledger_id) if not one.is_whole]
    await Departures(cluster.store, keys.LOST_BOOKIES).add(lost)
    outcomes = await replicator.repair_now(writer.ledger_id)
    failed = [(one.bookie_id, one.outcome) for one in outcomes if not one.is_whole]
    assert failed == [(lost, "open")]


@pytest.mark.parametrize("fault", [ValueError("of no use"), FormatError("of no use")])
async def test_a_fault_with_one_ledger_stops_no_other(
    cluster: RealCluster,
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
) -> None:
    """It is listed with the reason; only a fault that nobody expected counts as an error."""
    bad, good = await _written(bk, marks, 2)
    fill = replicator._fill.run

    async def run(ledger_id: int, *args: Any) -> RepairOutcome:
        if ledger_id == bad:
            raise fault
        return await fill(ledger_id, *args)

    monkeypatch.setattr(replicator._fill, "run", run)
    assert await _round(replicator) == 2
    assert await marks.ledgers() == {bad}, f"{good} is repaired"
    failure = await RepairFailures(cluster.store).find(bad)
    assert failure is not None
    assert (failure.outcome, failure.attempts) == (FAILED, 1)
    assert "of no use" in failure.reason
    unexpected = replicator._worker.metrics.errors_total.labels("unexpected")._value.get()
    assert unexpected == isinstance(fault, ValueError)
    assert await _round(replicator) == 0, "it waits"


async def test_a_store_that_is_away_leaves_no_failure_record(
    bk: BookKeeper,
    cluster: RealCluster,
    marks: UnderreplicationManager,
    replicator: Replicator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (ledger_id,) = await _written(bk, marks, 1)

    async def run(*_: object) -> RepairOutcome:
        raise MetadataUnavailableError("it is away")

    monkeypatch.setattr(replicator._fill, "run", run)
    assert await _round(replicator) == 1
    assert await marks.ledgers() == {ledger_id}
    assert await RepairFailures(cluster.store).find(ledger_id) is None


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The windows that were read, in order; each has ten entries."""
    monkeypatch.setattr("bookie.ledger.copies.replica_plan.WINDOW_ENTRIES", 10)
    run, read = CopyCheck.run, list[tuple[int, int]]()

    async def noted(self: CopyCheck, first: int, last: int) -> Any:
        read.append((first, last))
        return await run(self, first, last)

    monkeypatch.setattr(CopyCheck, "run", noted)
    return read


async def _long_ledger(bk: BookKeeper, marks: UnderreplicationManager) -> int:
    """A marked ledger of four windows."""
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
    await writer.append_many([b"entry"] * 40)
    await writer.close()
    await marks.mark(writer.ledger_id, ["b1"])
    return writer.ledger_id


def _in_window(
    replicator: Replicator, monkeypatch: pytest.MonkeyPatch, first: int, action: Any
) -> None:
    """Let something happen once while a window is filled."""
    fill, due = replicator._fill._fill, [action]

    async def filled(copier: Any, stripe: Any, begin: int, end: int) -> bool:
        if begin == first and due:
            await due.pop()()
        return await fill(copier, stripe, begin, end)

    monkeypatch.setattr(replicator._fill, "_fill", filled)


async def test_a_mark_during_a_long_fill_repeats_only_what_came_before_it(
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
    windows: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An audit beside it sees entries missing that come a moment later."""
    ledger_id = await _long_ledger(bk, marks)
    _in_window(replicator, monkeypatch, 10, lambda: marks.mark(ledger_id, ["b1"]))
    assert await _round(replicator) == 1
    assert [first for first, _ in windows] == [0, 10, 20, 30, 0, 10]
    assert await marks.count() == 0
    assert await marks.worker_of(ledger_id) is None


async def test_a_bookie_that_a_later_mark_names_is_filled_too(
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
    windows: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger_id = await _long_ledger(bk, marks)
    _in_window(replicator, monkeypatch, 30, lambda: marks.mark(ledger_id, ["b2"]))
    assert await _round(replicator) == 1
    # All of b1 came before the mark, and nothing of b2.
    assert [first for first, _ in windows] == [0, 10, 20, 30] * 3
    assert await marks.count() == 0


async def test_a_fill_that_lost_its_lock_ends_soon_and_is_no_repair(
    cluster: RealCluster,
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
    windows: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger_id = await _long_ledger(bk, marks)
    key = f"{keys.REPAIR_LOCKS}/{ledger_id:019}"
    _in_window(replicator, monkeypatch, 10, lambda: cluster.store.delete(key))
    assert await _round(replicator) == 1
    assert [first for first, _ in windows] == [0, 10]
    assert await marks.ledgers() == {ledger_id}
    (told,) = replicator._history._repairs
    assert (told.outcome, told.detail) == ("locked", "the ledger's lock was lost meanwhile")
    assert await RepairFailures(cluster.store).find(ledger_id) is None
    assert await marks.acquire(ledger_id)


async def test_a_mark_in_the_last_moment_is_no_repair(
    bk: BookKeeper,
    marks: UnderreplicationManager,
    replicator: Replicator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger_id = await _long_ledger(bk, marks)
    remove = replicator._failures.remove

    async def remove_and_mark(ledger_id: int) -> None:
        await remove(ledger_id)
        await marks.mark(ledger_id, ["b1"])

    with monkeypatch.context() as patch:
        patch.setattr(replicator._failures, "remove", remove_and_mark)
        assert await _round(replicator) == 1
    assert await marks.ledgers() == {ledger_id}
    assert [one.outcome for one in replicator._history._repairs] == ["marked-again"]
    assert await _round(replicator) == 1, "it waits for nothing"
    assert await marks.count() == 0


def test_a_lock_that_was_not_given_back_in_time_is_given_back_later(tmp_path: Path) -> None:
    """An outage is longer than the wait. Then another worker may take the ledger."""
    loop = simulated_loop(1, Mode.FIFO)

    async def life() -> None:
        uri = f"memory://{tmp_path.name}"
        async with open_store(uri) as store, open_store(uri) as other:
            await initialize_cluster(store)
            faulty = FaultyStore(store)
            marks = UnderreplicationManager(faulty, "b0")
            async with open_ledger_client(store, Sources.read(None, {}), RpcSettings()) as client:
                worker = RepairWorker(
                    client, faulty, lambda: SETTINGS, Metrics(), SystemClock(), "b0", marks
                )
                await marks.mark(7, ["b1"])
                assert await marks.acquire(7)
                faulty.hold_writes.clear()
                loop.call_later(1.5 * RELEASE_SECONDS, faulty.hold_writes.set)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await marks.release(7)
                second = UnderreplicationManager(other, "b1")
                assert not await second.acquire(7)
                await marks.disable()
                async with asyncio.timeout(60), beside([Replicator(worker).run()]):
                    while not await second.acquire(7):  # noqa: ASYNC110  (a record tells nobody)
                        await asyncio.sleep(1)

    try:
        loop.run(life())
    finally:
        loop.close()
