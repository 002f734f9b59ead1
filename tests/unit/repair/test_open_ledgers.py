"""Open ledgers on real bookies: recovered when their writer is gone, and never before."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import UNCLAIMED, BookKeeper, connect
from bookie.cli.repair import _list
from bookie.cluster import keys
from bookie.cluster.layout import read_layout
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Registration
from bookie.config import RepairSettings, RpcSettings, Sources
from bookie.env import SystemClock
from bookie.errors import LedgerFencedError, MetadataUnavailableError, NotEnoughBookiesError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.ledger_client import LedgerClient, LedgerShape, open_ledger_client
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.quorum import Quorum
from bookie.ledger.recover.driver import recover_ledger
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.repair import open_ledgers
from bookie.repair.open_ledgers import UNSEEN_SECONDS_MAX, OpenLedgers
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

GRACE = 3600.0
PAYLOADS = [b"%d" % number * 30 for number in range(40)]
THREE = LedgerShape(Quorum(3, 3, 2))
ONE = LedgerShape(Quorum(1, 1, 1))


class HandClock(SystemClock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        """What the test says."""
        return self.seconds


@dataclass
class Client:
    """A client process that writes: its session, and what it does with ledgers."""

    ledgers: LedgerClient
    session: AsyncExitStack

    async def end_session(self) -> None:
        """Let the store end the session for ever; the process may go on without it."""
        await self.session.aclose()


class Place:
    """A cluster, its auditor, and clients that may lose their sessions."""

    def __init__(self, cluster: RealCluster, bk: BookKeeper, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.bk = bk
        self.clock = HandClock()
        self.metrics = Metrics()
        self.settings = RepairSettings(open_ledger_grace_seconds=GRACE, retry_seconds_max=1200)
        self.is_split = False
        self._stack = stack
        self.auditor = self.new_auditor()

    def new_auditor(self) -> OpenLedgers:
        """An auditor that has seen nothing yet."""
        marks = UnderreplicationManager(self.cluster.store, "worker", self.clock)
        worker = RepairWorker(
            self.bk._connected,
            self.cluster.store,
            lambda: self.settings,
            self.metrics,
            self.clock,
            "worker",
            marks,
        )
        self.auditor = OpenLedgers(worker, lambda: self.is_split)
        return self.auditor

    async def client(
        self, store: MetadataStore | None = None, *, names_writer: bool = True
    ) -> Client:
        """Another client, with a session of its own."""
        session = await self._stack.enter_async_context(AsyncExitStack())
        store = await session.enter_async_context(store or open_store(self.cluster.uri))
        settings = {"client.replace_after_seconds": "0.2", "client.add_timeout_seconds": "1"}
        sources = Sources.read(None, settings)
        ledgers = await self._stack.enter_async_context(
            open_ledger_client(store, sources, RpcSettings(), names_writer=names_writer)
        )
        return Client(ledgers, session)

    async def look(self) -> None:
        """One round of the auditor, with the ends of all recoveries."""
        await self.auditor.find()
        await self.auditor.look()
        async with asyncio.TaskGroup() as tasks:
            await self.auditor.work(tasks)

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass while the auditor looks and works."""
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            self.clock.seconds = min(end, self.clock.seconds + UNSEEN_SECONDS_MAX)
            await self.look()

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata in the store."""
        return (await LedgerManager(self.cluster.store).read_latest(ledger_id)).value

    async def state(self, ledger_id: int) -> LedgerState:
        """The ledger's state in the store."""
        return (await self.metadata(ledger_id)).state

    async def payloads(self, ledger_id: int) -> list[bytes]:
        """All entries of a closed ledger."""
        reader = await self.bk.open_ledger(ledger_id)
        return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]

    @property
    def abandoned(self) -> float:
        """How many ledgers the metric counts."""
        value: float = self.metrics.repair_abandoned_ledgers._value.get()
        return value


@pytest.fixture(params=["memory", "local"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    name = tmp_path.name if request.param == "memory" else f"{tmp_path}/metadata"
    async with (
        real_cluster(tmp_path / "bookies", 4, uri=f"{request.param}://{name}") as cluster,
        connect(cluster.uri) as bk,
        AsyncExitStack() as stack,
    ):
        yield Place(cluster, bk, stack)


memory_only = pytest.mark.parametrize("place", ["memory"], indirect=True)


def faulty(place: Place) -> FaultyMemoryStore:
    """A session that the test may end."""
    return FaultyMemoryStore(place.cluster.uri.removeprefix("memory://"))


async def test_a_ledger_whose_writer_is_gone_is_closed(place: Place) -> None:
    """After the grace, with all entries. The writer that lived on can append no more."""
    client = await place.client()
    writer = await client.ledgers.create(THREE, {"owner": b"me"})
    await writer.append_many(PAYLOADS)
    await place.look()
    assert place.abandoned == 0
    await client.end_session()
    await place.pass_seconds(GRACE / 3)
    assert place.abandoned == 1
    await writer.append(b"without a session")
    await place.pass_seconds(GRACE * 0.6)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    await place.pass_seconds(GRACE)
    metadata = await place.metadata(writer.ledger_id)
    assert metadata.is_closed
    assert metadata.custom_metadata == {"owner": b"me"}
    assert await place.payloads(writer.ledger_id) == [*PAYLOADS, b"without a session"]
    with pytest.raises(NotEnoughBookiesError, match="another client fenced the ledger"):
        await writer.append(b"too late")  # it cannot ask the store
    await place.pass_seconds(GRACE)
    assert place.abandoned == 0
    assert not await UnderreplicationManager(place.cluster.store).locked()


async def test_an_empty_ledger_is_closed_too(place: Place) -> None:
    client = await place.client()
    writer = await client.ledgers.create(ONE)
    await client.end_session()
    await place.pass_seconds(3 * GRACE)
    assert (await place.metadata(writer.ledger_id)).last_entry_id == -1
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


async def test_a_client_that_ends_leaves_its_open_ledgers(place: Place) -> None:
    """Its record goes at once, and they are closed after the grace."""
    async with connect(place.cluster.uri) as bk:
        left = await bk.create_ledger()
        await left.append_many(PAYLOADS)
        closed = await bk.create_ledger()
        await closed.close()
        assert await place.cluster.store.get_children(keys.WRITERS)
    assert not await place.cluster.store.get_children(keys.WRITERS)
    await place.pass_seconds(3 * GRACE)
    assert await place.payloads(left.ledger_id) == PAYLOADS


@memory_only
async def test_a_writer_that_loses_its_session_often_keeps_its_ledger(place: Place) -> None:
    store = faulty(place)
    client = await place.client(store)
    writer = await client.ledgers.create(THREE)
    for number in range(20):
        store.expire_session()
        await place.look()
        await place.pass_seconds(GRACE / 5)
        await writer.append(b"%d" % number)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    assert (await writer.close()).last_entry_id == 19


@memory_only
async def test_a_long_outage_within_the_grace_costs_nothing(place: Place) -> None:
    """The client is alive again when its record is back, under the same id."""
    store = faulty(place)
    client = await place.client(store)
    writer = await client.ledgers.create(THREE)
    key = keys.writer(writer.metadata.writer_id)
    await place.look()
    store.disconnect()
    store.expire_session()
    await place.pass_seconds(GRACE * 0.9)
    assert await place.cluster.store.get(key) is None
    assert place.abandoned == 1
    store.reconnect()
    async with place.cluster.store.watch(key) as changes:
        while await place.cluster.store.get(key) is None:
            await anext(changes)
    await place.pass_seconds(GRACE * 3)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    assert place.abandoned == 0
    await writer.append(b"goes on")


@memory_only
async def test_a_writer_that_was_away_for_longer_is_fenced(place: Place) -> None:
    """When it can ask the store again it learns why. Its next ledger is its own as before."""
    store = faulty(place)
    client = await place.client(store)
    writer = await client.ledgers.create(THREE)
    await writer.append_many(PAYLOADS)
    store.disconnect()
    store.expire_session()
    await place.pass_seconds(3 * GRACE)
    assert await place.payloads(writer.ledger_id) == PAYLOADS
    store.reconnect()
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    following = await client.ledgers.create(THREE)
    assert following.metadata.writer_id == writer.metadata.writer_id
    await place.pass_seconds(3 * GRACE)
    assert await place.state(following.ledger_id) is LedgerState.OPEN


@memory_only
async def test_ledgers_that_name_no_writer_stay_open(place: Place) -> None:
    """Those of older clients, and those that wait for their writer."""
    older = await place.client(names_writer=False)
    old = await older.ledgers.create(THREE)
    client = await place.client()
    unclaimed = await client.ledgers.create(THREE, {UNCLAIMED: b""})
    assert not await place.cluster.store.get_children(keys.WRITERS), "it writes nothing"
    claimed = await client.ledgers.create(THREE, {UNCLAIMED: b""})
    writer = await client.ledgers.claim(claimed.ledger_id)
    await older.end_session()
    await client.end_session()
    await place.pass_seconds(3 * GRACE)
    states = [await place.state(one.ledger_id) for one in (old, unclaimed, writer)]
    assert states == [LedgerState.OPEN, LedgerState.OPEN, LedgerState.CLOSED]


@memory_only
async def test_another_auditor_gives_the_whole_grace_again(place: Place) -> None:
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    await place.look()
    await place.pass_seconds(GRACE * 0.9)
    place.new_auditor()
    await place.look()
    await place.pass_seconds(GRACE * 0.9)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    await place.pass_seconds(GRACE * 0.2)
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


@memory_only
async def test_the_grace_is_a_live_setting(place: Place) -> None:
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    await place.look()
    await place.pass_seconds(GRACE / 2)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    place.settings = replace_grace(place.settings, GRACE / 3)
    await place.pass_seconds(1)
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


def replace_grace(settings: RepairSettings, seconds: float) -> RepairSettings:
    return settings.model_copy(update={"open_ledger_grace_seconds": seconds})


async def replaced_one_by_one(place: Place) -> tuple[int, bytes, list[bytes]]:
    """A ledger of which every bookie was replaced since a backup, and whose writer is gone then.

    Returns its id, its metadata in the backup, and its entries.
    """
    for number in (4, 5):
        await place.cluster.start(number)
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    payloads = [b"before"]
    await writer.append(payloads[0])
    key = (await read_layout(place.cluster.store)).key(writer.ledger_id)
    backup = await place.cluster.store.get(key)
    assert backup is not None
    former = [int(name[1:]) for name in writer.metadata.last_fragment.bookies]
    for number in former:
        await place.cluster.stop(number)
        payloads.append(b"without b%d" % number)
        await writer.append(payloads[-1])
    gone = {f"b{number}" for number in former}
    await until(lambda: gone.isdisjoint(writer.metadata.last_fragment.bookies))
    for number in former:
        await place.cluster.start(number)
    await client.end_session()
    return writer.ledger_id, backup.value, payloads


@memory_only
async def test_entries_of_bookies_that_old_metadata_does_not_name_are_kept(place: Place) -> None:
    """All bookies of its last fragment deny them truthfully, so a recovery would drop them."""
    ledger_id, backup, payloads = await replaced_one_by_one(place)
    store = place.cluster.store
    key = (await read_layout(store)).key(ledger_id)
    newest = await store.get(key)
    assert newest is not None
    await store.put(key, backup)
    await place.look()
    await place.pass_seconds(2 * GRACE)
    assert await place.state(ledger_id) is LedgerState.OPEN
    failure = await RepairFailures(store).find(ledger_id)
    assert failure is not None
    assert re.search(r"bookie b\d has entry 3, .* knows entries up to [0-2]:", failure.reason)
    await store.put(key, newest.value)
    await place.pass_seconds(2 * GRACE)
    assert await place.payloads(ledger_id) == payloads


def before_it_takes(monkeypatch: pytest.MonkeyPatch, action: Callable[[OpenLedgers], Any]) -> None:
    """Let something happen between the last reads and the compare-and-set."""
    take = OpenLedgers._take

    async def acted(self: OpenLedgers, found: Any) -> Any:
        await action(self)
        return await take(self, found)

    monkeypatch.setattr(OpenLedgers, "_take", acted)


@memory_only
async def test_a_writer_may_return_in_the_last_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that takes the ledger finds its record, and changes nothing."""
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    returned = 0

    async def come_back(_: OpenLedgers) -> None:
        nonlocal returned
        returned += 1
        await place.cluster.store.put(keys.writer(writer.metadata.writer_id), b"", ephemeral=True)

    before_it_takes(monkeypatch, come_back)
    await place.pass_seconds(3 * GRACE)
    assert returned == 1
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    await writer.append(b"goes on")
    assert not await RepairFailures(place.cluster.store).find(writer.ledger_id)
    assert not await UnderreplicationManager(place.cluster.store).locked()


@memory_only
async def test_a_change_of_the_ledger_in_the_last_moment_is_seen(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round recovers the ledger as it is then."""
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await writer.append_many(PAYLOADS)
    await client.end_session()
    changes = 0

    async def change(self: OpenLedgers) -> None:
        nonlocal changes
        changes += 1
        if changes == 1:
            ledgers = LedgerManager(place.cluster.store)
            found = await ledgers.read_latest(writer.ledger_id)
            other = replace(found.value, custom_metadata={"by": b"another"})
            await ledgers.write(other, found.version)

    before_it_takes(monkeypatch, change)
    await place.pass_seconds(3 * GRACE)
    assert changes == 2
    assert (await place.metadata(writer.ledger_id)).custom_metadata == {"by": b"another"}
    assert await place.payloads(writer.ledger_id) == PAYLOADS


@memory_only
async def test_a_recovery_that_fails_is_repeated_and_stalls_nobody(place: Place) -> None:
    client = await place.client()
    alone = await client.ledgers.create(ONE)
    await alone.append_many(PAYLOADS)
    victim = int(alone.metadata.last_fragment.bookies[0][1:])
    alone.abandon()  # or it would replace the bookie
    await place.cluster.stop(victim)
    await until(lambda: f"b{victim}" not in client.ledgers.directory.all())
    others = [await client.ledgers.create(THREE) for _ in range(8)]
    for one in others:
        await one.append_many(PAYLOADS)
    await client.end_session()
    await place.pass_seconds(1.05 * GRACE)
    for one in others:
        assert await place.payloads(one.ledger_id) == PAYLOADS
    failures = RepairFailures(place.cluster.store)
    failure = await failures.find(alone.ledger_id)
    assert failure is not None
    assert failure.outcome == "not-recovered"
    assert failure.attempts > 1, "it was tried again"
    (listed,) = await _list(place.cluster.store, 10)
    assert (listed["ledger_id"], listed["reason"]) == (alone.ledger_id, failure.reason)
    assert await place.state(alone.ledger_id) is LedgerState.IN_RECOVERY
    # The writer has lost this ledger, so its return does not end the attempts.
    await place.cluster.store.put(keys.writer(alone.metadata.writer_id), b"", ephemeral=True)
    await place.pass_seconds(100)
    await place.cluster.start(victim)
    await until(lambda: f"b{victim}" in place.bk.bookies())
    await place.pass_seconds(1200)
    assert await place.payloads(alone.ledger_id) == PAYLOADS
    assert await failures.find(alone.ledger_id) is None


@memory_only
async def test_a_fault_with_one_ledger_stops_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await place.client()
    bad, good = [(await client.ledgers.create(THREE)).ledger_id for _ in range(2)]
    await client.end_session()

    async def recover(found: Any, *args: Any) -> Any:
        if found.value.ledger_id == bad:
            raise ValueError("of no use")
        return await recover_ledger(found, *args)

    monkeypatch.setattr(open_ledgers, "recover_ledger", recover)
    await place.pass_seconds(1.05 * GRACE)
    assert await place.state(good) is LedgerState.CLOSED
    failure = await RepairFailures(place.cluster.store).find(bad)
    assert failure is not None
    assert failure.reason == "not-recovered: ValueError: of no use"
    unexpected = place.metrics.errors_total.labels("unexpected")._value.get()
    assert unexpected == failure.attempts


@memory_only
async def test_a_failure_goes_with_its_reason(place: Place) -> None:
    """Somebody else closed the ledger; another auditor removes the record."""
    client = await place.client()
    alone = await client.ledgers.create(ONE)
    victim = int(alone.metadata.last_fragment.bookies[0][1:])
    alone.abandon()  # or it would replace the bookie
    await place.cluster.stop(victim)
    await client.end_session()
    await place.pass_seconds(1.05 * GRACE)
    failures = RepairFailures(place.cluster.store)
    assert await failures.find(alone.ledger_id) is not None
    await place.cluster.start(victim)
    await until(lambda: f"b{victim}" in place.bk.bookies())
    await place.bk.open_ledger(alone.ledger_id, recover=True)
    place.new_auditor()
    await place.look()
    assert await failures.find(alone.ledger_id) is None


@memory_only
async def test_nothing_is_recovered_while_the_cluster_is_in_doubt(place: Place) -> None:
    """A split of the network, a store that went back in time, a pause by an operator."""
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    marks = UnderreplicationManager(place.cluster.store)
    await place.look()
    place.is_split = True
    await place.pass_seconds(2 * GRACE)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    doubting = Registration("b9", (), store_doubt="it went back in time")
    async with BookieRegistration(place.cluster.store, doubting):
        await until(lambda: "b9" in place.bk.bookies())
        place.is_split = False
        await place.pass_seconds(GRACE)
        assert await place.state(writer.ledger_id) is LedgerState.OPEN
        await marks.disable()
    await until(lambda: "b9" not in place.bk.bookies())
    await place.pass_seconds(GRACE)
    assert await place.state(writer.ledger_id) is LedgerState.OPEN
    await marks.enable()
    await place.look()
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


@memory_only
async def test_a_ledger_under_repair_is_left_to_its_worker(place: Place) -> None:
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    async with UnderreplicationManager(place.cluster.store, "another") as another:
        assert await another.acquire(writer.ledger_id, needs_mark=False)
        await place.pass_seconds(3 * GRACE)
        assert await place.state(writer.ledger_id) is LedgerState.OPEN
    await place.look()
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


@memory_only
async def test_a_ledger_that_is_deleted_meanwhile(place: Place) -> None:
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    await place.look()
    await place.pass_seconds(GRACE / 5)
    await place.bk.delete_ledger(writer.ledger_id)
    await place.pass_seconds(2 * GRACE)
    assert place.abandoned == 0
    assert not [one async for one in RepairFailures(place.cluster.store).all()]


@memory_only
async def test_a_listing_that_fails_stalls_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known ledgers are recovered, and the next listing waits as after a success."""
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    await place.look()
    listings = 0

    list_readable = LedgerManager.list_readable

    async def fail(self: LedgerManager, note: Any) -> AsyncIterator[Any]:
        nonlocal listings
        listings += 1
        async for one in list_readable(self, note):
            yield one
            raise MetadataUnavailableError("the listing was cut off")

    monkeypatch.setattr(LedgerManager, "list_readable", fail)
    place.clock.seconds += GRACE
    with pytest.raises(MetadataUnavailableError):
        await place.auditor.find()
    await place.pass_seconds(GRACE / 5)
    assert listings == 1
    for _ in range(5):
        with suppress(MetadataUnavailableError):
            await place.pass_seconds(GRACE / 4)
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED


@memory_only
@pytest.mark.parametrize("at_once", [2, 5])
async def test_recoveries_that_fail_slowly_stall_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Ledgers found later are recovered beside them, as failing ones get half of the places."""
    place.settings = place.settings.model_copy(update={"ledgers_at_once": at_once})
    client, other = await place.client(), await place.client()
    stuck = {(await client.ledgers.create(THREE)).ledger_id for _ in range(4)}
    answer = asyncio.Event()
    asked: set[int] = set()
    recover = recover_ledger

    async def recover_slowly(found: Any, *args: Any) -> Any:
        ledger_id = found.value.ledger_id
        if ledger_id in stuck:
            asked.add(ledger_id)
            await answer.wait()
            raise NotEnoughBookiesError("no bookie answers")
        return await recover(found, *args)

    monkeypatch.setattr(open_ledgers, "recover_ledger", recover_slowly)
    await client.end_session()
    answer.set()
    await place.pass_seconds(1.05 * GRACE)
    assert asked == stuck, "all have failed once"
    answer.clear()
    asked.clear()
    place.clock.seconds += 1200
    async with asyncio.TaskGroup() as tasks:
        await place.auditor.work(tasks)
        await until(lambda: len(asked) == max(1, at_once // 2))
        later = await other.ledgers.create(THREE)
        await later.append_many(PAYLOADS)
        await other.end_session()
        for _ in range(2 * int(GRACE / UNSEEN_SECONDS_MAX)):
            place.clock.seconds += UNSEEN_SECONDS_MAX
            await place.auditor.find()
            await place.auditor.look()
            await place.auditor.work(tasks)
        while await place.state(later.ledger_id) is not LedgerState.CLOSED:  # noqa: ASYNC110  (a record tells nobody)
            await asyncio.sleep(0)
        assert len(asked) == max(1, at_once // 2)
        answer.set()
    assert await place.payloads(later.ledger_id) == PAYLOADS


@memory_only
async def test_a_listing_beside_a_recovery_forgets_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery took the ledger after the listing had seen its writer's record."""
    client = await place.client()
    writer = await client.ledgers.create(THREE)
    await client.end_session()
    await place.pass_seconds(0.9 * GRACE)
    recover = recover_ledger
    tries = 0

    async def fail_once(found: Any, *args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise NotEnoughBookiesError("no bookie answers")
        return await recover(found, *args)

    monkeypatch.setattr(open_ledgers, "recover_ledger", fail_once)
    list_readable = LedgerManager.list_readable

    async def list_slowly(self: LedgerManager, note: Any) -> AsyncIterator[Any]:
        async for one in list_readable(self, note):
            yield one
        async with asyncio.TaskGroup() as tasks:
            await place.auditor.work(tasks)

    record = keys.writer(writer.metadata.writer_id)
    place.clock.seconds += UNSEEN_SECONDS_MAX
    while not place.auditor._is_due(place.auditor._found[writer.ledger_id]):
        place.clock.seconds += UNSEEN_SECONDS_MAX
        await place.auditor.look()
    monkeypatch.setattr(LedgerManager, "list_readable", list_slowly)
    get_children = place.cluster.store.get_children

    async def with_the_writer(key: str) -> list[str]:
        found = await get_children(key)
        return [*found, writer.metadata.writer_id] if key == keys.WRITERS else found

    place.auditor._list_at = -math.inf
    with monkeypatch.context() as patch:
        patch.setattr(place.cluster.store, "get_children", with_the_writer)
        await place.auditor.find()
    assert tries == 1
    await place.cluster.store.put(record, b"", ephemeral=True)  # too late: the ledger is taken
    monkeypatch.undo()
    await place.pass_seconds(1200)
    assert await place.state(writer.ledger_id) is LedgerState.CLOSED
