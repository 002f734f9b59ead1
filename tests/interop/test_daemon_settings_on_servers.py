"""A daemon that goes by settings in a real ZooKeeper or etcd, which goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import initialize_cluster
from bookie.ledger.place.labels import BookieLabels
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Daemon, serving
from tests.servers.etcd import EtcdServer
from tests.servers.ports import claimed_ports
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope

SECONDS_MAX = 300.0


@pytest.fixture(params=["etcd", "zk"])
def server(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Scheme and port of a server."""
    if request.param == "zk":
        zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        return "zk", zookeeper.port
    etcd: EtcdServer = request.getfixturevalue("etcd_server")
    return "etcd", etcd.member.port


async def until_changed(daemon: Daemon, value: object) -> None:
    """Read the log until a setting has this value."""
    while True:
        await daemon.until("setting_changed")
        if json.loads(daemon.lines.pop())["value"] == value:
            return


async def test_what_changes_while_the_store_is_away_counts_when_it_is_back(
    server: tuple[str, int], tmp_path: Path
) -> None:
    """The bookie has no file: ports and directories come from the cluster, too."""
    scheme, server_port = server
    scope = new_scope()
    port, http_port = claimed_ports(2)
    async with open_store(f"{scheme}://127.0.0.1:{server_port}{scope}") as store:
        await initialize_cluster(store)
        settings, labels = ClusterSettings(store), BookieLabels(store)
        await settings.set(
            {
                "listen.port": str(port),
                "http.port": str(http_port),
                "storage.journal_dir": f"{tmp_path}/journal",
                "storage.ledgers_dir": f"{tmp_path}/ledgers",
            }
        )
        with Proxy(server_port) as link:
            told = {
                "BOOKIE_BOOKIE__ID": "b1",
                "BOOKIE_METADATA": f"{scheme}://127.0.0.1:{link.port}{scope}",
                "BOOKIE_METADATA__SESSION_TIMEOUT_SECONDS": "2",
            }
            async with (
                serving(None, **told) as daemon,
                BookieDirectory(store) as directory,
                asyncio.timeout(SECONDS_MAX),
            ):
                await daemon.until("registered")
                await settings.set({"limits.lac_watches_max": "1"})
                await until_changed(daemon, 1)
                link.refuse()
                # Its session ends: the registration goes.
                while "b1" in directory.all():
                    await directory.wait_for_change()
                await settings.set({"limits.lac_watches_max": "2"})
                await labels.change("b1", {"zone": "a"})
                link.heal()
                await until_changed(daemon, 2)
                while directory.all().get("b1") is None or not directory.all()["b1"].labels:
                    await directory.wait_for_change()
                assert directory.all()["b1"].labels == {"zone": "a"}
                await settings.unset(["limits.lac_watches_max"])
                await until_changed(daemon, 100_000)
                daemon.process.send_signal(signal.SIGTERM)
                assert await daemon.end() == 0
