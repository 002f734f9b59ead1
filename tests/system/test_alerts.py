"""Every alert fires in the situation that it is about, on what a real bookie exposes there.

A test names the alerts that it proves. In it each of them is once expected to be silent, and once
to fire. Nobody waits for a `for:`, because a scrape can be held for as many minutes as it takes.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from bookie.api import connect
from bookie.cluster import keys
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import GarbageSettings, NodeSettings, RepairSettings, RpcSettings, Sources
from bookie.config.sections import SessionSettings
from bookie.daemon import connections
from bookie.daemon.connections import ConnectionBounds, OwnSockets, bound_connections
from bookie.daemon.loop import observe_loop_lag
from bookie.daemon.readiness import Readiness
from bookie.daemon.registration_updater import show_registration
from bookie.daemon.repair_process import RepairProcessMetrics
from bookie.daemon.session_policy import obey_session_policy
from bookie.env import DiskUsage, SystemClock, beside
from bookie.errors import MetadataUnavailableError
from bookie.ids import BOOKIE_ID_METADATA_KEY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.ledger_client import open_ledger_client
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node.disk_watch import DiskWatch
from bookie.node.engine.reader import UnreadableEntries
from bookie.repair.auditor import Auditor
from bookie.repair.replicator import Replicator
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import simulated_loop
from bookie.wire.server.error_mapper import ErrorMapper
from tests.fault.daemon_cluster import DaemonCluster, daemon_cluster
from tests.system.scrapes import (
    RULES,
    Scrapes,
    alerts,
    exposed,
    on_an_empty_disk,
    promtool,
    without_status,
)
from tests.unit.ledger.real_cluster import real_cluster
from tests.unit.ledger.real_cluster import until as eventually
from tests.unit.node.engine.faulty_disk import Call, FaultyDisk, Hold
from tests.unit.node.engine.machine import IDENTITY, KIB, Machine, MachineClock, until
from tests.unit.node.engine.machine import add as add_to_engine
from tests.unit.node.garbage_place import collecting
from tests.unit.node.node_room import Room, add
from tests.unit.node.node_room import serving as serving_node
from tests.unit.node.started_bookie import metadata, stamped, started

CLOSED = LedgerState.CLOSED
GAUGE_SECONDS_MAX = 60.0
"""A gauge of a running bookie follows within a second or two."""
TERABYTE = 10**12
Test = TypeVar("Test", bound=Callable[..., object])

PROVEN: dict[str, str] = {}
"""Alert → the test that has it fire."""


def proves(*names: str) -> Callable[[Test], Test]:
    """Note which alerts a test has to see silent, and to see fire."""

    def noted(test: Test) -> Test:
        test.proves = names  # type: ignore[attr-defined]
        PROVEN.update(dict.fromkeys(names, test.__name__))
        return test

    return noted


@pytest.fixture(name="prometheus")
def _prometheus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scrapes]:
    """Scrapes of the test; at its end Prometheus evaluates the rules."""
    scrapes = Scrapes(tmp_path)
    yield scrapes
    for name in getattr(request.function, "proves", ()):
        assert {name in fired for _, fired in scrapes.expected} == {True, False}, name
    scrapes.evaluate()


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        await store.put(keys.INSTANCE_ID, IDENTITY.instance_id.encode())
        yield store


# ---- the rules themselves


def test_prometheus_accepts_the_rules() -> None:
    """All of its own checks, and the settings that come with them."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    promtool("check", "config", RULES.with_name("prometheus.yml"))


def test_every_alert_is_proven() -> None:
    """A rule without a test that has it fire may stay silent for ever."""
    assert PROVEN.keys() == alerts().keys()


# ---- real processes


async def scraped(cluster: DaemonCluster) -> dict[str, str | None]:
    """What each bookie of a cluster answers now."""
    bodies: dict[str, str | None] = {}
    for name in cluster.daemons:
        try:
            bodies[name] = on_an_empty_disk((await cluster.page(name, "metrics"))[1])
        except aiohttp.ClientError:
            bodies[name] = None
    return bodies


async def scraped_at_status(
    cluster: DaemonCluster, bookie: str, status: int
) -> dict[str, str | None]:
    """What they answer once all have looked at their disks, and a bookie has this status."""
    wanted = f"\nbookie_server_status {status:.1f}\n"
    async with asyncio.timeout(GAUGE_SECONDS_MAX):
        while True:
            bodies = await scraped(cluster)
            if wanted in (bodies[bookie] or "") and all(
                "bookie_disk_free_bytes{" in (body or "") for body in bodies.values()
            ):
                return bodies
            await asyncio.sleep(0.1)


async def set_read_only(cluster: DaemonCluster, bookie: str, *, read_only: bool) -> None:
    """As `bookie node readonly` does."""
    url = f"http://127.0.0.1:{cluster.http_ports[bookie]}/read-only"
    headers = {BOOKIE_ID_METADATA_KEY: bookie}
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, json={"read_only": read_only}, headers=headers) as answer,
    ):
        assert answer.status == 200


@proves("BookieDown", "BookiesTooFew", "BookieReadOnly", "BookieDescriptorsRunOut")
async def test_a_cluster_in_which_one_after_the_other_fails(
    tmp_path: Path, prometheus: Scrapes
) -> None:
    """Three bookies: for an hour nothing is wrong, then one alert after the other fires."""
    async with daemon_cluster(f"local://{tmp_path}/metadata", tmp_path) as cluster:
        prometheus.hold(70, **await scraped_at_status(cluster, "b1", 1))
        prometheus.fire()

        await set_read_only(cluster, "b2", read_only=True)
        prometheus.hold(5, **await scraped_at_status(cluster, "b2", 0))
        prometheus.fire("BookiesTooFew")
        prometheus.hold(1)
        prometheus.fire("BookiesTooFew", "BookieReadOnly")
        await set_read_only(cluster, "b2", read_only=False)
        prometheus.hold(5, **await scraped_at_status(cluster, "b2", 1))
        prometheus.fire()

        pid = cluster.daemons["b1"].process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = await cluster.metric("b1", "process_open_fds")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (int(used / 0.9), limits[1]))
        prometheus.hold(5, **await scraped(cluster))
        prometheus.fire()
        prometheus.hold(1)
        prometheus.fire("BookieDescriptorsRunOut")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        prometheus.hold(5, **await scraped(cluster))
        prometheus.fire()

        cluster.daemons["b3"].process.kill()
        await cluster.daemons["b3"].end()
        without = await scraped(cluster)
        assert without["b3"] is None
        prometheus.hold(1, **without)
        prometheus.fire()
        prometheus.hold(1)
        prometheus.fire("BookieDown")
        prometheus.hold(1)
        prometheus.fire("BookieDown", "BookiesTooFew")
        prometheus.hold(75)
        prometheus.fire("BookieDown", "BookiesTooFew")


@proves("BookieRestarts")
def test_a_bookie_that_ends_again_and_again(prometheus: Scrapes) -> None:
    """Its supervisor starts it every two minutes, so that it is never down for long."""
    program = "from bookie.telemetry import Metrics; print(Metrics().exposition()[0].decode())"
    for life in range(4):
        body = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        prometheus.hold(1, b1=without_status(body))
        prometheus.fire(*["BookieRestarts"] * (life > 2))
        prometheus.hold(1, b1=None)


# ---- the metadata store


class LoopClock(SystemClock):
    """The time of the event loop that runs."""

    def monotonic(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()


@proves("BookieMetadataAway", "BookieNotRegistered")
def test_an_outage_of_the_metadata_store(prometheus: Scrapes) -> None:
    """Both fire within three minutes, long before a bookie may give up; in virtual time."""
    metrics, healthy, readiness = Metrics(), Metrics(), Readiness()
    healthy.server_status.set(1)
    registration = Registration("b1", (Endpoint("bookie", "host", 3181, "grpc"),))
    loop = simulated_loop()

    async def life() -> None:
        async with (
            FaultyMemoryStore("outage", session_timeout_seconds=10, clock=LoopClock()) as store,
            beside(
                [obey_session_policy(store, SessionSettings(), metrics, readiness, clock=loop.time)]
            ),
            BookieRegistration(store, registration) as registered,
        ):
            for minute in range(4):
                show_registration(registration, registered, metrics, readiness, {})
                others = dict.fromkeys(("b2", "b3", "b4"), healthy.exposition()[0].decode())
                prometheus.hold(1, b1=metrics.exposition()[0].decode(), **others)
                away = ["BookieMetadataAway"] * (minute > 0)
                prometheus.fire(*away, *["BookieNotRegistered"] * (minute > 2))
                store.disconnect()
                await asyncio.sleep(60)
            store.reconnect()

    loop.run(life())


@proves("BookieGarbageStopped", "BookieLedgersAbsent")
async def test_a_store_that_went_back_in_time(tmp_path: Path, prometheus: Scrapes) -> None:
    """The bookie deletes nothing. A ledger without proof waits, and is told of long before."""
    async with collecting(tmp_path) as place:
        metrics = place.room.machine.metrics
        await place.create(range(1, 10))
        await place.count_ids_to(100)
        await place.round()
        prometheus.hold(2, b1=exposed(metrics))
        prometheus.fire()
        await place.lose([1])
        await place.round()
        assert await place.stored() == list(range(1, 10))
        prometheus.hold(60, b1=exposed(metrics))
        prometheus.fire()
        prometheus.hold(1)
        prometheus.fire("BookieLedgersAbsent")
        assert GarbageSettings().grace_seconds >= 20 * 3600
        await place.count_ids_to(99)
        await place.round()
        prometheus.hold(1, b1=exposed(metrics))
        prometheus.fire("BookieGarbageStopped", "BookieLedgersAbsent")
        assert await place.stored() == list(range(1, 10))


# ---- disks


@pytest.mark.parametrize(
    ("bytes_per_second", "free_share", "told_minutes_before"),
    [(600_000_000, 1.0, 10), (100_000_000, 1.0, 60), (10_000_000, 0.16, 150)],
)
@proves("BookieDiskFullSoon")
async def test_a_disk_that_fills_up(
    bytes_per_second: int,
    free_share: float,
    told_minutes_before: int,
    machine: Machine,
    prometheus: Scrapes,
) -> None:
    """A terabyte, from as fast as a bookie writes down to slow. Long before it is read-only."""
    free = int(free_share * TERABYTE)
    async with watching_a_disk(machine, lambda: DiskUsage(TERABYTE, free, 1)) as (watch, room):
        while not room.bookie.read_only:
            await watch.look()
            prometheus.hold(1, b1=exposed(machine.metrics, "bookie_disk_"))
            if prometheus.minutes == 20:
                prometheus.fire()
            if prometheus.minutes >= 20:
                free -= 60 * bytes_per_second
    told_at = prometheus.minutes - told_minutes_before
    nearly_full = ["BookieDiskFillsUp"] * (free_share < 0.5)
    prometheus.expected.append((told_at, frozenset({"BookieDiskFullSoon", *nearly_full})))


@proves("BookieDiskFillsUp")
async def test_a_disk_that_is_nearly_full(machine: Machine, prometheus: Scrapes) -> None:
    """It hardly fills any more."""
    free = 0.151 * TERABYTE
    async with watching_a_disk(machine, lambda: DiskUsage(TERABYTE, int(free), 1)) as (watch, _):
        await watch.look()
        prometheus.hold(20, b1=exposed(machine.metrics, "bookie_disk_"))
        free = 0.149 * TERABYTE
        await watch.look()
        prometheus.hold(10, b1=exposed(machine.metrics, "bookie_disk_"))
        prometheus.fire()
        prometheus.hold(1)
        prometheus.fire("BookieDiskFillsUp")


@asynccontextmanager
async def watching_a_disk(
    machine: Machine, usage: Callable[[], DiskUsage]
) -> AsyncIterator[tuple[DiskWatch, Room]]:
    """A bookie, and the watch over its two directories on one device."""

    async def has_room() -> bool:
        return True

    async with serving_node(machine) as room:
        watch = DiskWatch(
            room.bookie,
            room.engine,
            NodeSettings(),
            machine.metrics,
            lambda: dict.fromkeys(("journal", "ledgers"), usage()),
            has_room,
        )
        yield watch, room


class MovedClock(MachineClock):
    """The real time, and what the test lets pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def monotonic(self) -> float:
        """Ahead of the real one."""
        return super().monotonic() + self.seconds


class SlowDisk(FaultyDisk):
    """Each sync of the journal takes `seconds` of the machine's clock."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = 0.001

    def called(self, call: Call) -> None:
        """Let the time of a sync pass."""
        super().called(call)
        if call.name == "fdatasync" and "journal" in call.path:
            self.clock.seconds += self.seconds


@proves("BookieSlowSync")
async def test_a_journal_whose_syncs_are_slow(tmp_path: Path, prometheus: Scrapes) -> None:
    """Not slow enough for an error, and a thousand times as slow as an SSD."""
    clock = MovedClock()
    disk = SlowDisk(clock)
    machine = Machine(tmp_path / "m", disk=disk, clock=clock)
    async with machine.engine() as engine:
        for minute in range(30):
            disk.seconds = 0.001 if minute < 10 else 0.3
            await add_to_engine(engine, 7, [minute])
            prometheus.hold(1, b1=exposed(machine.metrics))
            if minute in (9, 18):
                prometheus.fire()
    prometheus.fire("BookieSlowSync")


@proves("BookieAddsWait")
async def test_a_checkpoint_that_is_late(tmp_path: Path, prometheus: Scrapes) -> None:
    """Adds wait for the device of the index."""
    machine = Machine(tmp_path / "m", changes={"checkpoint_entries": 10})
    async with serving_node(machine) as room:
        machine.store.gate = gate = Hold("commit", "index")
        try:
            assert (await add(room.bookie, 7, range(10))).status is Status.OK
            await until(lambda: room.engine.admission.memtable.entries == 0)
            prometheus.hold(5, b1=exposed(machine.metrics))
            prometheus.fire()
            assert (await add(room.bookie, 7, range(10, 30))).status is Status.OK
            assert not room.bookie.try_admit_add(100)
            prometheus.hold(2, b1=exposed(machine.metrics))
            prometheus.fire("BookieAddsWait")
        finally:
            gate.release()


@proves("BookieEndsConnections")
async def test_a_client_that_opens_connections_again_and_again(
    prometheus: Scrapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One burst is nobody's trouble; a client that cannot keep its connections is."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connections, "SOON_SECONDS", 0.01)
    metrics, bounds = Metrics(), ConnectionBounds(100, 2, 0)

    def ended() -> float | None:
        return metrics.registry.get_sample_value(
            "bookie_connections_ended_total", {"reason": "address"}
        )

    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as accepted:
        address = listening.getsockname()
        sockets = OwnSockets([address[1]])
        work = bound_connections(sockets, lambda: bounds, lambda _: False, metrics)

        async def burst() -> None:
            before = ended()
            assert before is not None
            for _ in range(5):
                accepted.enter_context(socket.create_connection(address))
                accepted.enter_context(listening.accept()[0])
            await until(lambda: ended() == before + 3)
            accepted.close()

        async with beside([work]):
            prometheus.hold(10, b1=exposed(metrics))
            await burst()
            prometheus.hold(15, b1=exposed(metrics))
            prometheus.fire()
            for _ in range(12):
                await burst()
                prometheus.hold(1, b1=exposed(metrics))
    prometheus.fire("BookieEndsConnections")


@proves("BookieLoopLags")
def test_an_event_loop_without_time(prometheus: Scrapes) -> None:
    """Slices of Python of 0.6 s, in virtual time."""
    metrics, loop = Metrics(), simulated_loop()

    async def life() -> None:
        async with beside([observe_loop_lag(metrics.loop_lag_seconds.observe)]):
            for minute in range(25):
                end = loop.time() + 60
                while loop.time() < end:
                    await asyncio.sleep(0.5)
                    loop.block(0.6 if minute >= 10 else 0.001)
                prometheus.hold(1, b1=exposed(metrics))
                if minute in (9, 18):
                    prometheus.fire()

    loop.run(life())
    prometheus.fire("BookieLoopLags")


# ---- entries


@pytest.mark.parametrize("kind", ["conflict", "corruption", "read", "scrub"])
@proves("BookieLostData")
async def test_damage_however_it_is_found(kind: str, tmp_path: Path, prometheus: Scrapes) -> None:
    """Once found, it is told of until the next start."""
    machine = Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 1 << 40})
    async with machine.engine() as engine:
        for entry_id in range(8):
            await add_to_engine(engine, 7, [entry_id], size=KIB)
        await engine.checkpoint()
        prometheus.hold(1, b1=exposed(machine.metrics))
        prometheus.fire()
        killed = machine.killed("kill")
        if kind == "conflict":
            refused = await add_to_engine(engine, 7, [3], salt=1)
            assert refused.status is Status.CONFLICT
        elif kind == "read":
            UnreadableEntries(machine.clock, machine.metrics).note(7, 3, "the device said so")
        elif kind == "scrub":
            flip(machine.journals()[0], b"7/3/0:")
            await engine.scrubber.scrub()
    if kind == "corruption":
        # The index's mark lies behind the end of the file, so a start finds it cut.
        (journal,) = killed.journals()
        journal.write_bytes(journal.read_bytes()[: 4 * KIB])
        async with killed.engine():
            pass
        machine = killed
    doubt = machine.metrics.registry.get_sample_value("bookie_integrity_check_needed")
    assert doubt == (kind in ("corruption", "scrub"))
    prometheus.hold(9, b1=exposed(machine.metrics))
    prometheus.fire("BookieLostData")


def flip(path: Path, what: bytes) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


@proves("BookieMissesEntries", "BookieInDoubt", "BookieLedgersInLimbo")
async def test_entries_that_a_bookie_lacks(
    machine: Machine, store: MetadataStore, prometheus: Scrapes
) -> None:
    """Told of at once; doubt and limbo only if no repair comes."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        await one.check.check()
        prometheus.hold(2, b1=exposed(machine.metrics))
        prometheus.fire()
        await LedgerManager(store).create(metadata(2, CLOSED, ("b1",), last=9))
        await one.check.check()
        prometheus.hold(10, b1=exposed(machine.metrics))
        prometheus.fire("BookieMissesEntries")
        prometheus.hold(1)
        prometheus.fire("BookieMissesEntries", "BookieInDoubt")
        await one.engine.set_limbo(await one.engine.load(2), in_limbo=True)
        prometheus.hold(60, b1=exposed(machine.metrics))
        prometheus.fire("BookieMissesEntries", "BookieInDoubt")
        prometheus.hold(1)
        prometheus.fire("BookieMissesEntries", "BookieInDoubt", "BookieLedgersInLimbo")
        assert (await add(one.bookie, 2, range(10), recovery=True)).status is Status.OK
        assert (await one.check.check()).missing_entries == 0
        prometheus.hold(6, b1=exposed(machine.metrics))
        prometheus.fire()


class Broken(LedgerManager):
    """Ledgers that cannot be listed while `is_away` is set."""

    is_away = False

    def list_readable(
        self, on_damaged: Callable[[int], object], after: int = -1
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """It breaks off."""
        if self.is_away:
            raise MetadataUnavailableError("the metadata store does not answer")
        return super().list_readable(on_damaged, after)


@proves("BookieCheckIsOld")
async def test_checks_that_never_end(
    tmp_path: Path, store: MetadataStore, prometheus: Scrapes
) -> None:
    """The listing of ledgers breaks each time, for a day."""
    clock = MovedClock()
    machine = Machine(tmp_path / "m", clock=clock)
    ledgers = Broken(store)
    async with started(machine, store, ledgers) as one:
        ledgers.is_away = True
        for hours in (23, 2):
            clock.seconds += 3600 * hours
            with pytest.raises(MetadataUnavailableError):
                await one.check.check()
            prometheus.hold(1, b1=exposed(machine.metrics))
            prometheus.fire(*["BookieCheckIsOld"] * (hours == 2))


@proves("BookieCertificateExpires")
def test_a_certificate_that_is_not_renewed(prometheus: Scrapes) -> None:
    """Two weeks before its end, until the bookie has taken a new one. promtool begins in 1970."""
    metrics = Metrics()
    expiry = metrics.certificate_expiry_timestamp_seconds
    expiry.labels("ca").set(3650 * 86400)
    expiry.labels("certificate").set(14 * 86400 + 300)
    prometheus.hold(3, b1=exposed(metrics))
    prometheus.fire()
    prometheus.hold(5)
    prometheus.fire("BookieCertificateExpires")
    expiry.labels("certificate").set(90 * 86400)
    prometheus.hold(1, b1=exposed(metrics))
    prometheus.fire()


@proves("BookieErrors")
def test_a_fault_of_the_program(prometheus: Scrapes) -> None:
    """A request met one; ten minutes later the alert is over."""
    metrics = Metrics()
    prometheus.hold(10, b1=exposed(metrics))
    prometheus.fire()
    assert ErrorMapper(metrics).reply("add", KeyError("x")).status is Status.IO_ERROR
    prometheus.hold(1, b1=exposed(metrics))
    prometheus.fire("BookieErrors")
    prometheus.hold(11)
    prometheus.fire()


# ---- repair


@proves("BookieRepairSplit", "BookieRepairStalls", "BookieAuditIsOld")
async def test_copies_that_do_not_come_back(tmp_path: Path, prometheus: Scrapes) -> None:
    """A ledger without a spare; then most bookies are away, so that nobody is lost."""
    metrics = Metrics()
    settings = RepairSettings(lost_bookie_delay_seconds=0.1, retry_seconds_max=1)
    clock = MovedClock()
    async with (
        real_cluster(tmp_path, 5) as cluster,
        connect(cluster.uri) as client,
        open_ledger_client(cluster.store, Sources.read(None, {}), RpcSettings()) as ledgers,
    ):
        writer = await client.create_ledger(ensemble_size=5, write_quorum_size=5, ack_quorum_size=3)
        await writer.append(b"entry")
        await writer.close()
        marks = UnderreplicationManager(cluster.store, "worker", clock)
        worker = RepairWorker(
            ledgers, cluster.store, lambda: settings, metrics, clock, "worker", marks
        )
        async with beside([Auditor(worker).run(), Replicator(worker).run()]):
            await eventually(lambda: metrics.repair_auditor._value.get() == 1)
            await eventually(lambda: metrics.repair_audit_age_seconds._value.get() >= 0)
            prometheus.hold(10, b1=exposed(metrics))
            prometheus.fire()
            await cluster.stop(1)
            clock.seconds += 60
            await eventually(lambda: metrics.repair_marked_ledgers._value.get() == 1)
            prometheus.hold(59, b1=exposed(metrics))
            prometheus.fire()
            prometheus.hold(2)
            prometheus.fire("BookieRepairStalls")
            for number in (2, 3):
                await cluster.stop(number)
            clock.seconds += 60
            await eventually(lambda: metrics.repair_split._value.get() == 1)
            prometheus.hold(4, b1=exposed(metrics))
            prometheus.fire("BookieRepairStalls")
            prometheus.hold(2)
            prometheus.fire("BookieRepairStalls", "BookieRepairSplit")
            metrics.repair_audit_age_seconds.set(4 * 86400)
            prometheus.hold(1, b1=exposed(metrics))
            prometheus.fire("BookieRepairStalls", "BookieRepairSplit", "BookieAuditIsOld")


def test_a_process_that_repairs_is_no_bookie(prometheus: Scrapes) -> None:
    """Nothing fires for ``bookie repair serve``, which takes no entries."""
    prometheus.hold(10, b1=RepairProcessMetrics().exposition()[0].decode())
    prometheus.fire()
