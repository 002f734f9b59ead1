"""The servers that the other tests stand on: they start, lead, fail over and break on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState

from tests.servers.processes import wait_until
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import (
    ZooKeeperEnsemble,
    ZooKeeperServer,
    expire_session,
    four_letters,
    new_scope,
)


@pytest.fixture
def clients() -> Iterator[list[KazooClient]]:
    """Clients that are closed after the test."""
    opened: list[KazooClient] = []
    yield opened
    for client in opened:
        client.stop()
        client.close()


def _connect(clients: list[KazooClient], hosts: str, timeout: float = 10.0) -> KazooClient:
    client = KazooClient(hosts=hosts, timeout=timeout)
    clients.append(client)
    client.start(timeout=60)
    return client


def test_a_server_keeps_what_it_was_told(
    zookeeper_server: ZooKeeperServer, clients: list[KazooClient]
) -> None:
    client = _connect(clients, zookeeper_server.address)
    scope = new_scope()
    client.create(scope, b"value")
    assert client.get(scope)[0] == b"value"
    assert client.server_version() == (3, 9, 5)
    assert four_letters(zookeeper_server.port, "ruok") == "imok"


def test_a_second_client_ends_the_session_of_the_first(
    zookeeper_server: ZooKeeperServer, clients: list[KazooClient]
) -> None:
    client = _connect(clients, zookeeper_server.address)
    states: list[KazooState] = []
    client.add_listener(states.append)
    scope = new_scope()
    client.create(scope, ephemeral=True)
    expire_session(zookeeper_server.address, *client.client_id)
    wait_until(lambda: KazooState.LOST in states and client.connected, "a new session")
    assert client.exists(scope) is None


def test_the_ensemble_goes_on_without_its_leader(
    zookeeper_ensemble: ZooKeeperEnsemble, clients: list[KazooClient]
) -> None:
    leader = zookeeper_ensemble.leader()
    zookeeper_ensemble.servers[leader].kill()
    wait_until(lambda: len(zookeeper_ensemble.followers()) == 1, "a new leader with a follower")
    assert zookeeper_ensemble.leader() != leader
    scope = new_scope()
    _connect(clients, zookeeper_ensemble.hosts).create(scope)


def test_an_isolated_leader_serves_nobody(
    zookeeper_ensemble: ZooKeeperEnsemble, clients: list[KazooClient]
) -> None:
    leader = zookeeper_ensemble.leader()
    zookeeper_ensemble.isolate(leader)
    old = zookeeper_ensemble.servers[leader]
    wait_until(lambda: old.mode() in ("", "read-only"), "the old leader gives up")
    wait_until(lambda: len(zookeeper_ensemble.followers()) == 1, "a new leader with a follower")
    assert zookeeper_ensemble.leader() != leader


def test_a_proxy_eats_the_reply_and_not_the_request(
    zookeeper_server: ZooKeeperServer, clients: list[KazooClient]
) -> None:
    with Proxy(zookeeper_server.port) as proxy:
        client = _connect(clients, f"127.0.0.1:{proxy.port}")
        scope = new_scope()
        proxy.eat_next_reply()
        with pytest.raises(KazooException):
            client.create(scope)
        assert proxy.has_eaten
        wait_until(lambda: bool(client.connected), "the client is back")
        assert client.exists(scope) is not None


def test_what_a_silent_link_held_arrives_when_it_heals(
    zookeeper_server: ZooKeeperServer, clients: list[KazooClient]
) -> None:
    with Proxy(zookeeper_server.port) as proxy:
        client = _connect(clients, f"127.0.0.1:{proxy.port}")
        scope = new_scope()
        proxy.hold()
        pending = client.create_async(scope)
        assert not pending.wait(0.2)
        proxy.heal()
        assert pending.get(timeout=60) == scope
