"""Real ZooKeeper and etcd servers at IPv6 addresses: alone, several, and beside one of IPv4."""

from __future__ import annotations

import pytest

from bookie.metadata.connect import open_store
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope


@pytest.fixture(params=["etcd", "zk"])
def server(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Scheme of a URI, and the server's port at 127.0.0.1."""
    if request.param == "zk":
        zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        return "zk", zookeeper.port
    etcd: EtcdServer = request.getfixturevalue("etcd_server")
    return "etcd", etcd.member.port


async def test_a_store_is_reached_over_ipv6(server: tuple[str, int]) -> None:
    """Brackets stand anywhere in the list, and a server that refuses is passed over."""
    scheme, at_ipv4 = server
    scope = new_scope()
    with Proxy(at_ipv4, host="::1") as one, Proxy(at_ipv4, host="::1") as two:
        async with open_store(f"{scheme}://[::1]:{one.port}{scope}") as store:
            await store.put("/a", b"1")
        assert (one.accepted > 0, two.accepted) == (True, 0)
        one.refuse()
        for servers in (
            f"[::1]:{one.port},[::1]:{two.port}",
            f"127.0.0.1:{one.port},[::1]:{two.port}",
        ):
            before = two.accepted
            async with open_store(f"{scheme}://{servers}{scope}") as store:
                record = await store.get("/a")
                assert record is not None
                assert record.value == b"1"
            assert two.accepted > before
