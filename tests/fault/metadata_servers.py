"""One real metadata server of each kind, to be stopped in its tracks under a running cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.etcd import EtcdServer
from tests.servers.zookeeper import new_scope, single_server


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
