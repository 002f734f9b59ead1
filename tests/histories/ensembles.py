"""Three real servers of metadata, etcd or ZooKeeper, and everything that befalls them.

A fault is struck, lasts for a while and is healed; there is one at a time.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeVar

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.etcd.client import REVOKE
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from tests.servers.etcd import EtcdCluster, EtcdMember
from tests.servers.processes import wait_until
from tests.servers.proxy import Direction
from tests.servers.zookeeper import ZooKeeperEnsemble, expire_session, new_scope

T = TypeVar("T")


class Fault(enum.Enum):
    """A fault of the servers."""

    KILL_LEADER = "the leader is killed"
    KILL_FOLLOWER = "a follower is killed"
    STOP_LEADER = "the leader stands still (SIGSTOP)"
    STOP_FOLLOWER = "a follower stands still"
    ISOLATE_LEADER = "the leader and the others do not hear each other"
    DEAF_LEADER = "the leader hears nobody, and is heard"
    MUTE_LEADER = "the leader is not heard, and hears"
    BRIDGE = "the leader and one follower do not hear each other; the third hears both"
    RING = "each hears one of the others, in a circle: all see a majority, and no two the same"
    STANDSTILL = "all three stand still, for longer than a session lives"
    POWER_OFF = "all three are killed"

    @property
    def outlasts_sessions(self) -> bool:
        """True if it is one that sessions shall not survive."""
        return self is Fault.STANDSTILL

    @property
    def kills(self) -> bool:
        """True if it ends processes, which takes effect at once: connections break."""
        return self in (Fault.KILL_LEADER, Fault.KILL_FOLLOWER, Fault.POWER_OFF)


def _victims(fault: Fault, leader: T, follower: T, servers: Iterable[T]) -> list[T]:
    """Whose processes are killed or stopped."""
    match fault:
        case Fault.KILL_LEADER | Fault.STOP_LEADER:
            return [leader]
        case Fault.KILL_FOLLOWER | Fault.STOP_FOLLOWER:
            return [follower]
        case Fault.STANDSTILL | Fault.POWER_OFF:
            return list(servers)
        case _:
            return []


def _circle(servers: Iterable[T]) -> Iterable[tuple[T, T]]:
    """Each with the one before it."""
    around = list(servers)
    return zip(around, around[-1:] + around[:-1], strict=True)


class Servers(ABC):
    """An ensemble of three, and a scope of its own in it."""

    reads_are_current: ClassVar[bool]
    """True if every read shows the newest state."""
    splits_commits: ClassVar[bool]
    """True if one commit may be told in pieces."""
    silence_seconds: ClassVar[float]
    """A silent link has had its effect after so long: the others have another leader."""

    @property
    @abstractmethod
    def ports(self) -> list[int]:
        """Ports on which the servers listen to clients."""

    @abstractmethod
    def uri(self, ports: Sequence[int]) -> str:
        """The scope, by way of these ports."""

    @abstractmethod
    async def strike(self, fault: Fault) -> None:
        """Let the fault befall them; all is well before."""

    @abstractmethod
    async def heal(self) -> None:
        """End all faults; returns when all three serve."""

    @abstractmethod
    def session_of(self, store: MetadataStore) -> int:
        """The number of the store's present session; each has one of its own, greater than 0."""

    @abstractmethod
    async def expire(self, store: MetadataStore, by: MetadataStore) -> None:
        """End the session of `store` on the servers, with the help of another one.

        Raises:
            BookieError: the servers do not answer; the outcome is unknown.
        """


class EtcdServers(Servers):
    """etcd."""

    reads_are_current = True
    splits_commits = False
    silence_seconds = 1.5

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._scope = "/" + cluster.uri().rpartition("/")[2]

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self._cluster.members.values()]

    def uri(self, ports: Sequence[int]) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports) + self._scope

    async def strike(self, fault: Fault) -> None:
        leader, follower = await asyncio.to_thread(self._roles)
        for member in _victims(fault, leader, follower, self._cluster.members.values()):
            if fault.kills:
                member.kill()  # in this thread, which is the one that may start it again
            else:
                member.pause()
        others = [name for name in self._cluster.names if name != leader.name]
        links = self._cluster.links
        match fault:
            case Fault.ISOLATE_LEADER:
                links.isolate(leader.name)
            case Fault.DEAF_LEADER:
                for other in others:
                    links.cut(other, leader.name)
            case Fault.MUTE_LEADER:
                for other in others:
                    links.cut(leader.name, other)
            case Fault.BRIDGE:
                links.split([leader.name], [follower.name])
            case Fault.RING:
                for deaf, unheard in _circle(self._cluster.names):
                    links.cut(unheard, deaf)
            case _:
                pass

    def _roles(self) -> tuple[EtcdMember, EtcdMember]:
        return self._cluster.leader(), self._cluster.follower()

    async def heal(self) -> None:
        self._cluster.links.heal()
        dead = []
        for member in self._cluster.members.values():
            if member.is_running:
                member.resume()
            else:
                member.start()
                dead.append(member)
        for member in dead:
            await asyncio.to_thread(member.wait_ready)
        await asyncio.to_thread(wait_until, self._is_whole, "three members that agree on a leader")

    def _is_whole(self) -> bool:
        found = [member.ask("maintenance/status") for member in self._cluster.members.values()]
        leaders = {status.get("leader") for status in found}
        return len(leaders) == 1 and None not in leaders

    def session_of(self, store: MetadataStore) -> int:
        assert isinstance(store, EtcdStore)
        return store._session.lease_id

    async def expire(self, store: MetadataStore, by: MetadataStore) -> None:
        assert isinstance(store, EtcdStore)
        assert isinstance(by, EtcdStore)
        await store._session.begin()
        await by.client.call(REVOKE, pb.LeaseRevokeRequest(id=store._session.lease_id), seconds=5)


class ZooKeeperServers(Servers):
    """ZooKeeper."""

    reads_are_current = False
    splits_commits = True
    silence_seconds = 3.0

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._ensemble = ensemble
        self._scope = new_scope()

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self._ensemble.servers.values()]

    def uri(self, ports: Sequence[int]) -> str:
        return "zk://" + ",".join(f"127.0.0.1:{port}" for port in ports) + self._scope

    async def strike(self, fault: Fault) -> None:
        await asyncio.to_thread(self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        ensemble = self._ensemble
        leader = ensemble.leader()
        follower = next(number for number in ensemble.servers if number != leader)
        for victim in _victims(fault, leader, follower, ensemble.servers):
            server = ensemble.servers[victim]
            if fault.kills:
                server.kill()
            else:
                server.process.pause()
        match fault:
            case Fault.ISOLATE_LEADER:
                ensemble.isolate(leader)
            case Fault.DEAF_LEADER:
                self._hold(leader, Direction.TO_CLIENT, Direction.TO_SERVER)
            case Fault.MUTE_LEADER:
                self._hold(leader, Direction.TO_SERVER, Direction.TO_CLIENT)
            case Fault.BRIDGE:
                for link in ((leader, follower), (follower, leader)):
                    for proxy in ensemble.links[link]:
                        proxy.hold()
            case Fault.RING:
                for deaf, unheard in _circle(ensemble.servers):
                    ensemble.cut(unheard, deaf)
            case _:
                pass

    def _hold(self, number: int, as_caller: Direction, as_called: Direction) -> None:
        for (caller, called), proxies in self._ensemble.links.items():
            for proxy in proxies:
                if caller == number:
                    proxy.hold(as_caller)
                elif called == number:
                    proxy.hold(as_called)

    async def heal(self) -> None:
        await asyncio.to_thread(self._ensemble.heal)

    def session_of(self, store: MetadataStore) -> int:
        assert isinstance(store, ZooKeeperStore)
        return store.credentials[0]

    async def expire(self, store: MetadataStore, by: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        session, password = store.credentials
        await by.sync()  # the servers answer
        await asyncio.to_thread(expire_session, self._ensemble.hosts, session, password)
