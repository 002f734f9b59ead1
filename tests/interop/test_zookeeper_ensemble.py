"""A store on three real ZooKeeper servers, of which one is killed, stopped, cut off or behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie.errors import BadVersionError, MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore, Resync
from tests.conformance.streams import next_item
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble, new_scope

TIMEOUT_SECONDS = 10


class Cluster:
    """The ensemble, and a scope of its own for one test."""

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self.ensemble = ensemble
        self.scope = new_scope()
        self.uri = f"zk://{ensemble.hosts}{self.scope}"


@pytest.fixture
def cluster(zookeeper_ensemble: ZooKeeperEnsemble) -> Cluster:
    return Cluster(zookeeper_ensemble)


async def put_until_done(store: MetadataStore, key: str, value: bytes) -> None:
    """As a client does: again while the servers do not answer."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.put(key, value)
            except (MetadataUnavailableError, SessionLostError):
                continue
            return


class Tally:
    """What those who count were told."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.unknown = 0
        self.is_over = False
        self._wanted = 0
        self._reached = asyncio.Event()

    async def count(self, store: MetadataStore) -> None:
        """Count by compare-and-set, until it is over."""
        while not self.is_over:
            try:
                record = await store.get("/counter")
                assert record is not None
                value = b"%d" % (int(record.value) + 1)
                await store.put("/counter", value, version=record.version)
            except (BadVersionError, SessionLostError):
                continue
            except MetadataUnavailableError as error:
                self.unknown += "unknown" in str(error)
                continue
            self.acknowledged += 1
            if self.acknowledged >= self._wanted:
                self._reached.set()

    async def acknowledge(self, more: int) -> None:
        """Return when so many more were acknowledged."""
        self._wanted = self.acknowledged + more
        self._reached.clear()
        async with asyncio.timeout(60):
            await self._reached.wait()


def kill_leader(ensemble: ZooKeeperEnsemble) -> None:
    ensemble.servers[ensemble.leader()].kill()


def kill_follower(ensemble: ZooKeeperEnsemble) -> None:
    ensemble.servers[ensemble.followers()[0]].kill()


def stop_leader(ensemble: ZooKeeperEnsemble) -> None:
    ensemble.servers[ensemble.leader()].process.pause()


def stop_follower(ensemble: ZooKeeperEnsemble) -> None:
    ensemble.servers[ensemble.followers()[0]].process.pause()


def isolate_leader(ensemble: ZooKeeperEnsemble) -> None:
    ensemble.isolate(ensemble.leader())


@pytest.mark.parametrize(
    "fault", [kill_leader, kill_follower, stop_leader, stop_follower, isolate_leader]
)
async def test_writers_go_on_and_count_right_when_a_server_fails(
    cluster: Cluster, fault: Callable[[ZooKeeperEnsemble], None]
) -> None:
    """Case 18: three sessions count by compare-and-set through the fault; no count is lost.

    What they were told is held against the counter: an increment that was acknowledged is in it,
    one that failed is not, and one of unknown outcome may be.
    """
    tally = Tally()
    async with (
        open_store(cluster.uri, session_timeout_seconds=TIMEOUT_SECONDS) as first,
        open_store(cluster.uri, session_timeout_seconds=TIMEOUT_SECONDS) as second,
        open_store(cluster.uri, session_timeout_seconds=TIMEOUT_SECONDS) as third,
    ):
        await first.put("/counter", b"0")
        for store in (second, third):
            await store.sync()
        async with asyncio.TaskGroup() as tasks:
            for store in (first, second, third):
                tasks.create_task(tally.count(store))
            await tally.acknowledge(50)
            await asyncio.to_thread(fault, cluster.ensemble)
            await tally.acknowledge(100)
            tally.is_over = True
        await asyncio.to_thread(cluster.ensemble.heal)
        await put_until_done(first, "/end", b"")
        record = await first.get("/counter")
        assert record is not None
        assert tally.acknowledged <= int(record.value) <= tally.acknowledged + tally.unknown


async def test_an_ephemeral_record_survives_the_leader(cluster: Cluster) -> None:
    async with open_store(cluster.uri, session_timeout_seconds=TIMEOUT_SECONDS) as store:
        stat = await store.put("/e", b"", ephemeral=True)
        async with store.watch("/") as changes:
            await asyncio.to_thread(kill_leader, cluster.ensemble)
            await put_until_done(store, "/after", b"")
            seen = [await next_item(changes)]
            while isinstance(seen[-1], Resync):
                seen.append(await next_item(changes))
        record = await store.get("/e")
        assert record is not None
        assert record.created_by_self
        assert record.version == stat.version


async def test_a_session_never_goes_back_in_time(cluster: Cluster) -> None:
    """It moves to a follower that is behind: that one does not take it, or has caught up."""
    ensemble = cluster.ensemble
    leader = await asyncio.to_thread(ensemble.leader)
    behind = (await asyncio.to_thread(ensemble.followers))[0]
    with Proxy(ensemble.servers[leader].port) as proxy:
        uri = f"zk://127.0.0.1:{proxy.port},{ensemble.servers[behind].address}{cluster.scope}"
        async with (
            open_store(f"zk://{ensemble.servers[leader].address}{cluster.scope}") as writer,
            open_store(uri, session_timeout_seconds=TIMEOUT_SECONDS) as store,
        ):
            await writer.put("/a", b"0")
            # The follower hears nothing more; for a while it does not know that.
            for caller, called in ((behind, leader), (leader, behind)):
                for link in ensemble.links[caller, called]:
                    link.hold()
            seen = 0
            for number in range(1, 40):
                await writer.put("/a", b"%d" % number)
                if number % 4 == 0:
                    proxy.reset()
                try:
                    record = await store.get("/a")
                except MetadataUnavailableError:
                    continue
                assert record is not None
                assert int(record.value) >= seen
                seen = int(record.value)


async def test_without_a_majority_nothing_is_promised(cluster: Cluster) -> None:
    ensemble = cluster.ensemble
    async with open_store(cluster.uri, session_timeout_seconds=TIMEOUT_SECONDS) as store:
        await store.put("/a", b"0")
        for follower in await asyncio.to_thread(ensemble.followers):
            ensemble.servers[follower].kill()
        with pytest.raises(MetadataUnavailableError):
            await store.put("/a", b"1")
        with pytest.raises(MetadataUnavailableError):
            await store.sync()
        await asyncio.to_thread(ensemble.heal)
        await put_until_done(store, "/a", b"2")
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"2"
