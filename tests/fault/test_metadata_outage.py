"""A cluster whose metadata server is away: what needs it waits or fails, nothing else notices.

Real bookies, a real client and real servers; the server is stopped for more session timeouts than
bookies once waited for, in a soak for minutes. Or it comes back as another store.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.errors import MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from tests.fault.daemon_cluster import (
    BOOKIES,
    Appending,
    DaemonCluster,
    daemon_cluster,
    home_of,
)
from tests.fault.daemon_process import serving
from tests.fault.metadata_servers import SERVERS, MetadataServer
from tests.servers.etcd import EtcdServer
from tests.unit.ledger.real_cluster import until

SESSION_GIVEN_UP = 3
TIMEOUT_SECONDS = 1.0
"""Of the sessions: the shortest that both servers grant."""
OUTAGE_TIMEOUTS = 11
OUTAGE_TIMEOUTS_OF_A_SOAK = 240
"""Four minutes."""

AWAY = "the metadata store does not answer: reads and appends to open ledgers go on"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A short outage by default, one of minutes besides in a soak."""
    if "outage_timeouts" in metafunc.fixturenames:
        soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
        lengths = [OUTAGE_TIMEOUTS, *([OUTAGE_TIMEOUTS_OF_A_SOAK] if soak else [])]
        metafunc.parametrize("outage_timeouts", lengths)


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataServer]:
    """One server of each kind."""
    with SERVERS[request.param](tmp_path) as server:
        yield server


@pytest.fixture
async def cluster(server: MetadataServer, tmp_path: Path) -> AsyncIterator[DaemonCluster]:
    """Bookies in `server`'s cluster, which wait for it however long it takes, as by default."""
    async with daemon_cluster(server.uri, tmp_path, timeout_seconds=TIMEOUT_SECONDS) as cluster:
        yield cluster


@pytest.mark.timeout(1800)
async def test_an_outage_of_several_sessions_stops_nobody(
    server: MetadataServer, cluster: DaemonCluster, tmp_path: Path, outage_timeouts: int
) -> None:
    """Appends go on, create and open fail in one sentence, all heals without a restart.

    A fourth bookie, which is to give up sooner, ends with the status that says so.
    """
    client = cluster.client
    closed = await cluster.create()
    await closed.append(b"older")
    await closed.close()
    appending = Appending(await cluster.create())
    limit = {"give_up_after_timeouts": 4}
    impatient = home_of(server.uri, tmp_path, "b4", limit, timeout_seconds=TIMEOUT_SECONDS)
    async with asyncio.TaskGroup() as tasks, serving(impatient.write()) as given_up:
        await given_up.until("registered")
        task = tasks.create_task(appending.run())
        await until(lambda: appending.acknowledged >= 10)
        server.pause()
        try:
            clock = asyncio.get_running_loop().time
            end = clock() + outage_timeouts * TIMEOUT_SECONDS
            before = appending.acknowledged
            for call in (cluster.create(), client.open_ledger(closed.ledger_id)):
                with pytest.raises((MetadataUnavailableError, SessionLostError)) as caught:
                    async with asyncio.timeout(60):
                        await call
                assert str(caught.value)
                assert "\n" not in str(caught.value)
            status, sentence = await given_up.refusal()
            assert status == SESSION_GIVEN_UP
            assert sentence == "the metadata store did not answer for 4 seconds, 4 session timeouts"
            await asyncio.sleep(end - clock())
            during = appending.acknowledged - before
            for bookie in BOOKIES:
                await _says_that_the_store_is_away(cluster, bookie)
        finally:
            server.resume()
        assert during > 10, "appends to an open ledger need no metadata"
        async with asyncio.timeout(60):
            fresh = await cluster.create_again()
            await fresh.append(b"after")
            await fresh.close()
        await cluster.registered()
        for bookie in BOOKIES:
            await _says_that_all_is_well(cluster, bookie)
        task.cancel()
    await appending.check(client)
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0, "no bookie left before it was told to"


async def _says_that_the_store_is_away(cluster: DaemonCluster, bookie: str) -> None:
    """After an outage that once ended a bookie; whoever knows it may go on."""
    assert await cluster.metric(bookie, "bookie_metadata_away_seconds") > 10 * TIMEOUT_SECONDS
    assert await cluster.metric(bookie, "bookie_server_status") == -1
    status, text = await cluster.page(bookie, "readyz")
    remarks = json.loads(text)["remarks"]
    assert (status, AWAY in remarks) == (200, True)
    assert any(remark.startswith("not registered") for remark in remarks)


async def _says_that_all_is_well(cluster: DaemonCluster, bookie: str) -> None:
    await _status_becomes(cluster, bookie, 1)
    assert await cluster.metric(bookie, "bookie_metadata_away_seconds") == 0
    assert json.loads((await cluster.page(bookie, "readyz"))[1])["remarks"] == []


async def _status_becomes(cluster: DaemonCluster, bookie: str, status: int) -> None:
    async with asyncio.timeout(60):
        while await cluster.metric(bookie, "bookie_server_status") != status:  # noqa: ASYNC110  (a gauge)
            await asyncio.sleep(0.05)


async def test_a_server_that_comes_back_as_another_store(tmp_path: Path) -> None:
    """Nobody registers there. The bookies serve on until their own store is back."""
    etcd = EtcdServer()
    try:
        etcd.start()
        uri = etcd.uri()
        async with daemon_cluster(uri, tmp_path, timeout_seconds=TIMEOUT_SECONDS) as cluster:
            appending = Appending(await cluster.create())
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(appending.run())
                await appending.goes_on()
                await etcd.member.exchange_data()
                for daemon in cluster.daemons.values():
                    while "holds no cluster now" not in "".join(daemon.lines[-1:]):
                        await daemon.until("registration_waits")
                async with open_store(uri) as store:
                    assert not await store.exists(keys.AVAILABLE)
                    await initialize_cluster(store)
                    for bookie in BOOKIES:
                        await _status_becomes(cluster, bookie, -1)
                    await appending.goes_on()
                    assert not await store.exists(keys.AVAILABLE)
                await etcd.member.exchange_data()
                for daemon in cluster.daemons.values():
                    await daemon.until("registered_again")
                await appending.goes_on()
                task.cancel()
            await appending.check(cluster.client)
            for daemon in cluster.daemons.values():
                daemon.process.send_signal(signal.SIGTERM)
                assert await daemon.end() == 0
    finally:
        etcd.stop()


async def test_a_server_that_crashed_and_came_back_is_the_same_cluster(
    server: MetadataServer, cluster: DaemonCluster
) -> None:
    """The server's data is on its disk; sessions may live on or be lost, as it decides."""
    server.crash()
    with pytest.raises((MetadataUnavailableError, SessionLostError)):
        async with asyncio.timeout(60):
            await cluster.create()
    await server.restart()
    async with asyncio.timeout(60):
        writer = await cluster.create_again()
        await writer.append(b"after")
        await writer.close()
    await cluster.registered()
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
