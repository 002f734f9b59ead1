"""A cluster whose metadata server is away: what needs it waits or fails, nothing else notices.

Real bookies, a real client and real servers; the server is stopped for several session timeouts, in
a soak for minutes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bookie.errors import MetadataUnavailableError, SessionLostError
from tests.fault.daemon_cluster import (
    BOOKIES,
    SESSION_TIMEOUT_SECONDS,
    Appending,
    DaemonCluster,
    daemon_cluster,
    home_of,
)
from tests.fault.daemon_process import serving
from tests.fault.metadata_servers import SERVERS, MetadataServer
from tests.unit.client.real_cluster import until

SESSION_GIVEN_UP = 3
OUTAGE_TIMEOUTS = 3
OUTAGE_TIMEOUTS_OF_A_SOAK = 120
"""Session timeouts of two seconds: four minutes."""


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
    """Bookies in `server`'s cluster, which are to wait for it however long it takes."""
    patient = {"give_up_after_timeouts": 1000}
    async with daemon_cluster(server.uri, tmp_path, dict.fromkeys(BOOKIES, patient)) as cluster:
        yield cluster


@pytest.mark.timeout(900)
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
    impatient = home_of(server.uri, tmp_path, "b4", {"give_up_after_timeouts": 2})
    async with asyncio.TaskGroup() as tasks, serving(impatient.write()) as given_up:
        await given_up.until("registered")
        task = tasks.create_task(appending.run())
        await until(lambda: appending.acknowledged >= 10)
        server.pause()
        try:
            clock = asyncio.get_running_loop().time
            end = clock() + outage_timeouts * SESSION_TIMEOUT_SECONDS
            before = appending.acknowledged
            for call in (cluster.create(), client.open_ledger(closed.ledger_id)):
                with pytest.raises((MetadataUnavailableError, SessionLostError)) as caught:
                    async with asyncio.timeout(60):
                        await call
                assert str(caught.value)
                assert "\n" not in str(caught.value)
            status, sentence = await given_up.refusal()
            assert status == SESSION_GIVEN_UP
            assert sentence == "the metadata store did not answer for 4 seconds, 2 session timeouts"
            await asyncio.sleep(end - clock())
            during = appending.acknowledged - before
        finally:
            server.resume()
        assert during > 10, "appends to an open ledger need no metadata"
        async with asyncio.timeout(60):
            fresh = await cluster.create_again()
            await fresh.append(b"after")
            await fresh.close()
        await cluster.registered()
        task.cancel()
    await appending.check(client)
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0, "no bookie left before it was told to"


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
