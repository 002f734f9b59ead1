"""A cluster whose metadata server is away: what needs it waits or fails, nothing else notices.

Real bookies, a real client and real servers; the server is stopped for several session timeouts.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.cluster.instance import initialize_cluster
from bookie.errors import BookieError, MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.server.local.layout import free_ports
from tests.fault.daemon_process import Daemon, Home, serving
from tests.fault.metadata_servers import SERVERS, MetadataServer
from tests.unit.client.real_cluster import until

SESSION_TIMEOUT_SECONDS = 2.0
BOOKIES = ("b1", "b2", "b3")


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataServer]:
    """One server of each kind."""
    with SERVERS[request.param](tmp_path) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three bookies that run, and a client of theirs."""

    daemons: dict[str, Daemon]
    client: BookKeeper

    async def registered(self) -> None:
        """Wait until the client sees all bookies."""
        await until(lambda: set(self.client.bookies()) == set(BOOKIES))


@pytest.fixture
async def cluster(server: MetadataServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Bookies that take part in `server`'s cluster; they stop in order at the end."""
    async with open_store(server.uri) as store:
        await initialize_cluster(store)
    async with AsyncExitStack() as stack:
        daemons = {}
        for name in BOOKIES:
            daemons[name] = await stack.enter_async_context(
                serving(_home(server.uri, tmp_path / name, name).write())
            )
        for daemon in daemons.values():
            await daemon.until("registered")
        client = await stack.enter_async_context(
            connect(server.uri, session_timeout_seconds=SESSION_TIMEOUT_SECONDS)
        )
        yield Cluster(daemons, client)


def _home(uri: str, path: Path, name: str) -> Home:
    path.mkdir()
    port, http_port = free_ports(2)
    return Home(
        path,
        {
            "bookie": {"id": name},
            "listen": {"port": port},
            "metadata": {"uri": uri, "session_timeout_seconds": SESSION_TIMEOUT_SECONDS},
            "storage": {"journal_dir": f"{path}/journal", "ledgers_dir": f"{path}/ledgers"},
            "http": {"port": http_port},
        },
    )


@dataclass(slots=True)
class Appending:
    """Entries that were acknowledged, one after the other."""

    writer: WriterHandle
    acknowledged: int = 0

    async def run(self) -> None:
        """Append without an end; any error ends the test."""
        while True:
            await self.writer.append(b"%d" % self.acknowledged)
            self.acknowledged += 1


async def _create(client: BookKeeper) -> WriterHandle:
    return await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)


async def _create_again(client: BookKeeper) -> WriterHandle:
    """Create a ledger as soon as that is possible: the store answers, the bookies are back."""
    while True:
        try:
            return await _create(client)
        except BookieError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.1)


async def test_an_outage_of_several_sessions_stops_nobody(
    server: MetadataServer, cluster: Cluster
) -> None:
    """Appends go on, create and open fail in one sentence, all heals without a restart."""
    client = cluster.client
    closed = await _create(client)
    await closed.append(b"older")
    await closed.close()
    appending = Appending(await _create(client))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(appending.run())
        await until(lambda: appending.acknowledged >= 10)
        server.pause()
        try:
            clock = asyncio.get_running_loop().time
            end = clock() + 3 * SESSION_TIMEOUT_SECONDS
            before = appending.acknowledged
            for call in (_create(client), client.open_ledger(closed.ledger_id)):
                with pytest.raises((MetadataUnavailableError, SessionLostError)) as caught:
                    async with asyncio.timeout(60):
                        await call
                assert str(caught.value)
                assert "\n" not in str(caught.value)
            await until(lambda: clock() >= end)
            during = appending.acknowledged - before
        finally:
            server.resume()
        assert during > 10, "appends to an open ledger need no metadata"
        async with asyncio.timeout(60):
            fresh = await _create_again(client)
            await fresh.append(b"after")
            await fresh.close()
            await cluster.registered()
        task.cancel()
    await appending.writer.close()
    reader = await client.open_ledger(appending.writer.ledger_id)
    payloads = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
    assert payloads[: appending.acknowledged] == [b"%d" % n for n in range(appending.acknowledged)]
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0, "no bookie left before it was told to"


async def test_a_server_that_crashed_and_came_back_is_the_same_cluster(
    server: MetadataServer, cluster: Cluster
) -> None:
    """The server's data is on its disk; sessions may live on or be lost, as it decides."""
    server.crash()
    with pytest.raises((MetadataUnavailableError, SessionLostError)):
        async with asyncio.timeout(60):
            await _create(cluster.client)
    await server.restart()
    async with asyncio.timeout(60):
        writer = await _create_again(cluster.client)
        await writer.append(b"after")
        await writer.close()
        await cluster.registered()
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
