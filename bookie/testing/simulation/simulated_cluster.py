"""Simulated processes with bookies and clients, and a metadata store, in one real process.

A bookie starts and stops by the same steps as in the daemon. Each simulated process has its own
session with the metadata store in memory. After the crash of a process, only its disk remains.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, Self

from bookie.addresses import join_address
from bookie.api import BookKeeper
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.endpoints import FRAMES
from bookie.cluster.instance import initialize_cluster, read_instance_id
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint
from bookie.config import GarbageSettings, NodeSettings, RepairSettings, RpcSettings, Sources
from bookie.config.sections import SessionSettings
from bookie.daemon.readiness import Readiness
from bookie.daemon.registration_updater import RegistrationUpdater, keep_registered
from bookie.daemon.session_policy import obey_session_policy
from bookie.env import Clock, beside
from bookie.errors import BookieError, MetadataUnavailableError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.memory.tree import forget_tree
from bookie.metadata.model import NOT_EXISTS, Operation, Put, Record, Stat
from bookie.node.bookie import Bookie
from bookie.node.garbage import GarbageCollector
from bookie.node.own_copies import OwnCopies
from bookie.node.start import StartedBookie, start_bookie
from bookie.repair.own_damage import OwnDamage
from bookie.repair.service import keep_repairing
from bookie.security.rates import LogDirectory, Rates
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import SimulatedLoop
from bookie.testing.simulation.machine import DiedError, Left, SimulatedMachine
from bookie.testing.simulation.platter import Cut
from bookie.testing.simulation.simulated_network import (
    PROCESS,
    SimulatedNetwork,
    SimulatedPort,
    SimulatedProcess,
    run_in,
)
from bookie.wire.frames.server import FramesPort, hold_frames_port
from bookie.wire.grpc.server.grpc_call import grpc_handlers
from bookie.wire.grpc.server.grpc_server import _Gate
from bookie.wire.server.service import BookieService

STORE_NAME = "simulated-cluster"
SIMULATED_URI = f"memory://{STORE_NAME}"
"""The metadata URI of the cluster for its clients; only one simulated cluster exists at a time."""

SESSION_SECONDS = 3.0
METADATA_SECONDS, SLOW_METADATA_SECONDS = (0.0002, 0.003), (0.05, 0.8)
"""The durations of a request to the metadata store, usual and slow, as ranges of seconds."""

SILENCE_SECONDS_MAX = 2.0
"""The longest time in seconds that a client waits for a lost reply."""

DRAIN_SECONDS = 1.0
BOOKIE_PORT, FRAMES_PORT = 3181, 3182
STOP_SECONDS_MAX = 30.0

CLIENT = {
    "client.add_timeout_seconds": "1.0",
    "client.replace_after_seconds": "0.6",
    "client.changes_per_minute_max": "200",
    "client.read_timeout_seconds": "1.0",
    "client.connect_timeout_seconds": "1.0",
    "client.speculative_read_seconds": "0.3",
    "client.tail_refresh_seconds": "2.0",
    "client.batch_entries_max": "16",
}
"""Client settings with short times, so that one minute contains many changes."""

GARBAGE = GarbageSettings(interval_seconds=5.0)
LIMITS = NodeSettings(integrity_check_interval_seconds=4.0)
SESSION = SessionSettings(give_up_after_timeouts=10.0)
RPC = RpcSettings()

_metrics: dict[str, Metrics] = {}
_sources: list[Sources] = []


def metrics_of(host: str) -> Metrics:
    """Return the metrics of a host; all seeds share them, because creating metrics is slow."""
    if host not in _metrics:
        _metrics[host] = Metrics()
    return _metrics[host]


def client_sources() -> Sources:
    """Return the settings of all clients, which are read only once."""
    if not _sources:
        _sources.append(Sources.read(None, CLIENT, environment={}))
    return _sources[0]


class SimulatedSession(FaultyMemoryStore):
    """A session whose requests take time; a request, or the reply to it, may be lost."""

    def __init__(self, cluster: SimulatedCluster, process: SimulatedProcess) -> None:
        super().__init__(STORE_NAME, session_timeout_seconds=SESSION_SECONDS, clock=cluster.clock)
        self._cluster = cluster
        self._process = process
        self.is_entered = False
        """True while the process lives and uses its connection to the metadata store."""
        self._unsure: dict[str, bytes] = {}
        """By the key of a ledger, the value of a compare-and-set that got no reply."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_entered = False
        if self._process.is_alive:
            await super().__aexit__()
            return
        # The session ends when the server has waited for the whole session timeout.
        latest = self._clock.monotonic() + self.session_timeout_seconds
        self._server_deadline = min(self._server_deadline, latest)
        self._set_alarm(None)
        self._loop = None
        self._watches.end()
        self._session_watches.end()

    def reconnect(self) -> None:
        """Restore the connection to the metadata store, if the process is still alive."""
        if self._process.is_alive:
            super().reconnect()

    async def get(self, key: str) -> Record | None:
        record = await super().get(key)
        wanted = self._unsure.pop(key, None)
        if wanted is not None:
            is_ours = record is not None and record.value == wanted
            self._cluster.count("lost CAS reply: " + ("success" if is_ours else "conflict"))
        return record

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        share = self._cluster.lost_replies
        draw = self._cluster.metadata_chance.random() if share else 1.0
        if draw < share / 2:
            self._remember(operations)
            await self._reach()
            raise MetadataUnavailableError("the request was lost")
        if draw < share:
            self._remember(operations)
            with suppress(BookieError):
                await super().transaction(operations)
            await asyncio.sleep(SILENCE_SECONDS_MAX * self._cluster.metadata_chance.random() ** 2)
            raise MetadataUnavailableError("the reply was lost")
        stats = await super().transaction(operations)
        if self._outage is not None:
            self._remember(operations)
            raise MetadataUnavailableError("the metadata store does not answer any more")
        return stats

    async def _reach(self) -> None:
        low, high = SLOW_METADATA_SECONDS if self._cluster.slow_metadata else METADATA_SECONDS
        chance = self._cluster.metadata_chance
        self.latency_seconds = low + (high - low) * chance.random()
        await super()._reach()

    def _remember(self, operations: Sequence[Operation]) -> None:
        first = operations[0]
        if not isinstance(first, Put) or not first.key.startswith(keys.LEDGERS):
            return
        if first.version not in {None, NOT_EXISTS}:
            self._unsure[first.key] = first.value


class SimulatedBookie:
    """One bookie of the simulation, with all of its lives."""

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.host = f"b{number + 1}"
        self.left = Left()
        self.lives = 0
        self.machine: SimulatedMachine | None = None
        self.process: SimulatedProcess | None = None
        self.session: SimulatedSession | None = None
        self.is_serving = False
        self.wipes = 0
        """The number of times that the bookie's disks were replaced with empty disks."""
        self.incarnations: list[str] = []
        self.node: Bookie | None = None
        """The bookie's node, while the bookie serves."""
        self.garbage: GarbageCollector | None = None
        """The bookie's garbage collector, while the bookie serves."""
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._died = asyncio.Event()
        self._image_taken = False
        self.failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.host}, life {self.lives}, {'serving' if self.is_serving else 'away'}>"

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start the bookie with the state that its last life left."""
        assert not self.is_running
        self.lives += 1
        cluster = self.cluster
        self.machine = SimulatedMachine(
            self.left,
            cluster.seed * 10_000 + self.number * 1000 + self.lives,
            loop=cluster.loop,
            interleaving=cluster.interleaving,
            changes=cluster.storage,
        )
        if cluster.sync_seconds:
            self.machine.disk.fail(
                "fdatasync", "journal", "stall", seconds=cluster.sync_seconds, times=10**9
            )
        self.process = SimulatedProcess(self.host, self.lives)
        self._stop, self._died = asyncio.Event(), asyncio.Event()
        self._image_taken = False
        self.failure = None
        cluster.live_processes[self.host] = self.process
        self._task = cluster.loop.create_task(
            self._live(), name=f"bookie {self.host}", context=run_in(self.process)
        )

    def kill(self, *, power: bool = False) -> None:
        """End the bookie's process at once; with `power`, unsynced bytes may be lost."""
        if not self.is_running or self.machine is None or self.process is None:
            return
        self._leave_image(power=power)
        self._died.set()

    async def stop(self) -> None:
        if self._task is None:
            return
        self._stop.set()
        await asyncio.wait([self._task], timeout=STOP_SECONDS_MAX)
        if not self._task.done():
            self.kill()

    async def until_ended(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def _leave_image(self, *, power: bool = False) -> None:
        """Store the image of the disk at the end of the process; ignore later writes."""
        assert self.machine is not None
        assert self.process is not None
        if self._image_taken:
            return
        self._image_taken = True
        choose = self.cluster.choose
        # The next life keeps the setting of the wall clock.
        seconds = self.machine.clock.started
        left = replace(self.machine.leaves(), lives=self.lives, seconds=seconds)
        self.left = left.after_power_cut(Cut(choose)) if power else left.after_kill(choose)
        self.machine.disk.die()
        self.is_serving = False
        if self.session is not None and self.session.is_entered:
            self.session.disconnect()
        self.cluster.network.crash(self.process)

    async def _live(self) -> None:
        assert self.machine is not None
        try:
            await self._serve(self.machine)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (any end of a process)
            if not self._died.is_set():
                self.failure = error
                cause = _innermost(error)
                self.cluster.note(f"{self.host} ended: {cause!r}")
                if not isinstance(cause, BookieError):
                    self.cluster.unexpected.append(error)
        finally:
            self.is_serving, self.node, self.garbage = False, None, None
            self._leave_image()

    async def _serve(self, machine: SimulatedMachine) -> None:
        """Serve like `bookie.daemon.daemon`."""
        cluster, process = self.cluster, self.process
        assert process is not None
        gate, metrics, readiness = _Gate(), metrics_of(self.host), Readiness()
        address = join_address(self.host, BOOKIE_PORT)
        cluster.network.listen(address, SimulatedPort(process, gate.service))
        self.session = SimulatedSession(cluster, process)
        async with (
            self.session as store,
            beside(
                [
                    obey_session_policy(
                        store, SESSION, metrics, readiness, clock=cluster.loop.time
                    ),
                    self._dies(),
                ]
            ),
        ):
            instance_id = await read_instance_id(store)
            async with (
                self._hold_frames() as frames,
                start_bookie(
                    machine.environment,
                    machine.settings,
                    LIMITS,
                    metrics,
                    cookies=CookieManager(store),
                    ledgers=LedgerManager(store),
                    bookie_id=self.host,
                    instance_id=instance_id,
                    garbage=GARBAGE,
                ) as started,
                self._port(gate, self._service(started.bookie, metrics), frames),
            ):
                self.incarnations.append(started.bookie.incarnation)
                endpoints = [Endpoint("bookie", self.host, BOOKIE_PORT, "grpc")]
                endpoints += [Endpoint(FRAMES, self.host, one.port, FRAMES) for one in frames]
                updater = RegistrationUpdater(
                    started.bookie,
                    tuple(endpoints),
                    {},
                    {},
                    lambda: started.check.needed,
                    lambda: started.garbage.store_doubt,
                )
                registration = await updater.registration()
                async with (
                    BookieRegistration(store, registration, instance_id=instance_id) as registered,
                    beside(
                        [
                            keep_registered(updater, registered, metrics, readiness),
                            *self._repair(store, started, metrics),
                        ]
                    ),
                ):
                    self.is_serving = True
                    self.node, self.garbage = started.bookie, started.garbage
                    try:
                        await self._stop.wait()
                    except asyncio.CancelledError:
                        if started.engine.failure is not None:
                            # The daemon would end its process now, before any tasks finish.
                            self._leave_image()
                        raise
                    self.is_serving = False

    def _repair(
        self, store: SimulatedSession, started: StartedBookie, metrics: Metrics
    ) -> list[Coroutine[Any, Any, NoReturn]]:
        settings, clock = self.cluster.repair, self.cluster.clock
        if settings is None:
            return []
        assert clock is not None
        own_damage = OwnDamage(store, self.host)
        started.check.on_incomplete = own_damage.note
        own_copies = OwnCopies(started.engine, started.garbage)
        return [
            keep_repairing(
                *(store, client_sources(), RPC, lambda: settings, metrics, clock, self.host),
                *(own_damage, own_copies),
            )
        ]

    @asynccontextmanager
    async def _hold_frames(self) -> AsyncIterator[tuple[FramesPort, ...]]:
        """Listen on the port for frames if the bookie has one; yield the port, or nothing."""
        if self.host not in self.cluster.by_frames:
            yield ()
            return
        async with hold_frames_port(self.host, FRAMES_PORT, RPC) as held:
            yield (held,)

    @asynccontextmanager
    async def _port(
        self, gate: _Gate, service: BookieService, frames: tuple[FramesPort, ...]
    ) -> AsyncIterator[None]:
        gate.service_handlers = grpc_handlers(service.handlers())
        for one in frames:
            one.serve(service.handlers())
        try:
            yield
        finally:
            gate.service_handlers = None
            service.end_streams()
            if self.process is not None and self.process.is_alive:
                await asyncio.sleep(DRAIN_SECONDS / 10)
                for one in frames:
                    await one.stop(DRAIN_SECONDS / 10)

    def _service(self, node: Bookie, metrics: Metrics) -> BookieService:
        limited = metrics.rate_limited_total
        rates = Rates(
            lambda: node.settings,
            self.cluster.loop.time,
            lambda kind: limited.labels(kind).inc(),
            LogDirectory(),
        )
        return BookieService(node, LIMITS, metrics, rates=rates)

    async def _dies(self) -> None:
        await self._died.wait()
        raise DiedError


class SimulatedClient:
    """A client process: the real `BookKeeper` with its own session."""

    def __init__(self, cluster: SimulatedCluster, host: str) -> None:
        self.cluster = cluster
        self.host = host
        self.process = SimulatedProcess(host)
        self.sessions: list[SimulatedSession] = []
        """The metadata sessions of the process, one for each `BookKeeper`."""
        self.bookkeeper: BookKeeper | None = None

    async def connect(self) -> BookKeeper:
        """Connect the client; call this method in a task of the client's process."""
        assert PROCESS.get() is self.process
        self.cluster.live_processes[self.host] = self.process
        self.bookkeeper = BookKeeper(
            SIMULATED_URI,
            client_sources(),
            RPC,
            session_timeout_seconds=SESSION_SECONDS,
            names_writer=False,  # no auditor runs, and the seed's random draws stay the same
        )
        return await self.bookkeeper.__aenter__()

    def vanish(self) -> None:
        """End the client's process at once; none of its later messages arrives."""
        for session in self.sessions:
            if session.is_entered:
                session.disconnect()
        self.cluster.network.crash(self.process)
        self.cluster.live_processes.pop(self.host, None)

    async def aclose(self) -> None:
        """Close the client; after `vanish`, other processes do not notice this."""
        if self.bookkeeper is not None:
            await self.bookkeeper.aclose()
        if self.process.is_alive:
            self.cluster.network.crash(self.process)
            self.cluster.live_processes.pop(self.host, None)


class SimulatedCluster:
    """The simulated processes of one seed, with network, metadata store and a report of events."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        seed: int,
        bookies: int,
        *,
        interleaving: float,
        storage: dict[str, object],
        sync_seconds: float,
        by_frames: Collection[str] = (),
    ) -> None:
        """`by_frames` names the hosts of bookies with a port for frames (`bookie.wire.frames`)."""
        self.by_frames = by_frames
        self.loop = loop
        self.network = network
        self.seed = seed
        self.choose = random.Random(f"cluster/{seed}")
        self.metadata_chance = random.Random(f"metadata/{seed}")
        self.interleaving = interleaving
        self.storage = storage
        self.sync_seconds = sync_seconds
        self.clock: Clock | None = None
        self.repair: RepairSettings | None = None
        """The settings of the repair service of all bookies; None if bookies do not repair."""
        self.slow_metadata = 0
        """The number of current faults that slow down the metadata store."""
        self.lost_replies = 0.0
        """The share of metadata transactions that get no reply."""
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.unexpected: list[BaseException] = []
        """Errors that ended a bookie and are not a `BookieError`."""
        self.live_processes: dict[str, SimulatedProcess] = {}
        self.sessions: dict[str, SimulatedSession] = {}
        self.clients: list[SimulatedClient] = []
        self.awaited_fences: list[asyncio.Future[SimulatedBookie]] = []
        """Futures whose result becomes the bookie that answers the next fence."""
        self.bookies = [SimulatedBookie(self, number) for number in range(bookies)]
        self._clients_begun = 0

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def fenced(self, host: str) -> None:
        waiting, self.awaited_fences = self.awaited_fences, []
        bookie = next(bookie for bookie in self.bookies if bookie.host == host)
        for future in waiting:
            if not future.done():
                future.set_result(bookie)

    def note(self, text: str) -> None:
        """Add a line to the report of events, and to the loop's checksum `trace`."""
        self.loop.note(text)
        self.notes.append(f"{self.loop.time():10.4f}  {text}")

    def open_store(self, uri: str, **_: Any) -> SimulatedSession:
        """Return a simulated session; replaces `bookie.metadata.connect.open_store`."""
        process = PROCESS.get()
        assert uri == SIMULATED_URI
        session = SimulatedSession(self, process)
        for client in self.clients:
            if client.process is process:
                client.sessions.append(session)
        return session

    def new_client(self, name: str) -> SimulatedClient:
        self._clients_begun += 1
        client = SimulatedClient(self, f"{name}{self._clients_begun}")
        self.clients.append(client)
        return client

    def run_in_process(
        self, process: SimulatedProcess, work: Coroutine[Any, Any, None], name: str
    ) -> asyncio.Task[None]:
        return self.loop.create_task(work, name=name, context=run_in(process))

    async def initialize(self) -> None:
        """Create the cluster in the metadata store, and start all bookies."""
        admin = SimulatedProcess("admin")
        PROCESS.set(admin)
        async with SimulatedSession(self, admin) as store:
            await initialize_cluster(store)
        for bookie in self.bookies:
            bookie.start()
        while not all(bookie.is_serving for bookie in self.bookies):
            for bookie in self.bookies:
                if bookie.failure is not None:
                    raise bookie.failure
            await asyncio.sleep(0.05)

    def forget(self) -> None:
        """Free the metadata records of this seed's cluster."""
        forget_tree(STORE_NAME)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
