"""All servers of an ensemble stop for twice the lease, with 200 sessions that hold registrations.

Every session is lost by then. What is wanted when the servers come back: all are registered again
within three leases, and nobody storms the servers meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import pytest

from bookie.cluster import keys
from bookie.cluster.registration import BookieRegistration, RegistrationManager
from bookie.formats.registration import Endpoint, Registration
from bookie.metadata.connect import open_store
from tests.servers.etcd import EtcdCluster
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble, new_scope

SESSIONS = 200
OPENED_AT_A_TIME = 20
LEASE_SECONDS = 4.0
CONNECTIONS_OF_A_SESSION_MAX = 10
"""While the servers are away for two leases, and until it is registered again."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Three servers, seen through proxies that count."""

    uri: str
    proxies: Sequence[Proxy]
    pause: Sequence[Callable[[], None]]
    resume: Sequence[Callable[[], None]]

    @property
    def connections(self) -> int:
        """Made so far."""
        return sum(proxy.accepted for proxy in self.proxies)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All servers stopped in their tracks."""
        for pause in self.pause:
            pause()
        try:
            yield
        finally:
            for resume in self.resume:
                resume()


def _ensemble(
    stack: ExitStack,
    scheme: str,
    ports: Sequence[int],
    pause: Sequence[Callable[[], None]],
    resume: Sequence[Callable[[], None]],
) -> Ensemble:
    proxies = [stack.enter_context(Proxy(port)) for port in ports]
    hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    return Ensemble(f"{scheme}://{hosts}{new_scope()}", proxies, pause, resume)


@pytest.fixture
async def etcd(etcd_cluster: EtcdCluster) -> AsyncIterator[Ensemble]:
    """Three etcd servers."""
    members = list(etcd_cluster.members.values())
    with ExitStack() as stack:
        yield _ensemble(
            stack,
            "etcd",
            [member.port for member in members],
            [member.pause for member in members],
            [member.resume for member in members],
        )


@pytest.fixture
def zk(zookeeper_ensemble: ZooKeeperEnsemble) -> Iterator[Ensemble]:
    """Three ZooKeeper servers."""
    servers = list(zookeeper_ensemble.servers.values())
    with ExitStack() as stack:
        yield _ensemble(
            stack,
            "zk",
            [server.port for server in servers],
            [server.process.pause for server in servers],
            [server.process.resume for server in servers],
        )


def _registration(number: int) -> Registration:
    return Registration(
        bookie_id=f"b{number:03}",
        endpoints=(Endpoint("bookie", "127.0.0.1", 1 + number, "grpc"),),
        labels={},
        total_bytes=1,
        free_bytes=1,
        read_only=False,
        version="test",
    )


@asynccontextmanager
async def _registered(uri: str) -> AsyncIterator[list[BookieRegistration]]:
    """`SESSIONS` sessions, each with a registration of its own."""
    registrations: list[BookieRegistration] = []
    async with AsyncExitStack() as stack:
        turns = asyncio.Semaphore(OPENED_AT_A_TIME)

        async def register(number: int) -> None:
            async with turns:
                store = await stack.enter_async_context(
                    open_store(uri, session_timeout_seconds=LEASE_SECONDS)
                )
                manager = RegistrationManager(store)
                registrations.append(
                    await stack.enter_async_context(manager.register(_registration(number)))
                )

        async with asyncio.TaskGroup() as tasks:
            for number in range(SESSIONS):
                tasks.create_task(register(number))
        yield registrations


async def test_a_full_stop_of_etcd(etcd: Ensemble) -> None:
    """Twice the lease without any server; then three leases are enough for everybody."""
    await _stop_and_come_back(etcd)


async def test_a_full_stop_of_zookeeper(zk: Ensemble) -> None:
    """The same."""
    await _stop_and_come_back(zk)


async def _stop_and_come_back(ensemble: Ensemble) -> None:
    async with (
        open_store(ensemble.uri) as observer,
        _registered(ensemble.uri) as registrations,
    ):
        assert len(await observer.get_children(keys.WRITABLE)) == SESSIONS
        before = ensemble.connections
        with ensemble.stopped():
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert not any(one.is_registered for one in registrations), "lost before the server's"
        async with asyncio.timeout(3 * LEASE_SECONDS):
            while not all(one.is_registered for one in registrations):  # noqa: ASYNC110  (200 of them)
                await asyncio.sleep(0.05)
        made = ensemble.connections - before
        print(f"{made} connections of {SESSIONS} sessions")
        assert made <= SESSIONS * CONNECTIONS_OF_A_SESSION_MAX
        await observer.sync()
        names = await observer.get_children(keys.WRITABLE)
        assert names == [f"b{number:03}" for number in range(SESSIONS)]
        for one in registrations:
            assert one.is_registered
