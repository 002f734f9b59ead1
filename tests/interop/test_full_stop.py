"""All servers of an ensemble stop for twice the lease, with sessions that hold registrations.

Every session is lost by then. What is wanted when the servers come back: all are registered again,
and nobody storms the servers meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import bookie
from bookie.cluster import keys
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.servers.etcd import EtcdCluster
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble, new_scope

SESSIONS, SESSIONS_OF_A_SOAK = 40, 200
SESSIONS_OF_A_PROCESS = 20
"""Each bookie has an interpreter of its own, and the proxies run in that of the test."""

LEASE_SECONDS = 4.0
BACK_SECONDS_MAX = 120.0
"""A guard against waiting for ever. 40 sessions are back within 5 s, and 200 within 20 s."""

CONNECTIONS_OF_A_SESSION_MAX = 10
"""While the servers are away for two leases."""

SERVERS = 3
"""A session without a connection tries one after the other, and pauses then.

Servers that are back but have no leader yet accept a connection and close it at once. So a session
goes through all of them again and again until there is a leader. How long that takes depends on
the servers and the machine.
"""

ROUNDS_AT_ONCE_MAX, ROUNDS_A_SECOND_MAX = 4, 2
"""How often a session goes through all servers.

The pauses between the rounds grow from 0.1 s to two thirds of a second with this lease, and are
0.5 s on average then. A session that connected for a moment begins with short ones again.
"""

_WORKER = Path(__file__).with_name("registered_sessions.py")
_ROOT = Path(bookie.__file__).parent.parent


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


class Sessions:
    """The sessions of one other process; an async context manager that starts it."""

    def __init__(self, uri: str, first: int, count: int) -> None:
        self._words = [str(_WORKER), uri, str(LEASE_SECONDS), str(first), str(count)]
        self._tasks = asyncio.TaskGroup()
        self._process: Process
        self._reader: asyncio.Task[None]
        self.registered = 0
        """How many of them said last that they are registered."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        self._reader = self._tasks.create_task(self._read())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(60):
                await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            self._reader.cancel()
            # The body's own error passes by the group, which would wrap it.
            await self._tasks.__aexit__(None, None, None)
        if exc is None:
            assert self._process.returncode == 0

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.registered = int(line)
        self.registered = -1


@asynccontextmanager
async def _sessions(uri: str, count: int) -> AsyncIterator[Callable[[], int]]:
    """So many sessions in several processes, all registered; how many are at any moment."""
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(Sessions(uri, first, SESSIONS_OF_A_PROCESS))
            for first in range(0, count, SESSIONS_OF_A_PROCESS)
        ]

        def registered() -> int:
            counts = [process.registered for process in processes]
            assert min(counts) >= 0, "a process ended"
            return sum(counts)

        await _all_registered(registered, count)
        yield registered


async def _all_registered(registered: Callable[[], int], count: int) -> None:
    end = time.monotonic() + BACK_SECONDS_MAX
    while registered() != count:  # what other processes say, by the line
        assert time.monotonic() < end, f"{registered()} of {count} sessions are registered"
        await asyncio.sleep(0.05)


async def _all_observed(observer: MetadataStore, count: int) -> None:
    """Beside other tests a session may end once more for want of a core, and comes back as well."""
    names = [f"b{number:03}" for number in range(count)]
    end = time.monotonic() + BACK_SECONDS_MAX
    await observer.sync()
    while (seen := await observer.get_children(keys.WRITABLE)) != names:
        assert time.monotonic() < end, f"an observer sees {len(seen)} of {count} sessions"
        await asyncio.sleep(0.1)


async def test_a_full_stop_of_etcd(etcd: Ensemble, is_soak: bool) -> None:
    """Twice the lease without any server; then everybody comes back."""
    await _stop_and_come_back(etcd, SESSIONS_OF_A_SOAK if is_soak else SESSIONS)


async def test_a_full_stop_of_zookeeper(zk: Ensemble, is_soak: bool) -> None:
    """The same."""
    await _stop_and_come_back(zk, SESSIONS_OF_A_SOAK if is_soak else SESSIONS)


async def _stop_and_come_back(ensemble: Ensemble, count: int) -> None:
    async with (
        open_store(ensemble.uri) as observer,
        _sessions(ensemble.uri, count) as registered,
    ):
        await _all_observed(observer, count)
        before = ensemble.connections
        with ensemble.stopped():
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert registered() == 0, "lost before the server's"
            made = ensemble.connections - before
        began = time.monotonic()
        await _all_registered(registered, count)
        took = time.monotonic() - began
        again = ensemble.connections - before - made
        print(f"{made} connections of {count} sessions, then {again} in {took:.1f} s")
        assert made <= count * CONNECTIONS_OF_A_SESSION_MAX
        rounds = ROUNDS_AT_ONCE_MAX + ROUNDS_A_SECOND_MAX * took
        assert again <= count * SERVERS * rounds
        await _all_observed(observer, count)
        await _all_registered(registered, count)
