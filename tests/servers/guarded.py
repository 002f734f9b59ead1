"""Metadata stores on real servers in which each kind of process has a user with its own rights.

In etcd the roles are those that ``bookie metadata rights`` prints. On ZooKeeper the users are of
the scheme digest, which needs no settings of the server.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl_credential

from bookie.cluster.instance import initialize_cluster
from bookie.config import MetadataSettings
from bookie.metadata.connect import open_store
from bookie.metadata.rights import Kind, etcd_commands, etcd_role
from bookie.metadata.security import MetadataSecurity, security_of
from bookie.metadata.store import MetadataStore
from tests.servers.etcd import EtcdServer
from tests.servers.zookeeper import ZooKeeperServer, new_scope, single_server

PASSWORD = "correct horse"


@dataclass(frozen=True, slots=True)
class GuardedStore:
    """A scope whose users are called like their kinds."""

    uri: str
    lists: dict[str, str] = field(default_factory=dict)
    """The settings of ``[metadata]`` that all processes share."""

    @property
    def is_etcd(self) -> bool:
        return self.uri.startswith("etcd:")

    def settings(self, kind: Kind) -> dict[str, str]:
        """The section ``[metadata]`` of a process."""
        return {"uri": self.uri, "user": str(kind), "password": PASSWORD, **self.lists}

    def variables(self, kind: Kind) -> dict[str, str]:
        """The same as variables of the environment."""
        settings = {**self.settings(kind)}
        return {f"BOOKIE_METADATA__{name.upper()}": value for name, value in settings.items()}

    def opened(self, kind: Kind) -> AbstractAsyncContextManager[MetadataStore]:
        """A store that a process of this kind opens."""
        return open_store(self.uri, security=self.security(kind))

    def security(self, kind: Kind) -> MetadataSecurity:
        """How such a process shows who it is."""
        return security_of(MetadataSettings.model_validate(self.settings(kind)))

    async def make_cluster(self) -> None:
        """What an admin does first."""
        async with self.opened(Kind.ADMIN) as store:
            await initialize_cluster(store)
            if not self.is_etcd:
                await store.restrict()


@contextmanager
def guarded_etcd(scope: str) -> Iterator[GuardedStore]:
    """A server with users, each with one role."""
    # By default a password costs a tenth of a second of the server's time, on purpose.
    with EtcdServer(options=["--bcrypt-cost=4"]).running() as server:
        ask = server.member.ask
        ask("auth/user/add", name="root", password="root")
        ask("auth/user/grant", user="root", role="root")
        for kind in Kind:
            for line in etcd_commands(scope, kind):
                _etcdctl(server, shlex.split(line))
            ask("auth/user/add", name=str(kind), password=PASSWORD)
            ask("auth/user/grant", user=str(kind), role=etcd_role(scope, kind))
        ask("auth/enable")
        yield GuardedStore(server.uri(scope))


def _etcdctl(server: EtcdServer, words: list[str]) -> None:
    """Do what etcdctl does with these words."""
    match words:
        case ["etcdctl", "role", "add", role]:
            server.member.ask("auth/role/add", name=role)
        case ["etcdctl", "role", "grant-permission", role, permission, first, end]:
            permitted = {
                "permType": permission.upper(),
                "key": _octets(first),
                "range_end": _octets(end),
            }
            server.member.ask("auth/role/grant", name=role, perm=permitted)
        case _:
            raise AssertionError(f"etcdctl does not take {words}")


def _octets(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def guarded_zookeeper(server: ZooKeeperServer) -> GuardedStore:
    """A new scope in a server."""
    lists = {"access": "kinds", "sasl_mechanism": "digest"}
    for kind in Kind:
        lists[f"acl_{kind}s"] = f"digest:{make_digest_acl_credential(str(kind), PASSWORD)}"
    return GuardedStore(f"zk://{server.address}{new_scope()}", lists)


@pytest.fixture(scope="module", params=["etcd", "zk"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedStore]:
    """A scope on a server of its own: other tests cannot grant or deny anything in it."""
    directory: Path = tmp_path_factory.mktemp("guarded")
    if request.param == "etcd":
        with guarded_etcd("/guarded") as store:
            yield store
    else:
        with single_server(directory) as server:
            yield guarded_zookeeper(server)
