"""A cluster in this process: real bookies on real files behind real gRPC, metadata anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import NodeSettings, RpcSettings, StorageSettings
from bookie.env import Clock, SystemClock, ThreadWorkers, system_environment
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.bookie import Bookie
from bookie.node.start import StartedBookie, start_bookie
from bookie.telemetry import Metrics
from tests.served_node import serve_both
from tests.servers.ports import claimed_ports

WAIT_SECONDS_MAX = 120.0


class RealCluster:
    """Bookies b0, b1, … that can be stopped and started again."""

    def __init__(
        self,
        directory: Path,
        uri: str,
        store: MetadataStore,
        instance_id: str,
        *,
        offers_frames: bool = False,
    ) -> None:
        self.uri = uri
        self.store = store
        self.bookies: dict[int, Bookie] = {}
        self.nodes: dict[int, StartedBookie] = {}
        self.clocks: dict[int, Clock] = {}
        """Of bookies that do not have the machine's; taken at their next start."""
        self._directory = directory
        self._instance_id = instance_id
        self._tasks = asyncio.TaskGroup()
        self._stops: dict[int, asyncio.Event] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self.ports: dict[int, int] = {}
        """The address of each bookie, now or before; may be changed before its start."""
        self.offers_frames = offers_frames
        """Whether bookies that start offer frames in their registration."""
        self.frames_ports: dict[int, int] = {}
        """The address of each bookie for frames; it is served, even if it is not offered."""
        self.offered_grpc: dict[int, int] = {}
        self.offered_frames: dict[int, int] = {}
        """Ports that bookies offer instead, such as those of a proxy."""

    async def start(self, number: int, *, same_port: bool = True) -> None:
        """Start a bookie, on the port that it had before if it had one."""
        started = asyncio.Event()
        self._stops[number] = asyncio.Event()
        if number not in self.ports or not same_port:
            (self.ports[number],) = claimed_ports(1)
        if number not in self.frames_ports or not same_port:
            (self.frames_ports[number],) = claimed_ports(1)
        port = self.ports[number]
        self._running[number] = self._tasks.create_task(self._run(number, port, started))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await started.wait()

    def directory_of(self, number: int) -> Path:
        """The directory of everything that a bookie keeps."""
        return self._directory / f"b{number}"

    def give_address(self, number: int, other: int) -> None:
        """Give the addresses of a bookie that was stopped to another one, which is not started."""
        for ports in (self.ports, self.frames_ports):
            ports[other] = ports.pop(number)

    async def stop(self, number: int) -> None:
        """Stop a bookie; its registration goes, its files stay."""
        self._stops[number].set()
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await asyncio.wait([self._running[number]])

    async def _run(self, number: int, port: int, started: asyncio.Event) -> None:
        bookie_id = f"b{number}"
        storage = StorageSettings(
            journal_dir=self._directory / bookie_id / "journal",
            ledgers_dir=self._directory / bookie_id / "ledgers",
            index_map_bytes=1 << 30,
            reserve_bytes=0,
        )
        for path in (storage.journal_dir, storage.ledgers_dir):
            path.mkdir(parents=True, exist_ok=True)
        metrics = Metrics()
        async with (
            ThreadWorkers() as workers,
            start_bookie(
                replace(system_environment(workers), clock=self.clocks.get(number, SystemClock())),
                storage,
                NodeSettings(),
                metrics,
                cookies=CookieManager(self.store),
                ledgers=LedgerManager(self.store),
                bookie_id=bookie_id,
                instance_id=self._instance_id,
            ) as node,
            serve_both(
                node.bookie,
                "127.0.0.1",
                RpcSettings(drain_seconds=0.1),
                metrics,
                port=port,
                frames_port=self.frames_ports[number],
            ) as bound,
        ):
            endpoints: tuple[Endpoint, ...]
            by_grpc = self.offered_grpc.get(number, bound["grpc"])
            endpoints = (Endpoint("bookie", "127.0.0.1", by_grpc, "grpc"),)
            if self.offers_frames:
                offered = self.offered_frames.get(number, bound["frames"])
                endpoints += (Endpoint("frames", "127.0.0.1", offered, "frames"),)
            registration = Registration(bookie_id, endpoints, incarnation=node.bookie.incarnation)
            async with BookieRegistration(self.store, registration):
                self.bookies[number] = node.bookie
                self.nodes[number] = node
                started.set()
                await self._stops[number].wait()
                del self.bookies[number], self.nodes[number]

    async def __aenter__(self) -> RealCluster:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for stop in self._stops.values():
            stop.set()
        await self._tasks.__aexit__(None, None, None)


@asynccontextmanager
async def real_cluster(
    directory: Path, bookies: int = 3, *, uri: str = "", offers_frames: bool = False
) -> AsyncIterator[RealCluster]:
    """A new cluster with so many bookies; its metadata in the store of `uri`, or in memory."""
    uri = uri or f"memory://{directory.name}"
    async with open_store(uri) as store:
        instance_id = await initialize_cluster(store)
        async with RealCluster(
            directory, uri, store, instance_id, offers_frames=offers_frames
        ) as cluster:
            for number in range(bookies):
                await cluster.start(number)
            yield cluster


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (whatever the condition is about)
            await asyncio.sleep(0.005)
