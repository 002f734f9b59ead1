"""Real metadata servers under a running cluster: one to be stopped, or the one that all share."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.servers.etcd import EtcdServer
from tests.servers.zookeeper import (
    ZooKeeperServer,
    expire_session,
    new_scope,
    password_of,
    single_server,
)


@dataclass(frozen=True, slots=True)
class MetadataServer:
    """A server of a test's own, and a scope in it."""

    uri: str
    pause: Callable[[], None]
    """SIGSTOP: connections stand, and nobody answers."""
    resume: Callable[[], None]
    """SIGCONT."""
    crash: Callable[[], None]
    """SIGKILL."""
    restart: Callable[[], Awaitable[None]]
    """Start it again on its data; it serves when this returns."""


@contextmanager
def _etcd(directory: Path) -> Iterator[MetadataServer]:
    server = EtcdServer()
    try:
        server.start()
        member = server.member
        yield MetadataServer(server.uri(), member.pause, member.resume, member.kill, member.restart)
    finally:
        server.stop()


@contextmanager
def _zookeeper(directory: Path) -> Iterator[MetadataServer]:
    with single_server(directory) as server:
        process = server.process
        yield MetadataServer(
            f"zk://{server.address}{new_scope()}",
            process.pause,
            process.resume,
            server.kill,
            lambda: asyncio.to_thread(server.restart),
        )


SERVERS = {"etcd": _etcd, "zk": _zookeeper}


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A new scope in the server that all tests of the run share."""

    uri: str
    expire_owner: Callable[[str], None]
    """End the session that an ephemeral record belongs to, as an operator would: from outside."""


def _shared_etcd(request: pytest.FixtureRequest) -> SharedServer:
    server: EtcdServer = request.getfixturevalue("etcd_server")
    uri, member = server.uri(), server.member
    scope = "/" + uri.rpartition("/")[2]

    def expire_owner(key: str) -> None:
        name = base64.b64encode(f"{scope}{key}".encode()).decode()
        (record,) = member.ask("kv/range", key=name)["kvs"]
        member.ask("lease/revoke", ID=record["lease"])

    return SharedServer(uri, expire_owner)


def _shared_zookeeper(request: pytest.FixtureRequest) -> SharedServer:
    server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    scope = new_scope()

    def expire_owner(key: str) -> None:
        client = KazooClient(hosts=server.address)
        client.start(timeout=60)
        try:
            owner = client.get(f"{scope}{key}")[1].ephemeralOwner
        finally:
            client.stop()
            client.close()
        expire_session(server.address, owner, password_of(owner))

    return SharedServer(f"zk://{server.address}{scope}", expire_owner)


SHARED = {"etcd": _shared_etcd, "zk": _shared_zookeeper}
