"""A store on three real ZooKeeper servers, of which one is killed, stopped, cut off or behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie.errors import BadVersionError, MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.metadata.model import Resync
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from tests.conformance.streams import next_item
from tests.servers.processes import wait_until
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, new_scope

TIMEOUT_SECONDS = 10

PACE_SECONDS = 0.003
"""Between two increments of a session, so that other tests get a core, too."""


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


ELECTION_SECONDS_MAX = 600
"""Servers that are cut off may keep others waiting in handshakes. How long an election takes is not
what is tested here: up to half a minute was seen on an idle machine."""


class Tally:
    """Numbers that the counting clients got."""

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
            await asyncio.sleep(PACE_SECONDS)

    async def acknowledge(self, more: int) -> None:
        """Return when so many more were acknowledged."""
        self._wanted = self.acknowledged + more
        self._reached.clear()
        async with asyncio.timeout(ELECTION_SECONDS_MAX):
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


def deafen_leader(ensemble: ZooKeeperEnsemble) -> None:
    leader = ensemble.leader()
    for follower in ensemble.followers():
        ensemble.cut(follower, leader)


def mute_leader(ensemble: ZooKeeperEnsemble) -> None:
    leader = ensemble.leader()
    for follower in ensemble.followers():
        ensemble.cut(leader, follower)


def leave_a_bridge(ensemble: ZooKeeperEnsemble) -> None:
    """The leader and a follower do not hear each other; the third hears both."""
    leader, follower = ensemble.leader(), ensemble.followers()[0]
    ensemble.cut(leader, follower)
    ensemble.cut(follower, leader)


@pytest.mark.parametrize(
    "fault",
    [
        *(kill_leader, kill_follower, stop_leader, stop_follower),
        *(isolate_leader, deafen_leader, mute_leader, leave_a_bridge),
    ],
)
async def test_writers_go_on_and_count_right_when_a_server_fails(
    cluster: Cluster, fault: Callable[[ZooKeeperEnsemble], None]
) -> None:
    """Case 18: three sessions count by compare-and-set through the fault; no count is lost.

    Their answers are compared with the counter. An acknowledged increment is in it, a failed one is
    not, and one of unknown outcome may be.
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
            leader = cluster.ensemble.servers[cluster.ensemble.leader()]
            await asyncio.to_thread(fault, cluster.ensemble)
            if fault in (deafen_leader, mute_leader):
                # Its votes may be heard and win, and the ensemble is without leader meanwhile. A
                # mute server may stay leader of followers that come and go without ever hearing.
                await asyncio.to_thread(
                    wait_until,
                    lambda: leader.mode() != "leader" or not cluster.ensemble.followers(),
                    "the leader and its followers part",
                )
                await asyncio.to_thread(cluster.ensemble.heal)
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


async def is_served_late(follower: ZooKeeperServer, store: ZooKeeperStore, newest: int) -> bool:
    """True if the follower, which serves the store, still shows the value before the newest.

    It may have given up before that, and the store gone on without it.
    """
    try:
        record = await store.get("/a")
    except MetadataUnavailableError:
        return False
    assert record is not None
    assert int(record.value) in (newest - 1, newest)
    session = store.credentials[0]
    return int(record.value) < newest and await asyncio.to_thread(follower.serves, session)


async def test_a_session_moves_to_a_follower_that_falls_behind(cluster: Cluster) -> None:
    """Case 18: the follower says itself that the session is there, and shows an old value.

    To take a session over it asks the leader, so it falls behind only after that. What is read
    never goes back, the watch says `Resync`, and after a sync all is as new as elsewhere.
    """
    ensemble = cluster.ensemble
    number = await asyncio.to_thread(ensemble.leader)
    other = (await asyncio.to_thread(ensemble.followers))[0]
    leader, follower = ensemble.servers[number], ensemble.servers[other]
    with Proxy(leader.port) as way, Proxy(follower.port) as detour:
        detour.refuse()
        uri = f"zk://127.0.0.1:{way.port},127.0.0.1:{detour.port}{cluster.scope}"
        async with (
            open_store(f"zk://{leader.address}{cluster.scope}") as writer,
            open_store(uri, session_timeout_seconds=30) as store,
            store.watch("/a") as changes,
        ):
            assert isinstance(store, ZooKeeperStore)
            session, is_late = store.credentials[0], False
            await writer.put("/a", b"0")
            assert await asyncio.to_thread(leader.serves, session)
            for newest in range(1, 20):
                await asyncio.to_thread(detour.heal)
                await asyncio.to_thread(way.refuse)
                await asyncio.to_thread(wait_until, lambda: follower.serves(session), "it moved")
                await put_until_done(store, "/moved", b"")
                await asyncio.to_thread(ensemble.cut, number, other)
                await writer.put("/a", b"%d" % newest)
                is_late = await is_served_late(follower, store, newest)
                await asyncio.to_thread(way.heal)
                await asyncio.to_thread(ensemble.heal)
                await put_until_done(store, "/after", b"")
                record = await store.get("/a")
                assert record is not None
                assert int(record.value) == newest
                if is_late:
                    break
            assert is_late
            assert store.credentials[0] == session
            seen = [await next_item(changes)]
            while not isinstance(seen[-1], Resync):
                seen.append(await next_item(changes))


async def test_without_a_majority_nothing_is_promised(cluster: Cluster) -> None:
    """Nor is old data taken from a server that offers it (``readonlymode.enabled``)."""
    ensemble = cluster.ensemble
    async with open_store(cluster.uri, session_timeout_seconds=6) as store:
        await store.put("/a", b"0")
        leader = await asyncio.to_thread(ensemble.leader)
        for follower in await asyncio.to_thread(ensemble.followers):
            ensemble.servers[follower].kill()
        with pytest.raises(MetadataUnavailableError):
            await store.put("/a", b"1")
        await asyncio.to_thread(
            wait_until,
            lambda: ensemble.servers[leader].mode() == "read-only",
            "the server that is left offers old data",
        )
        with pytest.raises(MetadataUnavailableError):
            await store.sync()
        with pytest.raises(MetadataUnavailableError, match="does not answer"):
            await store.get("/a")
        await asyncio.to_thread(ensemble.heal)
        await put_until_done(store, "/a", b"2")
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"2"
