"""Every metadata backend as the conformance suite needs it: opened, expired and cut off at will."""

from __future__ import annotations

import asyncio
import enum
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import ClassVar, Self

import pytest

from bookie.metadata.connect import open_store
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.local.backend import LocalStore
from bookie.metadata.session_monitor import SessionMonitor
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from bookie.testing.faulty_memory import FaultyMemoryStore
from tests.servers.etcd import EtcdServer
from tests.servers.proxy import Direction, Proxy
from tests.servers.zookeeper import ZooKeeperServer, expire_session, new_scope

_names = itertools.count()


class Difference(enum.Enum):
    """A deviation of a backend from the interface; each is named with a reason."""

    VERSIONS_RESTART = "versions begin anew when a key is deleted and created again"
    COMMITS_SPLIT = "a transaction may be seen as several commits of one revision"
    NO_TIMES = "records have no times of creation and modification"
    ACCESS_CONTROL = "records have access control"
    BASIC_NAMES = "keys have characters of Unicode's basic plane only"
    PARENTS_AGE = "a record that is put where others lie below is not seen as a first version"
    PARENTS_STAY = "a parent stays when its last child goes with a session"
    LATE_VERSIONS = "a version fits a later life of the record that its writer has not heard of"
    EXPIRY_RESYNCS = "a session that ends costs its own watches a resync"


class Backend(ABC):
    """One store, new and empty, opened by as many sessions as a test wants."""

    name: ClassVar[str]
    differences: ClassVar[Mapping[Difference, str]] = MappingProxyType({})
    """Each with its reason."""

    can_disconnect: ClassVar[bool] = True
    """True if a session can be cut off from the store and joined again."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        """A store of its own; servers come from `request`, files go into `directory`."""
        self._stack = AsyncExitStack()

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI of the store."""

    @abstractmethod
    def session(
        self, *, session_timeout_seconds: float = 30.0
    ) -> AbstractAsyncContextManager[MetadataStore]:
        """A new session, for tests that close it themselves."""

    @abstractmethod
    async def expire(self, store: MetadataStore) -> None:
        """End the session of `store` as its peers or the server would after a long silence."""

    has_siblings: ClassVar[bool] = False
    """True if `sibling` works."""

    def sibling(self) -> AbstractAsyncContextManager[MetadataStore]:
        """A session with another store of the same servers, whose scope begins like ours."""
        raise NotImplementedError

    inner_paths: ClassVar[tuple[str, ...]] = (
        "/in",
        "/a/deep/scope",
        "/ledgers/in",
        "/cookies/b1/in",
        "/ledgers-2/7",
    )
    """Text that may follow `uri` in the URI of another store."""

    shares_inner_scopes: ClassVar[bool] = False
    """True if keys of such a store are keys of ours, too."""

    can_stop: ClassVar[bool] = True
    """True if `stop` works: sessions end by a clock and not by word only."""

    def stop(self, store: MetadataStore, seconds: float) -> None:
        """Let the process of `store` find that it was stopped for so long just now."""
        raise NotImplementedError

    async def disconnect(self, store: MetadataStore) -> None:
        """Cut `store` off from the servers, until `reconnect`."""
        raise NotImplementedError

    async def reconnect(self, store: MetadataStore) -> None:
        """Join `store` again."""
        if self.can_disconnect:
            raise NotImplementedError

    async def delay(self, store: MetadataStore) -> None:
        """Let `store` hear nothing of what the servers do and answer, until `reconnect`."""
        await asyncio.sleep(0)  # where nothing lies between, nothing can be late

    async def open(self, *, session_timeout_seconds: float = 30.0) -> MetadataStore:
        """A new session; it ends with the test."""
        return await self._stack.enter_async_context(
            self.session(session_timeout_seconds=session_timeout_seconds)
        )

    def differs(self, difference: Difference) -> bool:
        """True if the backend has this difference."""
        return difference in self.differences

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()


class MemoryBackend(Backend):
    """``memory://``: the reference model."""

    name = "memory"
    has_siblings = True
    inner_paths = ()
    can_stop = False

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        super().__init__(request, directory)
        self._uri = f"memory://conformance-{next(_names)}"

    @property
    def uri(self) -> str:
        return self._uri

    def sibling(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(self._uri + "-2")

    def session(
        self, *, session_timeout_seconds: float = 30.0
    ) -> AbstractAsyncContextManager[MetadataStore]:
        name = self._uri.removeprefix("memory://")
        return FaultyMemoryStore(name, session_timeout_seconds=session_timeout_seconds)

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyMemoryStore)
        store.expire_session()

    async def disconnect(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyMemoryStore)
        store.disconnect()

    async def reconnect(self, store: MetadataStore) -> None:
        assert isinstance(store, FaultyMemoryStore)
        store.reconnect()


class LocalBackend(Backend):
    """``local://``: a directory of this machine."""

    name = "local"
    has_siblings = True
    inner_paths = ("/in",)
    can_disconnect = False  # the disk is there or the process fails; nothing lies between

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        super().__init__(request, directory)
        self._uri = f"local://{directory}/metadata"

    @property
    def uri(self) -> str:
        return self._uri

    def sibling(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(self._uri + "-2")

    def session(
        self, *, session_timeout_seconds: float = 30.0
    ) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(self._uri, session_timeout_seconds=session_timeout_seconds)

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, LocalStore)
        environment, session = store._require_open(), store._session
        await environment.submit(lambda tree: tree.end_session(session))
        store._wake.set()  # it would look by itself within a tick
        await asyncio.sleep(0)

    def stop(self, store: MetadataStore, seconds: float) -> None:
        assert isinstance(store, LocalStore)
        _stop(store._monitor, seconds)


class EtcdBackend(Backend):
    """``etcd://``: a scope of its own on one real server, each session through its own proxy."""

    name = "etcd"
    has_siblings = True
    shares_inner_scopes = True
    differences = MappingProxyType(
        {
            Difference.NO_TIMES: "etcd keeps none",
        }
    )

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        super().__init__(request, directory)
        server: EtcdServer = request.getfixturevalue("etcd_server")
        self._server = server
        self._scope = f"/conformance-{next(_names)}"
        self._links: dict[MetadataStore, Proxy] = {}

    @property
    def uri(self) -> str:
        return f"etcd://127.0.0.1:{self._server.member.port}{self._scope}"

    def sibling(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(self.uri + "-2")

    @asynccontextmanager
    async def session(
        self, *, session_timeout_seconds: float = 30.0
    ) -> AsyncIterator[MetadataStore]:
        with Proxy(self._server.member.port) as link:
            uri = f"etcd://127.0.0.1:{link.port}{self._scope}"
            timeout = session_timeout_seconds
            async with open_store(uri, session_timeout_seconds=timeout) as store:
                self._links[store] = link
                yield store

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, EtcdStore)
        lease = await store._session.current_lease(0)
        await lease.revoke(10)
        store._session.lose(lease)  # it would look by itself within a fraction of the timeout

    def stop(self, store: MetadataStore, seconds: float) -> None:
        assert isinstance(store, EtcdStore)
        assert store._session._monitor is not None
        _stop(store._session._monitor, seconds)

    async def disconnect(self, store: MetadataStore) -> None:
        self._links[store].refuse()

    async def delay(self, store: MetadataStore) -> None:
        self._links[store].hold(Direction.TO_CLIENT)

    async def reconnect(self, store: MetadataStore) -> None:
        self._links[store].heal()


class ZooKeeperBackend(Backend):
    """``zk://``: a scope of its own on one real server, each session through its own proxy."""

    name = "zk"
    has_siblings = True
    shares_inner_scopes = True
    differences = MappingProxyType(
        {
            Difference.COMMITS_SPLIT: "events do not say where a transaction ends",
            Difference.ACCESS_CONTROL: "every node has a list of who may do what",
            Difference.BASIC_NAMES: "the server refuses what Java writes as two characters",
            Difference.PARENTS_STAY: "the server leaves the node",
            Difference.LATE_VERSIONS: "the server compares versions within one life of a node",
            Difference.PARENTS_AGE: "the node was there before it had a record",
            Difference.EXPIRY_RESYNCS: "watches end with the connection",
        }
    )

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        super().__init__(request, directory)
        server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        self._server = server
        self._scope = new_scope()
        self._links: dict[MetadataStore, Proxy] = {}

    @property
    def uri(self) -> str:
        return f"zk://{self._server.address}{self._scope}"

    def sibling(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(self.uri + "-2")

    @asynccontextmanager
    async def session(
        self, *, session_timeout_seconds: float = 30.0
    ) -> AsyncIterator[MetadataStore]:
        with Proxy(self._server.port) as link:
            uri = f"zk://127.0.0.1:{link.port}{self._scope}"
            timeout = session_timeout_seconds
            async with open_store(uri, session_timeout_seconds=timeout) as store:
                self._links[store] = link
                yield store

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        session, password = store.credentials
        await asyncio.to_thread(expire_session, self._server.address, session, password)

    def stop(self, store: MetadataStore, seconds: float) -> None:
        assert isinstance(store, ZooKeeperStore)
        monitor = store._require_open().link._monitor
        assert monitor is not None
        _stop(monitor, seconds)

    async def disconnect(self, store: MetadataStore) -> None:
        self._links[store].refuse()

    async def delay(self, store: MetadataStore) -> None:
        self._links[store].hold(Direction.TO_CLIENT)

    async def reconnect(self, store: MetadataStore) -> None:
        self._links[store].heal()


def _stop(monitor: SessionMonitor, seconds: float) -> None:
    """Time passes by the clock, and nobody had a turn of the loop meanwhile."""
    clock = monitor._clock
    monitor._clock = lambda: clock() + seconds


BACKENDS: dict[str, type[Backend]] = {
    backend.name: backend
    for backend in (EtcdBackend, LocalBackend, MemoryBackend, ZooKeeperBackend)
}
"""All backends that tests run on. A backend with servers joins with a class of its own, whose
constructor asks `request` for the fixture that starts them."""
