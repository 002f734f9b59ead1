"""Shared fixtures of tests on a real etcd; each file opens its own store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from bookie.metadata.etcd.backend import EtcdStore
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Proxy


@pytest.fixture
def etcd_scope(etcd_server: EtcdServer) -> str:
    """A scope that nobody else uses."""
    return "/" + etcd_server.uri().rpartition("/")[2]


@pytest.fixture
def etcd_link(etcd_server: EtcdServer) -> Iterator[Proxy]:
    """A way to the server that a test can break."""
    with Proxy(etcd_server.member.port) as proxy:
        yield proxy


@pytest.fixture
async def etcd_observer(etcd_server: EtcdServer, etcd_scope: str) -> AsyncIterator[EtcdStore]:
    """Another session with the same scope, whose way to the server nothing breaks."""
    async with EtcdStore(etcd_server.endpoints, etcd_scope) as found:
        yield found
